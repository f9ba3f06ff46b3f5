"""A user's gradient or weight update as a reading for attacks, and reading files on disk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import BenchError
from bench.kinds.base import Kind
from bench.kinds.known import of_shape
from bench.models.base import Model
from bench.own import coerce, files
from bench.own.coerce import ZERO_TO_ONE, Range, Values
from bench.own.copies import plain_copy, unwrapped
from bench.own.defended import Chosen, defended
from bench.own.local import SGD, Adam
from bench.own.losses import declared as declared_loss
from bench.own.losses import restored as restored_loss
from bench.own.losses import saved as saved_loss
from bench.own.repeats import granted_labels
from bench.own.statistics import sent_statistics
from bench.own.vocabulary import refuse_texts
from bench.own.weights import (
    check_model,
    difference,
    load_state,
    named_state,
    of_trained,
    refuse_batch_statistics,
    refuse_closures,
    refuse_weights,
)
from bench.points import point
from bench.registry import entries as registry
from bench.sanitize import first_line
from bench.training import cross_entropy, declare, loss_of, mixes
from bench.trip import Reading

Weights = Mapping[str, Values] | Sequence[Values]


def build(
    name: str, *, shape: tuple[int, ...], classes: int, seed: int = 0, params: Mapping[str, Any] | None = None
) -> nn.Module:
    """Build a registered model for one's own training loop: the model `name` in eval mode, with initial weights drawn
    with `seed`.

    - `shape`: shape of an example, such as (1, 28, 28).
    - `classes`: number of classes.
    - `params`: the model's parameters; None takes the defaults.

    Raises `BenchError` for an unknown name or parameter, or an unsupported shape."""
    architecture: Model = registry.instance("models", name, params or {})
    try:
        module = architecture.build(shape, classes).eval()
    except (ValueError, RuntimeError, TypeError) as error:
        raise BenchError(f"model {name!r} takes no inputs of shape {shape}: {first_line(error)}") from None
    with torch.no_grad():
        for key, value in architecture.initial(module, seed).items():
            module.get_parameter(key).copy_(value)
    return module


def reading(
    gradients: Mapping[str, Values | None] | Sequence[Values | None] | None = None,
    *,
    model: nn.Module | str,
    shape: tuple[int, ...],
    classes: int,
    weights: Weights | None = None,
    before: Weights | None = None,
    after: Weights | None = None,
    local: SGD | None = None,
    batch: int = 1,
    steps: int = 1,
    rate: float = 1.0,
    unit: float = 1.0,
    value_range: Range = ZERO_TO_ONE,
    kind: str | None = None,
    labels: Values | None = None,
    public: Values | None = None,
    public_labels: Values | None = None,
    defense: Chosen | None = None,
    clients: int = 1,
    per_round: int | None = None,
    rounds: int = 1,
    loss: Callable[..., Tensor] | None = None,
    batch_statistics: bool = False,
    statistics: Weights | None = None,
) -> Reading:
    """Make a reading (an attacker's observation, for `attack`) from a user's gradients or weight update. Give either
    `gradients` or `before` and `after`:

    - `gradients`: name → tensor, or a list in the order of `model.parameters()`. Each tensor has its parameter's shape,
      or (reading, *shape) for several readings under equal `weights` (None: the module's weights). None in place of a
      tensor is a parameter that is not sent.
    - `before`, `after`: a client's weights before and after a round, by name or as a list in the order of
      `model.state_dict()`. `local` (`SGD` or `Adam`) describes the client's training.

    Further arguments:

    - `model`: a module, which is copied into eval mode (frozen parameters stay frozen), or a registered name.
    - `loss`: the training's loss with its options, a module of `torch.nn` or a function of logits and class
      probabilities (`bench.own.losses`). None is the mean cross entropy.
    - `batch_statistics`: True if BatchNorm was in training mode; a batch is then attacked as a whole.
    - `statistics`: with `batch_statistics`, BatchNorm's running statistics after the client's steps, if the client
      sends them: its state, by name or as a list, or name → (reading, channel). Attacks then match these statistics,
      too. The model holds the statistics before the steps. None takes the statistics in `after`, if they moved.
    - `shape`, `classes`: (channel, height, width), (feature,) or (position,), and the number of classes. Two classes
      may have one logit.
    - `batch`, `steps`, `rate`: without `local`, examples per local step, number of local steps, learning rate.
    - `unit`: without `local`, 1 for gradients, `rate` for a weight difference (weights before minus weights after).
    - `value_range`: smallest and largest possible input value.
    - `kind`: kind of data (`bench.kinds`); None infers the kind from `shape`. For "text" the model gets token ids as
      floats, 0 after the end of a text.
    - `labels`: true labels, granted to the attacker.
    - `public` (example, *shape), `public_labels` (example,): public examples; None gives a uniform grey example.
    - `defense`: the client's defense, known to the attacker: a name, {"name": …, parameter: …} or a `Defense`. Its
      noise may depend on `clients`, `per_round` and `rounds`.

    Raises `BenchError` for contradicting arguments."""
    update = _Update(gradients=gradients, weights=weights, before=before, after=after, local=local)
    if fault := update.fault(declared=(batch, steps, rate, unit) != (1, 1, 1.0, 1.0)):
        raise BenchError(fault)
    if not isinstance(model, nn.Module | str):
        raise BenchError(f"model is a module or a registered name, not {model!r:.60}")
    for name, value in (("shape", shape), ("value_range", value_range)):
        if not isinstance(value, Sequence):
            raise BenchError(f"{name} is a tuple of numbers, got {value!r}")
    if local is not None:
        batch, steps, rate, unit = (local.step_batch, local.count, local.lr, local.unit if after is not None else 1.0)
    meta = files.checked_meta(
        shape=tuple(shape),
        classes=classes,
        batch=batch,
        steps=steps,
        rate=rate,
        unit=unit,
        value_range=tuple(value_range),
    )
    module = _module(model, meta, update, batch_statistics)
    if statistics is not None and not batch_statistics:
        raise BenchError("statistics show a batch in training mode only; give batch_statistics=True, too")
    of_data = of_shape(meta.shape, kind, integers=coerce.integers(public, "public"))
    one_logit = check_model(module, meta.shape, classes, of_data)
    declare(module, loss=declared_loss(loss, classes, one_logit=one_logit), batch_statistics=batch_statistics)
    if isinstance(model, nn.Module):
        refuse_closures(unwrapped(model), module, meta.shape)
    parameters, values = _values(update, module, meta)
    moved = sent_statistics(module, statistics, after, len(next(iter(values.values())))) if batch_statistics else None
    if moved is not None and defense is not None:
        raise BenchError("statistics of a client with a defense are not simulated; leave statistics or defense out")
    inputs, input_labels = _public(public, public_labels, meta, of_data)
    if public is not None:
        refuse_texts(module, inputs, "public", of_data)
    trained = None if after is None else local
    made = Reading(
        point=point("type-2" if batch * steps == 1 and defense is None else "type-1"),
        linked="vector",
        values={name: value[:, None] for name, value in values.items()},
        weights={name: value[None] for name, value in parameters.items()},
        rounds=(0,),
        indices=tuple(range(len(next(iter(values.values()))))),
        model=module,
        kind=of_data,
        shape=meta.shape,
        value_range=meta.value_range,
        classes=classes,
        batch=batch,
        steps=steps,
        rate=meta.rate,
        unit=meta.unit,
        client_examples=batch * steps if local is None else local.client_examples,
        senders=1,
        public_mean=of_data.values.centre(inputs),
        public_inputs=inputs,
        public_labels=input_labels,
        momentum=0.0 if trained is None else trained.momentum,
        weight_decay=0.0 if trained is None else trained.weight_decay,
        adam=trained.adam if isinstance(trained, Adam) else None,
        rule=None if trained is None else trained.rule,
        ragged=local is not None and local.ragged and local.count > 1,
        statistics=moved,
    )
    if labels is not None:
        made = replace(made, labels=granted_labels(labels, made))
    if defense is None:
        return made
    return defended(made, defense, clients=clients, per_round=per_round, rounds=rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update:
    gradients: Mapping[str, Values | None] | Sequence[Values | None] | None
    weights: Weights | None
    before: Weights | None
    after: Weights | None
    local: SGD | None

    def fault(self, *, declared: bool) -> str | None:
        """Return the contradiction in the user's arguments for an update, as text, or None. `declared` is True if
        batch, steps, rate or unit were given."""
        if (self.gradients is None) == (self.after is None) or (self.before is None) != (self.after is None):
            return "give either the gradients, or a client's weights before= and after= its round"
        if self.after is not None and self.local is None:
            return "before and after need local=api.SGD(lr=…, batch=…, steps=…): how the client trained"
        if self.local is not None and declared:
            return "local says what batch, steps, rate and unit would say; leave these out"
        if self.local is not None and self.after is None and self.local.count > 1:
            return f"{self.local.count} local steps show in a difference of weights; give before= and after="
        return None


def _module(model: nn.Module | str, meta: files.Meta, update: _Update, batch_statistics: bool) -> nn.Module:
    if isinstance(model, nn.Module):
        if not batch_statistics:
            refuse_batch_statistics(model)
        return plain_copy(model, batch_statistics=batch_statistics)
    if update.weights is None and update.before is None:
        raise BenchError(f"model {model!r} is given by name: give the weights of the gradients, too")
    return build(model, shape=meta.shape, classes=meta.classes)


def _values(update: _Update, module: nn.Module, meta: files.Meta) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Load the weights into `module`; return them, name → (*shape), and the update, name → (reading, *shape)."""
    state = None if update.before is None else named_state(update.before, module, "before")
    if (weights := update.weights) is not None:
        named = weights if isinstance(weights, Mapping) else named_state(weights, module, "weights")
        state = {name: coerce.tensor(value, f"weight {name!r}") for name, value in named.items()}
    gradients = None if update.gradients is None else of_trained(update.gradients, module)
    parameters = load_state(module, state, "weights" if update.before is None else "before")
    if update.after is None:
        assert gradients is not None
        values = coerce.gradients(gradients, parameters, module.state_dict())
        if meta.unit == 1:
            refuse_weights(values, parameters)
        return parameters, values
    assert state is not None and update.local is not None
    moved = difference(state, named_state(update.after, module, "after"), parameters)
    values, local = coerce.gradients(moved, parameters), update.local
    for name in {*local.factors, *local.decays} - set(values):
        raise BenchError(f"local gives {name!r} a factor or a decay: no trained parameter has this name")
    values = {name: value / local.factors.get(name, 1.0) for name, value in values.items()}
    if isinstance(local, Adam):
        return parameters, values
    for name, value in values.items():  # decay leaves the gradients: to first order here, exactly in the simulation
        if decay := local.decays.get(name, local.weight_decay):
            values[name] = value - meta.unit * meta.steps * decay * parameters[name]
    return parameters, values


def _public(inputs: Values | None, labels: Values | None, meta: files.Meta, kind: Kind) -> tuple[Tensor, Tensor]:
    """Return public examples (example, *shape) and labels (example,), -1 if unknown. Without `inputs`, the result is a
    uniform grey example, or a text without tokens."""
    known = torch.full((1, *meta.shape), sum(meta.value_range) / 2 if kind.differentiable else 0.0)
    if inputs is not None:
        known = coerce.examples(inputs, meta.shape, "public")
        (low, high), least, most = meta.value_range, float(known.min()), float(known.max())
        if kind.spatial and (least < 2 * low - high or most > 2 * high - low):
            raise BenchError(
                f"public lies in {least:g}..{most:g}, inputs in {low:g}..{high:g}; scale it, or name their value_range"
            )
    if labels is None:
        return known, torch.full((len(known),), -1)
    return known, coerce.labels(labels, len(known), meta.classes)


def open_reading(
    path: str | PathLike[str],
    *,
    model: nn.Module | str,
    weights: Mapping[str, Values] | None = None,
    params: Mapping[str, Any] | None = None,
    public: Values | None = None,
    public_labels: Values | None = None,
) -> Reading:
    """Open a reading file (a user's gradient, `bench.own.files`) for attacks.

    - `model`: a module, or a registered name with the parameters `params`.
    - `weights`: the model's weights, name → (*shape), in place of the weights in the file; None keeps the file's
      weights.
    - `public` (example, *shape), `public_labels` (example,): public examples; None gives a uniform grey example.

    Raises `BenchError` with the file's name."""
    content = files.load(Path(path))
    meta, chosen = content.meta, weights or content.weights
    if isinstance(model, str):
        if not chosen:
            raise BenchError(f"{path}: no weights of the model in the file; give the weights, too")
        model = build(model, shape=meta.shape, classes=meta.classes, params=params)
    fields = asdict(meta) | {"loss": restored_loss(meta.loss)}
    protocol = {name: fields.pop(name) for name in ("momentum", "weight_decay", "ragged")}
    if frozen := fields.pop("frozen"):
        model, own = plain_copy(model), unwrapped(model)
        refuse_closures(own, model, meta.shape)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in frozen)
    examples = fields.pop("client_examples") or meta.batch * meta.steps
    try:
        made = reading(
            content.values, model=model, weights=chosen or None, public=public, public_labels=public_labels, **fields
        )
        made = replace(made, client_examples=examples, **protocol)
        return made if content.labels is None else replace(made, labels=granted_labels(content.labels, made))
    except BenchError as error:
        raise type(error)(f"{path}: {error}") from None


def save_reading(path: str | PathLike[str], reading: Reading) -> None:
    """Write a reading (an observed update), with granted labels, as a file for `bench attack --reading`. Raises
    `BenchError` for a reading that the file cannot hold: with several observations or senders, with a described or
    simulated defense, with a loss that is no loss of torch.nn, with another optimizer or local step, or with batch
    statistics."""
    knows = reading.description is not None or reading.simulator is not None
    if len(reading.rounds) > 1 or reading.senders > 1 or knows:
        raise BenchError(f"{path}: a reading file holds one observation of one client, and no description or simulator")
    if reading.adam is not None or reading.rule is not None or mixes(reading.model):
        raise BenchError(f"{path}: a reading file holds plain SGD in eval mode; use api.attack")
    declared = loss_of(reading.model)
    loss = None if declared is cross_entropy else saved_loss(declared)
    if loss is None and declared is not cross_entropy:
        raise BenchError(f"{path}: a reading file holds a loss of torch.nn, not a function; use api.attack")
    meta = files.checked_meta(
        shape=reading.shape,
        classes=reading.classes,
        batch=max(reading.batches),
        steps=reading.steps,
        rate=reading.rate,
        unit=reading.unit,
        value_range=reading.value_range,
        ragged=reading.ragged,
        client_examples=reading.client_examples,
        momentum=reading.momentum,
        weight_decay=reading.weight_decay,
        frozen=tuple(name for name, value in reading.model.named_parameters() if name not in reading.weights),
        loss=loss,
    )
    files.save(
        Path(path),
        {name: value[:, 0].cpu().numpy() for name, value in reading.values.items()},
        meta,
        weights={
            **{name: value.cpu().numpy() for name, value in reading.model.state_dict().items()},
            **{name: value[0].cpu().numpy() for name, value in reading.weights.items()},
        },
        labels=None if reading.labels is None else reading.labels.cpu().numpy(),
    )
