"""Search client by client behind a mean of quantised messages, which shows each message (`objective/separate.py`)."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from bench.attacks.labels.head import last_layer
from bench.attacks.labels.hypotheses import label_hypotheses
from bench.attacks.objective.mismatch import observations
from bench.attacks.objective.public import gradients_of, public_of
from bench.attacks.objective.separate import separate
from bench.rng import Key
from bench.rows import rows
from bench.trip import Budget, Clients, Reading, Reconstruction

Search = Callable[[Reading, Budget], Reconstruction]
Messages = dict[str, Tensor]  # tensor name → (client, *shape)

_FIRST = 0.4  # of the evaluations: search by the messages of a single tensor
_LINKED = (
    0.6  # of the median cosine between candidates' gradients and messages: less for two clients marks a wrong tensor
)
_NOTE = "the mean of quantised messages shows each client's message: searched client by client"


def by_client(reading: Reading, budget: Budget, key: Key, search: Search) -> Reconstruction | None:
    """Attack a mean of quantised messages client by client: separate each client's message from the mean, then search
    the example behind each message. Return None if the messages are not quantised, if a client has several examples, or
    if a reading has several observations (repeated reports). A reading whose messages cannot be separated is searched
    as a whole.

    - `reading`: the batch of attacked means.
    - `budget`: limits of the attack.
    - `key`: draws the start of a search for labels.
    - `search`: attack on the messages, as a function of a reading and a budget.

    In each tensor of the mean, the messages have an unknown order. The mean gradients of public examples assign the
    largest tensor's messages to labels. A first search on these messages gives candidates, which assign the other
    tensors' messages."""
    clients = None if reading.description is None else reading.description.clients
    if clients is None or reading.senders != reading.examples or len(reading.rounds) > 1:
        return None
    labels = label_hypotheses(reading, observations(reading)[0], 1, key)[:, 0]
    results = []
    for row in range(len(reading)):
        one = reading.of([row])
        messages = _separated(one, clients)
        if messages is None or bool((labels[row] < 0).any()):
            results.append(search(one, budget))
        else:
            results.append(_searched(replace(one, labels=labels[row : row + 1]), clients, messages, budget, search))
    return joined(results)


def _separated(one: Reading, clients: Clients) -> Messages | None:
    """Return the messages of the tensors that show them, the largest tensor first; None if none does. The last layer is
    left out: its steps are nearly equal for all clients."""
    messages = {}
    last = f"{last_layer(one)}."
    for name, value in sorted(one.values.items(), key=lambda item: -item[1].numel()):
        if name.startswith(last):
            continue
        each = separate(value.flatten().double().cpu().numpy(), one.senders, signs=clients.signs)
        if each is not None:
            messages[name] = torch.from_numpy(each).to(value).unflatten(1, value.shape[2:])
    return messages or None


def _searched(one: Reading, clients: Clients, messages: Messages, budget: Budget, search: Search) -> Reconstruction:
    assert one.labels is not None
    anchor, first = next(iter(messages)), round(_FIRST * budget.evaluations)
    labels = one.labels[0]
    typical = [gradients_of(one, *public_of(one, int(label)))[anchor].mean(0) for label in labels]
    linked = {anchor: _linked(torch.stack(typical), messages[anchor])[0]}
    found = search(_of_clients(one, clients, linked), replace(budget, evaluations=first))
    gradients = gradients_of(one, found.inputs[:, 0], labels)
    for name, value in messages.items():
        chosen, fits = _linked(gradients[name], value)
        if name != anchor and fits:
            linked[name] = chosen
    if len(linked) > 1:
        again = search(_of_clients(one, clients, linked), replace(budget, evaluations=budget.evaluations - first))
        found = replace(again, evaluations=again.evaluations + found.evaluations)
    return Reconstruction(
        inputs=found.inputs[:, 0][None],
        labels=one.labels.clone(),
        loss=found.loss.sum()[None],
        evaluations=found.evaluations.amax()[None],
        outer=found.outer.amax()[None],
        restarts=found.restarts.amax()[None],
        status=("ok" if all(word == "ok" for word in found.status) else "diverged",),
        notes=(*found.notes, f"{_NOTE}; tensors {', '.join(sorted(linked))}"),
    )


def _of_clients(one: Reading, clients: Clients, messages: Messages) -> Reading:
    """Return a reading for each client, with the tensors in `messages` only."""
    assert one.labels is not None
    return replace(
        one,
        values={name: value[:, None] for name, value in messages.items()},
        labels=one.labels.T.contiguous(),
        indices=tuple(one.indices[0] * one.senders + client for client in range(one.senders)),
        senders=1,
        description=clients.alone,
    )


def _linked(gradients: Tensor, messages: Tensor) -> tuple[Tensor, bool]:
    """Return `messages` (client, *shape) in the order of `gradients` (client, *shape) with the largest sum of cosines,
    and whether the cosines show the messages right."""
    tiny = torch.finfo(messages.dtype).tiny
    flat = (rows(value, 1) for value in (gradients, messages))
    left, right = (value / value.norm(dim=1, keepdim=True).clamp_min(tiny) for value in flat)
    cosines = (left @ right.T).cpu().numpy()
    clients, columns = linear_sum_assignment(-cosines)
    each = np.sort(cosines[clients, columns])
    return messages[torch.from_numpy(columns)], bool(each[1] >= _LINKED * np.median(each))


def joined(results: list[Reconstruction]) -> Reconstruction:
    """Concatenate the reconstructions of several batches along the axis of readings, in the order of `results`."""

    def column(name: str) -> Tensor:
        return torch.cat([getattr(each, name) for each in results])

    return Reconstruction(
        inputs=column("inputs"),
        labels=column("labels"),
        loss=column("loss"),
        evaluations=column("evaluations"),
        outer=column("outer"),
        restarts=column("restarts"),
        status=tuple(word for each in results for word in each.status),
        notes=tuple(dict.fromkeys(note for each in results for note in each.notes)),
    )
