"""Plan of an assessment: the attacks on each listener's reading, with times measured on this machine."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bench.answer.gallery import naming_chance
from bench.assess.client import Client
from bench.assess.members import Trials, expected_seconds
from bench.assess.recognition import too_few
from bench.attacks.base import Attack
from bench.attacks.search.probable import curved_from, curved_seconds
from bench.errors import BenchError
from bench.gradients import group_gradients, one_hot
from bench.own.attack import attack
from bench.own.given import reading
from bench.registry import entries as registry
from bench.rng import Key
from bench.training import loss_of, mixes
from bench.trip import Reading

LEAST = 40  # evaluations of a search; fewer are no attack
EXAMPLES = 256  # behind an update, at most, for the search: more never came back
MOST = 2000  # evaluations; more change little
_INSIDE = 8  # single examples attacked inside the client
_SEARCHES = ("map", "gradinv")  # the second needs no public examples
_SHARES = {"update": (0.45, 0.15), "inside": (0.15, 0.05)}  # of the time: search, gallery
_PROBE = (6, 1.0)  # evaluations of a probe, and its least seconds
_CANDIDATES = 1000
_PART = 8  # a probe of the gallery has one in eight strangers


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Planned attack of an assessment that reconstructs examples by a search, with the number of evaluations (gradients
    of its objective) that fit into the planned time."""

    attack: str
    """Name of the attack."""
    evaluations: int = 0
    """Evaluations of the search; 0: the search does not run."""
    each: float = 0.0
    """Measured seconds of an evaluation."""
    seconds: float = 0.0
    """Expected duration, in seconds."""
    refused: str = ""
    """Reason why the search does not run; empty: the search runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Planned run of the attack `gallery` in an assessment: the candidates among which the attack picks the true
    examples behind a reading (an observed update), and the expected time."""

    inputs: Tensor
    """(candidate, *shape): the true examples and strangers, in random order."""
    labels: Tensor
    """(candidate,): labels of the candidates."""
    truth: Tensor
    """(reading, example): position of each true example among the candidates."""
    chance: float
    """Share that a guess without the reading names."""
    limit: float
    """Seconds after which a search over sets of candidates ends."""
    seconds: float
    """Expected duration, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Planned attacks of an assessment for a listener (an attacker at a point of the round): the listener's reading
    (observed update), its true examples, and the attacks with their times."""

    name: str
    """Name of the listener (an attacker at a point of the round): `update` or `inside`."""
    reads: str
    """The listener's reading, in words."""
    reading: Reading
    """The reading, an observed update."""
    inputs: Tensor
    """(reading, example, *shape): true examples."""
    labels: Tensor
    """(reading, example): true labels."""
    searches: tuple[Search, ...]
    """Searches in the order of preference; only the first that is not refused runs."""
    naming: Naming | str
    """Candidates for the attack `gallery`, or the reason why it does not run."""
    trials: Trials | str | None
    """True examples and strangers for `bench.assess.members`, or the reason for their absence; None: a single
    local step that `gallery` reads."""
    trial_seconds: float
    """Expected duration of the recognition by `trials`, in seconds."""

    @property
    def seconds(self) -> float:
        """Expected duration of all attacks, in seconds."""
        named = 0.0 if isinstance(self.naming, str) else self.naming.seconds
        return sum(each.seconds for each in self.searches) + named + self.trial_seconds


def plans(client: Client, seconds: float, seed: int) -> Iterator[Plan]:
    """Plan an assessment of `client`: yield, for each listener (an attacker at a point of the round), the attacks that
    fit into its share of the time `seconds`. The attacks' speed is measured on this machine. `seed` draws the order of
    candidates."""
    if client.update is not None:
        update = client.update
        steps = "one local step" if update.steps == 1 else f"{update.steps} local steps"
        words = f"{steps} of {_examples(update.batch)}"
        yield _plan("update", words, update, client.inputs, client.labels, client, seconds, seed)
    if mixes(client.model):  # one example has no gradient of its own
        return
    inputs, labels = client.inputs[0, :_INSIDE, None], client.labels[0, :_INSIDE, None]
    targets = one_hot(labels, client.classes, inputs.dtype)
    inside = reading(
        group_gradients(client.model, client.weights, inputs, targets),
        model=client.model,
        shape=client.shape,
        classes=client.classes,
        loss=loss_of(client.model),
        value_range=client.value_range,
        kind=client.kind.name,
        labels=labels,
        public=client.public,
        public_labels=client.public_labels,
    )
    words = f"the gradient of each of {_examples(len(inputs))}, before the first step"
    yield _plan("inside", words, inside, inputs, labels, client, seconds, seed)


def _plan(
    name: str, reads: str, reading: Reading, inputs: Tensor, labels: Tensor, client: Client, seconds: float, seed: int
) -> Plan:
    to_search, to_name = (share * seconds for share in _SHARES[name])
    searches = list[Search]()
    for attack_name in _SEARCHES:
        searches.append(_search(attack_name, reading, to_search, seed))
        if not searches[-1].refused or reading.examples > EXAMPLES:
            break
    naming = _naming(reading, inputs, labels, client, to_name, seed)
    # after several local steps the time may end the gallery's search
    with_trials = name == "update" and (isinstance(naming, str) or reading.steps > 1)
    trials = _trials(client, seed) if with_trials else None
    return Plan(
        name=name,
        reads=reads,
        reading=reading,
        inputs=inputs,
        labels=labels,
        searches=tuple(searches),
        naming=naming,
        trials=trials,
        trial_seconds=expected_seconds(client, trials) if isinstance(trials, Trials) else 0.0,
    )


def _trials(client: Client, seed: int) -> Trials | str:
    if mixes(client.model):
        return "the model mixes the examples of a batch"
    try:
        return Trials.of(client, seed)
    except BenchError as error:
        return str(error)


def _search(name: str, reading: Reading, seconds: float, seed: int) -> Search:
    if reading.examples > EXAMPLES:
        reason = f"{reading.examples} examples behind one update, at most {EXAMPLES} are searched"
        return Search(attack=name, refused=reason)
    try:
        fixed, each = _speed(name, reading)
    except BenchError as error:
        return Search(attack=name, refused=reason_of(error, name))
    fit, before, more = int((seconds - fixed) / each), 0.0, 0.0
    curved = curved_from(reading, registry.instance("attacks", name, {}).starts) if name == "map" else MOST + 1
    if min(fit, MOST) >= curved:
        before, more = curved_seconds(reading, Key(seed=seed))
        fit = max(min(fit, curved - 1), int((seconds - fixed - before) / (each + more)))
    fit = min(fit, MOST)
    if fit < LEAST:
        return Search(attack=name, each=each, refused=f"an evaluation takes {each:.2g} s; give more minutes")
    whole = fixed + fit * each + (before + fit * more if fit >= curved else 0.0)
    return Search(attack=name, evaluations=fit, each=each, seconds=whole)


def _speed(name: str, reading: Reading) -> tuple[float, float]:
    """Measure an attack: seconds before its first evaluation, and seconds of each evaluation."""
    evaluations, least = _PROBE
    attack(reading, name, evaluations=evaluations)  # the first call is slower
    earlier, took = 0.0, _timed(name, reading, evaluations)
    while took < least and evaluations < LEAST:
        evaluations *= 2
        earlier, took = took, _timed(name, reading, evaluations)
    if not earlier:
        evaluations *= 2
        earlier, took = took, _timed(name, reading, evaluations)
    each = max((took - earlier) / (evaluations / 2), took / evaluations / 2)
    return took - evaluations * each, each


def _timed(name: str, reading: Reading, evaluations: int) -> float:
    began = time.monotonic()
    attack(reading, name, evaluations=evaluations)
    return time.monotonic() - began


def _naming(
    reading: Reading, inputs: Tensor, labels: Tensor, client: Client, seconds: float, seed: int
) -> Naming | str:
    if client.public is None or client.public_labels is None:
        return "no public examples with labels"
    true, marks = inputs.flatten(0, 1), labels.flatten()
    strangers = max(0, _CANDIDATES - len(true))
    whole = torch.cat([true, client.public[:strangers]])
    whole_labels = torch.cat([marks, client.public_labels[:strangers]])
    chosen: Attack = registry.instance("attacks", "gallery", {})
    if reason := chosen.refuses(replace(reading, gallery_inputs=whole, gallery_labels=whole_labels)):
        return reason
    chance = naming_chance(whole_labels, labels, granted=reading.labels is not None)
    if reason := too_few(chance):
        return reason
    part = len(true) + -(-(len(whole) - len(true)) // _PART)
    began = time.monotonic()
    try:
        few = replace(reading, gallery_inputs=whole[:part], gallery_labels=whole_labels[:part])
        attack(few, "gallery", seed=seed, seconds=seconds / _PART)
    except BenchError as error:
        return reason_of(error, "gallery")
    expected = (time.monotonic() - began) * len(whole) / part
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    return Naming(
        inputs=whole[order],
        labels=whole_labels[order],
        truth=order.argsort()[: len(true)].reshape(labels.shape),
        chance=chance,
        limit=seconds,
        seconds=expected if reading.examples == 1 else min(seconds, expected),
    )


def reason_of(error: BenchError, name: str) -> str:
    """Return the text of `error`, with which the attack `name` refused a reading (an observed update), without the
    attack's name, for a report that already names the attack."""
    return str(error).removeprefix(f"attack {name} cannot take this reading: ")


def _examples(count: int) -> str:
    return "one example" if count == 1 else f"{count} examples"
