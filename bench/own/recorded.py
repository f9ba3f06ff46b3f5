"""A recorded training as a declared protocol: local steps, a replay, and a reading with its true examples."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.errors import BenchError
from bench.own.coerce import ZERO_TO_ONE, Range, Values, tensor
from bench.own.copies import plain_copy
from bench.own.given import reading
from bench.own.local import SGD
from bench.own.private import PrivateStep, private_step, spent
from bench.own.recording import Recorded, recorder, trained_copy
from bench.trip import Reading

EXPLAINED = 1e-6  # largest distance between the update and its replay, relative to the update
_PLAIN_SGD = {"dampening": 0, "nesterov": False, "maximize": False}


class Recording:
    """A client's training, recorded by hooks in the `with` statement of `recording`. Read the properties after this
    statement."""

    def __init__(self) -> None:
        self._recorded = Recorded()
        self._checked: tuple[float | None, tuple[str, ...]] | None = None
        self._sent: Mapping[str, Tensor] | None = None
        self._engine: Any = None
        self.defense: Any = None
        """Declared defense between training and message, as in `api.reading`; None: no defense is known."""

    @staticmethod
    def of(recorded: Recorded) -> "Recording":
        """Return the recording of a finished training. `recorded` is the data from `bench.own.recording.recorder`."""
        made = Recording()
        made._recorded = recorded
        return made

    def sent_as(self, after: Mapping[str, Tensor], defense: Any = None) -> None:
        """Declare the weights that the client sent, if they differ from the trained weights: `after`, name → (*shape).
        `defense` is the client's defense between training and message (as in `api.reading`); None: no defense is known.
        """
        self._sent, self.defense = after, defense

    @property
    def seen(self) -> tuple[str, ...]:
        """Facts about the training that no attack simulates, such as dropout; empty for plain training."""
        return self._check()[1]

    @property
    def error(self) -> float | None:
        """Distance between the update and its replay (the recorded steps, computed again), divided by the update's
        length. None: the training cannot be replayed."""
        return self._check()[0]

    @property
    def explained(self) -> bool:
        """True if plain SGD on the recorded batches gives the update, to a relative error of 1e-6; with Opacus, if clip
        and described noise explain the first step."""
        if self._recorded.private is not None:
            return self._private().explained
        return self.error is not None and self.error <= EXPLAINED and not self.seen

    @property
    def line(self) -> str:
        """Result of the recording's check as a line of text: whether the recorded steps explain the update."""
        if self._recorded.private is not None:
            step = self._private()
            return f"{'explains' if step.explained else 'does not explain'} what was sent: {step.line}"
        sizes = [len(step.inputs) for step in self._recorded.steps]
        what = f"{len(sizes)} local steps on {sum(sizes)} examples" if sizes else "no local step"
        if self.explained:
            return f"explains what was sent: {what}, replayed with a relative error of {self.error:.1g}"
        error = "" if self.error is None else f", relative error {self.error:.2g}"
        seen = "; ".join(self.seen) or "nothing known that explains the difference"
        return f"does not explain what was sent: {what}{error}; seen: {seen}"

    @property
    def truth(self) -> tuple[Tensor, Tensor]:
        """The true examples of the update: inputs (example, *shape) and labels (example,). They are the distinct
        examples in the order of the first epoch; with Opacus, the examples of the first step."""
        if self._recorded.private is not None:
            inputs, labels = self._uses()
            drawn = len(self._recorded.steps[0].inputs)
            return inputs[:drawn], labels[:drawn]
        first = self._protocol()[1]
        inputs, labels = self._uses()
        return inputs[first], labels[first]

    @property
    def held_out(self) -> tuple[Tensor | None, Tensor | None]:
        """Examples of which the client used no gradients, from forward passes such as a validation: inputs (example,
        *shape) and labels (example,). Both are None without such a pass; the labels are None if a pass had no loss."""
        inputs, _ = self._uses()
        own = {_key(each) for each in inputs}
        passes = [each for each in self._recorded.held_out if each.inputs.shape[1:] == inputs.shape[1:]]
        if not passes:
            return None, None
        known = torch.cat([each.inputs for each in passes]).float()
        new = torch.tensor([_key(each) not in own for each in known])
        if not new.any():
            return None, None
        labels = [each.targets for each in passes if each.targets is not None]
        return known[new], torch.cat(labels).long()[new] if len(labels) == len(passes) else None

    @property
    def classes(self) -> int:
        """Number of classes, which is the number of logits."""
        return self._recorded.classes

    def at_start(self) -> nn.Module:
        """Return a copy of the model at the weights before the training, in the recorded training modes. Raises
        `BenchError` if no local step was recorded."""
        return trained_copy(self._recorded)

    @property
    def value_range(self) -> Range:
        """Smallest and largest input value; [0, 1] if all inputs lie inside."""
        inputs, _ = self._uses()
        low, high = float(inputs.min()), float(inputs.max())
        return ZERO_TO_ONE if low >= 0 and high <= 1 else (low, high)

    def reading(
        self,
        *,
        public: Values | None = None,
        public_labels: Values | None = None,
        value_range: Range | None = None,
        labels: bool = True,
    ) -> Reading:
        """Return the recorded update as a reading (observed update) for `api.attack`. Raises `BenchError` with all
        facts that no attack simulates.

        - `public` (example, *shape), `public_labels` (example,): public examples; None gives a uniform grey example.
        - `value_range`: smallest and largest possible input; None: [0, 1], or the range of trained and public inputs.
        - `labels`: True grants the true labels to the attacker."""
        if not self.explained:
            raise BenchError(f"the recording {self.line}")
        inputs, truth = self.truth
        if self._recorded.private is not None:
            return self._first_private(inputs, truth, public, public_labels, value_range, labels)
        local = self._protocol()[0]
        granted = truth if labels and local.count * local.step_batch % len(truth) == 0 and not local.ragged else None
        return reading(
            before=self._recorded.before,
            after=self._sent or self._recorded.after,
            local=local,
            model=trained_copy(self._recorded).eval(),
            shape=tuple(inputs.shape[1:]),
            classes=self._recorded.classes,
            value_range=value_range or self._range_with(public),
            labels=granted,
            public=public,
            public_labels=public_labels,
            defense=self.defense,
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences that compare ε of Opacus' privacy engine with the valid ε; empty without an engine."""
        if self._recorded.private is None or self._engine is None:
            return ()
        sizes = {len(step.inputs) for step in self._recorded.steps}
        poisson = len(sizes) > 1 or len(self._recorded.steps) == 1
        return (spent(self._recorded, self._engine, poisson=poisson),)

    def _private(self) -> PrivateStep:
        self._uses()
        return private_step(self._recorded)

    def _first_private(
        self,
        inputs: Tensor,
        truth: Tensor,
        public: Values | None,
        public_labels: Values | None,
        value_range: Range | None,
        labels: bool,
    ) -> Reading:
        step = self._private()
        self.defense = step.defense
        return reading(
            step.gradients,
            model=plain_copy(trained_copy(self._recorded)),
            shape=tuple(inputs.shape[1:]),
            classes=self._recorded.classes,
            batch=len(inputs),
            value_range=value_range or self._range_with(public),
            labels=truth if labels else None,
            public=public,
            public_labels=public_labels,
            defense=step.defense,
        )

    def _range_with(self, public: Values | None) -> Range:
        low, high = self.value_range
        if public is None:
            return low, high
        known = tensor(public, "public")
        return min(low, float(known.min())), max(high, float(known.max()))

    def _uses(self) -> tuple[Tensor, Tensor]:
        """All used inputs and labels in order, an example of two epochs twice."""
        steps = self._recorded.steps
        targets = [step.targets for step in steps if step.targets is not None]
        if not steps or len(targets) < len(steps):
            raise BenchError(f"the recording {self.line}")
        return torch.cat([step.inputs for step in steps]).float(), torch.cat(targets)

    def _protocol(self) -> tuple[SGD, Tensor]:
        """The declared local training, and the positions of the distinct examples among all uses."""
        inputs, _ = self._uses()
        sizes, optimizer = [len(step.inputs) for step in self._recorded.steps], self._recorded.optimizer
        assert optimizer is not None
        group = optimizer.param_groups[0]
        options: dict[str, Any] = {name: float(group.get(name, 0)) for name in ("momentum", "weight_decay")}
        lr = self._recorded.steps[0].rates[0]
        first: dict[bytes, int] = {}
        for at, each in enumerate(inputs):
            first.setdefault(_key(each), at)
        distinct = len(first)
        for examples in (distinct, len(inputs)):
            where = torch.tensor(list(first.values())) if examples == distinct else torch.arange(len(inputs))
            if bool((where != torch.arange(len(where))).any()):
                continue  # a repeated example inside the first epoch
            batch, epochs = min(sizes[0], examples), sum(sizes) // examples
            if len(set(sizes)) == 1 and (examples % batch == 0 or len(sizes) == 1):
                return SGD(lr=lr, batch=batch, steps=len(sizes), examples=examples, **options), where
            epoch = [batch] * (examples // batch) + ([examples % batch] if examples % batch else [])
            if sizes == epoch * epochs:
                return SGD(lr=lr, batch=batch, epochs=epochs, examples=examples, **options), where
        raise BenchError(f"batches of {_some(sizes)} examples: no attack simulates local steps of different size")

    def _check(self) -> tuple[float | None, tuple[str, ...]]:
        if self._checked is None:
            self._checked = self._replay()
        return self._checked

    def _replay(self) -> tuple[float | None, tuple[str, ...]]:
        record = self._recorded
        seen = list(record.seen)
        module = trained_copy(record)
        assert record.optimizer is not None
        seen += _of_optimizer(record)
        if any(step.targets is None or step.targets.dim() != 1 for step in record.steps):
            return None, tuple(seen)
        group = record.optimizer.param_groups[0]
        optimizer = torch.optim.SGD(
            [value for value in module.parameters() if value.requires_grad],
            lr=record.steps[0].rates[0],
            momentum=group.get("momentum", 0.0),
            weight_decay=group.get("weight_decay", 0.0),
        )
        for number, step in enumerate(record.steps):
            optimizer.zero_grad()
            with torch.enable_grad():
                try:
                    F.cross_entropy(module(step.inputs), step.targets.long()).backward()  # type: ignore[union-attr]
                except (RuntimeError, ValueError, IndexError):  # targets of another loss
                    return None, tuple(seen)
            if number == 0:
                seen += _of_gradient(record, module)
            optimizer.step()
        after = module.state_dict()
        floats = [name for name, value in record.before.items() if value.is_floating_point()]
        gap, moved = (
            sqrt(sum(float((a[name].double() - b[name].double()).square().sum()) for name in floats))
            for a, b in ((after, record.after), (record.before, record.after))
        )
        if moved == 0:
            raise BenchError("the weights before and after the recorded steps are equal; no update was sent")
        if gap / moved <= EXPLAINED:
            try:
                self._protocol()
            except BenchError as error:
                return None, (*seen, str(error))
            seen = [fact for fact, never in record.seen.items() if never]
        return gap / moved, tuple(seen)


@contextmanager
def recording(model: nn.Module, optimizer: torch.optim.Optimizer, *, engine: Any = None) -> Iterator[Recording]:
    """Record a client's training inside a `with` statement, for attacks on its update; hooks record without changing
    the training. The statement gives a `Recording`, for example `sent`: `sent.line` says if the recorded steps explain
    the update, `sent.reading()` makes the reading (observed update), `sent.truth` holds the true examples.

    - `model`, `optimizer`: the trained module and its optimizer; the loss is a function or module of torch. With
      Opacus, both come from `make_private`, and the first step is the reading.
    - `engine`: Opacus' `PrivacyEngine`, whose ε is compared; None: no comparison.

    Raises `BenchError` for an optimizer without parameters of the model."""
    held = {id(value) for value in model.parameters()}
    if not any(id(value) in held for group in optimizer.param_groups for value in group["params"]):
        raise BenchError("the optimizer has no parameter of the model; give the optimizer that trains the model")
    with recorder(model, optimizer) as recorded:
        made = Recording.of(recorded)
        made._engine = engine
        yield made


def _of_optimizer(record: Recorded) -> Iterator[str]:
    optimizer = record.optimizer
    if type(optimizer) is not torch.optim.SGD:
        yield f"the optimizer {type(optimizer).__name__}"
        return
    groups = optimizer.param_groups
    for name, plain in _PLAIN_SGD.items():
        if any(group.get(name, plain) != plain for group in groups):
            yield f"SGD with {name}"
    if any(group.get(name, 0) != groups[0].get(name, 0) for group in groups for name in ("momentum", "weight_decay")):
        yield "parameter groups with different options"
    rates = [rate for step in record.steps for rate in step.rates]
    if min(rates) != max(rates):
        yield f"learning rates from {min(rates):g} to {max(rates):g}"


def _of_gradient(record: Recorded, module: nn.Module) -> Iterator[str]:
    """Yield how the first step's gradient differs from its replay in `module`."""
    pairs = [
        (record.first_gradient[name].double().flatten(), value.grad.double().flatten())
        for name, value in module.named_parameters()
        if value.grad is not None and name in record.first_gradient
    ]
    if not pairs:
        return
    used, own = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    scale = float(used.norm() / own.norm().clamp_min(1e-300))
    cosine = float(F.cosine_similarity(used, own, dim=0))
    if cosine > 1 - 1e-6 and abs(scale - 1) > 1e-4:
        several = f" over {record.steps[0].passes} passes" if record.steps[0].passes > 1 else ""
        yield (
            f"the first step's gradient is {scale:.4g} times the gradient of the mean loss{several}: clipping, a loss "
            "scale or a sum over the batch"
        )
    elif cosine <= 1 - 1e-6:
        yield f"the first step's gradient has cosine {cosine:.4f} with the gradient of the mean cross entropy"


def _key(example: Tensor) -> bytes:
    return example.contiguous().numpy().tobytes()


def _some(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:4])) + (", …" if len(sizes) > 4 else "")
