"""Contracts for models: they build, draw initial weights by key, and keep examples' gradients independent."""

import copy
import warnings
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad
from torch.nn.modules.batchnorm import _BatchNorm

from bench.contracts.base import DECLARED, Contract, ContractBroken, ContractSkipped, require
from bench.contracts.situations import differing, gap
from bench.errors import NotApplicable
from bench.gradients import example_gradients, example_loss, group_gradients, one_hot
from bench.kinds.base import Kind
from bench.kinds.known import KINDS
from bench.models.base import Model

CLASSES = 7
CLOSE = 1e-9


def builds(model: Model) -> None:
    """Check that the model can be built and gives logits (example, class) for every kind of data that it declares, for
    batches of one and of several examples. Raises `ContractBroken` otherwise."""
    unknown = set(model.takes) - set(KINDS)
    require(bool(model.takes) and not unknown, f"takes {model.takes}; kinds of data are {', '.join(KINDS)}")
    for kind, shape, module in _modules(model):
        for count in (1, 3):
            logits = module(_inputs(kind, shape, count, torch.float32))
            got, expected = tuple(logits.shape), (count, CLASSES)
            require(got == expected, f"inputs {(count, *shape)} give {got}, expected {expected}")
            require(logits.dtype == torch.float32, f"float32 inputs give {logits.dtype}")


def initial_weights(model: Model) -> None:
    """Check that the model's initial weights are finite, have the shapes of the parameters, are equal for equal seeds,
    and differ for other seeds. Raises `ContractBroken` otherwise."""
    for _, shape, module in _modules(model):
        first = model.initial(module, 0)
        expected = {name: tuple(value.shape) for name, value in module.named_parameters()}
        got = {name: tuple(value.shape) for name, value in first.items()}
        wrong = sorted(name for name in {*expected, *got} if expected.get(name) != got.get(name))
        require(not wrong, f"initial weights of {wrong[:3]} do not fit the module")
        bad = [name for name, value in first.items() if not torch.isfinite(value).all()]
        require(not bad, f"initial weights of {bad[:1]} are not finite")
        torch.manual_seed(1)
        again = model.initial(model.build(shape, CLASSES).eval(), 0)
        name = differing(first, again)
        require(name is None, f"initial weights of {name} differ between two draws with one key")
        moved = differing(first, model.initial(module, 1)) is not None
        require(moved, "initial weights do not depend on the key")


def no_batch_statistics(model: Model) -> None:
    """Check that the model has no BatchNorm layer, whose statistics mix the examples of a batch. Raises
    `ContractBroken` otherwise."""
    for _, _, module in _modules(model):
        for path, layer in module.named_modules():
            what = f"{path} is {type(layer).__name__}, whose statistics mix the examples; use GroupNorm"
            require(not isinstance(layer, _BatchNorm), what)


def alone_in_company(model: Model) -> None:
    """Check that an example's logits do not depend on the other examples in the batch (float64, 1e-9), and that a
    forward pass changes no buffer. Raises `ContractBroken` otherwise."""
    for kind, shape, module in _modules(model, double=True):
        before = {name: value.clone() for name, value in module.named_buffers()}
        inputs = _inputs(kind, shape, 4, torch.float64)
        weights = _weights(model, module)
        together = functional_call(module, weights, (inputs,))
        for row in range(len(inputs)):
            alone = functional_call(module, weights, (inputs[row : row + 1],))
            apart = gap(alone, together[row : row + 1])
            require(apart <= CLOSE, f"logits of example {row} alone and in company differ by {apart:.1e}")
        name = differing(before, dict(module.named_buffers()))
        require(name is None, f"buffer {name} is changed by a forward pass")


def gradients(model: Model) -> None:
    """Check that each example's gradient by `bench.gradients` equals the gradient by `torch.func`, in float64. Raises
    `ContractBroken` otherwise."""
    for kind, shape, module in _modules(model, double=True):
        inputs, weights = _inputs(kind, shape, 3, torch.float64), _weights(model, module)
        targets = one_hot(torch.tensor([2, 0, 2]), CLASSES, torch.float64)
        oracle = grad(example_loss(copy.deepcopy(module)))
        try:
            gradients = example_gradients(module, weights, inputs, targets)
        except NotApplicable as reason:
            raise ContractBroken(f"no gradient is one example's: {reason}") from None
        for row in range(len(inputs)):
            expected = oracle(weights, inputs[row], targets[row])
            for name, value in expected.items():
                apart = gap(gradients[name][row], value)
                what = f"example {row}: gradient of {name} is off torch.func's by {apart:.1e}"
                require(apart <= CLOSE, what)


def gradients_flow(model: Model) -> None:
    """Check second derivatives, which attacks need: the derivative by the input of the model's gradient from
    `bench.gradients` must equal the derivative by autograd. Raises `ContractBroken` otherwise."""
    modules = [found for found in _modules(model, double=True) if found[0].differentiable]
    if not modules:
        raise ContractSkipped("no loss has a derivative to the values of its data")
    for kind, shape, module in modules:
        weights = _weights(model, module)
        targets = one_hot(torch.tensor([1, 3]), CLASSES, torch.float64)
        x = _inputs(kind, shape, 2, torch.float64).requires_grad_()
        energies = []
        for row in range(2):
            live = {name: value.clone().requires_grad_() for name, value in weights.items()}
            loss = F.cross_entropy(functional_call(module, live, (x[row : row + 1],)), targets[row : row + 1])
            first = torch.autograd.grad(loss, list(live.values()), create_graph=True, allow_unused=True)
            unused = [name for name, value in zip(live, first, strict=True) if value is None]
            require(not unused, f"{unused[:1]} has no part in the logits")
            energies.append(torch.stack([value.square().sum() for value in first]).sum())
        slope = torch.autograd.grad(torch.stack(energies).sum(), x, allow_unused=True)[0]
        flows = slope is not None and bool(slope.abs().sum() > 0)
        require(flows, "the gradient does not depend on the input")
        sent = group_gradients(module, weights, x[:, None], targets[:, None], differentiable=True)
        energy = torch.stack([value.square().sum() for value in sent.values()]).sum()
        ours = torch.autograd.grad(energy, x)[0]
        # relative to the largest: the derivatives differ by orders of magnitude
        apart = float((ours - slope).abs().max() / slope.abs().max())
        require(apart <= CLOSE, f"the gradient's derivative to the input is off autograd's by {apart:.1e}")


def _modules(model: Model, *, double: bool = False) -> Iterator[tuple[Kind, tuple[int, ...], nn.Module]]:
    """Yield (kind of data, example shape, module in eval mode) for each kind, at its smallest accepted shape. `double`
    True gives float64."""
    reasons: list[str] = []
    built = False
    for kind in (KINDS[name] for name in model.takes if name in KINDS):
        for shape, larger in pairwise((*kind.shapes, None)):  # deep models pool small pictures away
            assert shape is not None
            try:
                module = _built(model, kind, shape)
            except NotApplicable as reason:
                reasons.append(str(reason))
            except (RuntimeError, ValueError) as error:
                require(larger is not None, f"inputs {shape}: {str(error).splitlines()[0]}")
                continue
            else:
                built = True
                yield kind, shape, module.double() if double else module
            break
    if not built and reasons:
        raise ContractSkipped(f"it refuses: {reasons[0]}")


def _built(model: Model, kind: Kind, shape: tuple[int, ...]) -> nn.Module:
    """Build and try the module; raises `ValueError` or `RuntimeError` if the inputs are too small."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of layers without a single weight; so do we, below
        module = model.build(shape, CLASSES).eval()
    empty = [name for name, value in module.named_parameters() if not value.numel()]
    if empty:
        raise ValueError(f"{empty[0]} has no weight at all")
    with torch.no_grad():
        module(_inputs(kind, shape, 1, torch.float32))
    return module


def _inputs(kind: Kind, shape: tuple[int, ...], count: int, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(kind.values.draw(np.random.default_rng(2), (count, *shape))).to(dtype)


def _weights(model: Model, module: nn.Module) -> dict[str, Tensor]:
    return {name: value.double() for name, value in model.initial(module, 0).items()}


CONTRACTS = (
    DECLARED,
    Contract("builds", "logits (example, class) for every kind it takes", builds),
    Contract("initial weights", "initial weights by key, for every parameter", initial_weights),
    Contract("no batch statistics", "no layer mixes the examples", no_batch_statistics),
    Contract("alone = in company", "an example's logits are its own", alone_in_company),
    Contract("gradients", "per-example gradients equal torch.func's in float64", gradients),
    Contract("gradients flow", "a dummy receives autograd's derivatives", gradients_flow),
)
