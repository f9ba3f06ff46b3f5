"""A recorded training as a declared protocol: local steps, a replay, and a reading with its true examples."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.attacks.objective.mismatch import mean_observation, observations
from bench.errors import BenchError, NotApplicable
from bench.own.coerce import ZERO_TO_ONE, Range, Values, tensor
from bench.own.copies import plain_copy
from bench.own.criterion import Loss
from bench.own.fitted import fitted
from bench.own.given import reading
from bench.own.local import SGD
from bench.own.losses import declared, two_logits
from bench.own.noisy import undeclared
from bench.own.private import PrivateStep, private_step, spent
from bench.own.recording import FURTHER_TERMS, Recorded, recorder, trained_copy
from bench.own.replay import replayed
from bench.own.steps import (
    Twin,
    backward,
    distance,
    factor,
    facts_of_gradient,
    facts_of_optimizer,
    flat,
    local_training,
    shortest,
    times,
)
from bench.sanitize import first_line
from bench.training import cross_entropy, declare, loss_of
from bench.trip import Reading

EXPLAINED = 1e-6  # largest distance between the update and its replay, relative to the update
_ROUNDED = 0.02  # the same for a training in 16-bit numbers
_ALIKE = 0.02  # largest relative difference of gradients between training mode and an attack's mode


class Recording:
    """A client's training, recorded by hooks in the `with` statement of `recording`. Read the properties after this
    statement."""

    def __init__(self) -> None:
        self._recorded = Recorded()
        self._checked: tuple[float | None, tuple[str, ...]] | None = None
        self._batch_statistics = False
        self._factor = 1.0
        self._more: dict[str, Any] = {}
        self._own_statistics = True
        self._noise_found: Mapping[str, Any] | None = None
        self._noise_sought = False
        self._sent: Mapping[str, Tensor] | None = None
        self._engine: Any = None
        self.defense: Any = None
        """Declared defense between training and message, as in `api.reading`; None: no defense is known."""

    @staticmethod
    def of(recorded: Recorded) -> "Recording":
        """Make a `Recording` from `recorded`, the data that `bench.own.recording.recorder` collected in a finished
        training."""
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
        """True if the recorded steps, computed again, give the update to a relative error of 1e-6 (0.02 under
        autocast), or up to Gaussian noise; with Opacus, if clip and described noise explain the first step."""
        if self._recorded.private is not None:
            return self._private().explained
        return self._fits(self._check()) or self._noise() is not None

    @property
    def inside(self) -> str | None:
        """Warning for attacks inside the client (type-2) on a training that the recorded steps do not explain: a
        sentence that names the parts of the training, such as further loss terms, without which the model was attacked.
        None: nothing is known to be left out."""
        if self.explained or self._recorded.private is not None:
            return None
        if FURTHER_TERMS in self._recorded.seen:
            return "The loss has further terms: inside the client, only the recorded term was attacked."
        if any(self._recorded.seen.values()):
            return f"Inside the client, the model was attacked without this: {'; '.join(self.seen)}."
        return None

    @property
    def line(self) -> str:
        """Result of the recording's check as a line of text: whether the recorded steps explain the update."""
        if self._recorded.private is not None:
            step = self._private()
            return f"{'explains' if step.explained else 'does not explain'} what was sent: {step.line}"
        sizes = [len(step.inputs) for step in self._recorded.steps]
        what = f"{len(sizes)} local steps on {sum(sizes)} examples" if sizes else "no local step"
        if (noise := self._noise()) is not None:
            deviation = noise["variance"] ** 0.5
            known = f"Gaussian noise of deviation {deviation:.3g}, known to the attacker"
            return f"explains what was sent up to {known}: {what}"
        if self.explained:
            rounded = "" if self._recorded.autocast is None else ", in 16-bit numbers"
            return f"explains what was sent: {what}, replayed{rounded} with a relative error of {self.error:.1g}"
        error = "" if self.error is None else f", relative error {self.error:.2g}"
        seen = "; ".join(self.seen) or "nothing known that explains the difference"
        return f"does not explain what was sent: {what}{error}; seen: {seen}"

    @property
    def loss(self) -> Loss | None:
        """Loss of the training, as the argument `loss` of `api.reading`; None: the mean cross entropy."""
        self._check()
        return self._loss()

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
        """Examples that the client did not train on, seen in forward passes such as a validation: inputs (example,
        *shape) and labels (example,). An assessment uses them as public data of the attacker. Both are None without
        such a pass; the labels are None if a pass had no loss."""
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
        """Number of classes: the number of logits, or 2 for a single logit."""
        return self._recorded.classes

    def at_start(self) -> nn.Module:
        """Return a copy of the trained model as the client had it before the training: the same weights, each layer in
        its recorded mode (training or eval). Raises `BenchError` if no local step was recorded."""
        return trained_copy(self._recorded)

    def for_attacks(self) -> nn.Module:
        """Return the model to attack: a copy at the weights before the training, in eval mode (or with batch
        statistics, if the training needs them), with the recorded loss stored by `bench.training.declare`. Raises
        `BenchError` if no local step was recorded."""
        self._check()
        return self._for_attacks(self._batch_statistics)

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
        return self._reading(
            local,
            value_range=value_range or self._range_with(public),
            labels=granted,
            public=public,
            public_labels=public_labels,
            defense=self.defense if self.defense is not None else self._noise(),
        )

    def _reading(self, local: SGD, **more: Any) -> Reading:
        return reading(
            before=self._recorded.before,
            after=self._after(),
            local=local,
            model=trained_copy(self._recorded) if self._batch_statistics else trained_copy(self._recorded).eval(),
            shape=tuple(self._recorded.steps[0].inputs.shape[1:]),
            classes=self._recorded.classes,
            loss=self._loss(),
            batch_statistics=self._batch_statistics,
            **more,
        )

    def _noise(self) -> Mapping[str, Any] | None:
        """Gaussian noise on the update that the recorded steps leave unexplained, as a declared defense; None: no such
        noise."""
        if not self._noise_sought:
            self._noise_sought = True
            error, _ = self._check()
            never = any(self._recorded.seen.values())
            if self.defense is None and error is not None and error > self._least and not never:
                with suppress(BenchError, NotApplicable):
                    made = self._reading(self._protocol()[0], value_range=self.value_range)
                    inputs, labels = (each[None] for each in self.truth)
                    observed = mean_observation(observations(made))
                    self._noise_found = undeclared(made, observed, replayed(made, inputs, labels))
        return self._noise_found

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
            loss=self._loss(),
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
        targets = [step.labels for step in steps if step.labels is not None]
        if not steps or len(targets) < len(steps):
            raise BenchError(f"the recording {self.line}")
        return torch.cat([step.inputs for step in steps]).float(), torch.cat(targets)

    def _protocol(self) -> tuple[SGD, Tensor]:
        """The declared local training, and the positions of the distinct examples among all uses."""
        inputs, _ = self._uses()
        sizes = [len(step.inputs) for step in self._recorded.steps]
        rule, options = self._training()
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
                return rule(batch=batch, steps=len(sizes), examples=examples, **options), where
            epoch = [batch] * (examples // batch) + ([examples % batch] if examples % batch else [])
            if sizes == epoch * epochs:
                return rule(batch=batch, epochs=epochs, examples=examples, **options), where
        raise BenchError(f"batches of {_some(sizes)} examples: no attack simulates local steps of different size")

    def _check(self) -> tuple[float | None, tuple[str, ...]]:
        if self._checked is None:
            self._checked = plain = self._replay()
            used = self._factor
            for more in self._further() if plain[0] is not None and not self._fits(plain) else ():
                self._more = more
                found = self._replay()
                if self._fits(found):
                    self._checked = found
                    return found
            self._more, self._factor = {}, used
        return self._checked

    def _fits(self, checked: tuple[float | None, tuple[str, ...]]) -> bool:
        error, seen = checked
        return error is not None and error <= self._least and not seen

    @property
    def _least(self) -> float:
        return EXPLAINED if self._recorded.autocast is None else _ROUNDED

    def _training(self) -> tuple[type[SGD], dict[str, Any]]:
        rule, options = local_training(self._recorded)
        if more := self._more.get("weight_decay"):  # a term of the loss, next to the optimizer's decay
            options["weight_decay"] += more
            options |= {"decays": {name: value + more for name, value in options.get("decays", {}).items()}}
        return rule, options | {name: value for name, value in self._more.items() if name != "weight_decay"}

    def _further(self) -> Iterator[dict[str, Any]]:
        """Yield options of local steps that the optimizer does not show: clipping, and weights of further terms of the
        loss."""
        record = self._recorded
        clip = shortest(record)
        clipped = {} if clip is None else {"clip": clip}
        if clipped:
            yield clipped
        if FURTHER_TERMS in record.seen and not any(record.seen.values()):
            for name in ("proximal", "weight_decay"):
                value = fitted(partial(self._gap, clipped, name), self._least * self._moved())
                if value:
                    yield clipped | {name: value}

    def _moved(self) -> float:
        record = self._recorded
        return distance(record.before, record.after, record.trained)

    def _gap(self, more: dict[str, Any], name: str, value: float) -> Tensor:
        """Difference between replayed and recorded weights, (coordinate,), with the number `value` as option `name`."""
        self._more = more | {name: value}
        module = self._retrained()[0]
        names = sorted(self._recorded.trained)
        return torch.cat(
            [(module.get_parameter(each) - self._recorded.after[each]).detach().double().flatten() for each in names]
        )

    def _after(self) -> dict[str, Tensor]:
        """The sent weights; buffers only if the recorded steps give them: a validation in training mode moves them."""
        after = dict(self._sent or self._recorded.after)
        if self._own_statistics:
            return after
        buffers = {name for name, _ in trained_copy(self._recorded).named_buffers()}
        return after | {name: value for name, value in self._recorded.before.items() if name in buffers}

    def _loss(self) -> Loss | None:
        record = self._recorded
        if self._factor == 1:
            return record.loss
        plain = declared(record.loss, record.classes, one_logit=record.one_logit) or cross_entropy
        return partial(times, self._factor, plain)

    def _for_attacks(self, batch_statistics: bool) -> nn.Module:
        module = plain_copy(self.at_start(), batch_statistics=batch_statistics)
        return self._with_loss(module, batch_statistics=batch_statistics)

    def _with_loss(self, module: nn.Module, *, batch_statistics: bool = False) -> nn.Module:
        """Declare the recorded loss in `module`, a copy of the model, and return the module."""
        record = self._recorded
        if record.one_logit:
            module.register_forward_hook(two_logits)
        loss = declared(self._loss(), record.classes, one_logit=record.one_logit)
        declare(module, loss=loss, batch_statistics=batch_statistics)
        return module

    def _replay(self) -> tuple[float | None, tuple[str, ...]]:
        record = self._recorded
        seen = [*record.seen, *facts_of_optimizer(record)]
        if any(step.labels is None for step in record.steps):
            trained_copy(record)
            return None, tuple(seen)
        try:
            module, facts = self._retrained()
        except (RuntimeError, ValueError, IndexError) as error:
            return None, (*seen, first_line(error))
        seen += facts
        after = module.state_dict()
        buffers = {name for name, _ in module.named_buffers()}
        weights = [name for name in record.before if name not in buffers]
        gap, moved = (distance(a, record.after, weights) for a in (after, record.before))
        self._own_statistics = distance(after, record.after, buffers & set(after)) <= EXPLAINED * (1 + moved)
        if moved == 0:
            raise BenchError("the weights before and after the recorded steps are equal; no update was sent")
        if gap / moved <= self._least:
            try:
                self._protocol()
            except BenchError as error:
                return None, (*seen, str(error))
            seen = [fact for fact, never in record.seen.items() if never]
        return gap / moved, tuple(seen)

    def _retrained(self) -> tuple[nn.Module, list[str]]:
        """Train a copy of the model by the recorded steps; return the copy and facts about the first gradient."""
        record, facts, self._factor = self._recorded, list[str](), 1.0
        module = self._with_loss(self.at_start())
        twin = Twin(record, *self._training(), module)
        for number, step in enumerate(record.steps):
            twin.zero_grad()
            backward(module, step, record)
            if number == 0:
                self._factor = factor(record, module, clipped="clip" in self._more)
                if self._factor != 1:
                    declare(module, loss=partial(times, self._factor, loss_of(module)), batch_statistics=False)
                    for value in module.parameters():
                        value.grad = value.grad if value.grad is None else self._factor * value.grad
                facts += facts_of_gradient(record, module)
                facts += () if any(record.seen.values()) else self._mode(module)
            twin.step()
        return module, facts

    def _mode(self, module: nn.Module) -> Iterator[str]:
        """Choose the mode in which attacks run the model, by the first step's gradient: without batch statistics, or
        with them and own layers in training mode. `module` has the gradient of the recorded modes. Yield a fact if
        neither gives this gradient."""
        record = self._recorded
        true = flat(module)
        for batch_statistics in (False, True):
            copied = self._for_attacks(batch_statistics)
            with suppress(RuntimeError, ValueError):
                backward(copied, record.steps[0], record)
                if float((flat(copied) - true).norm()) <= _ALIKE * float(true.norm()):
                    self._batch_statistics = batch_statistics
                    return
        fact = "a model that computes otherwise in training mode than in eval mode"
        record.saw(fact, never=True)
        yield fact


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


def _key(example: Tensor) -> bytes:
    return example.contiguous().numpy().tobytes()


def _some(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes[:4])) + (", …" if len(sizes) > 4 else "")
