"""A gradual version of a plug-in's hard decisions, measured on the coordinates of a candidate's gradient.

A sign, a rounding or a mask decides each coordinate by its value.  The outputs of coordinates with similar values,
averaged, change gradually with the value; their regression line gives the derivative."""

import torch
from torch import Tensor

from bench.rows import rows
from bench.trip import Tensors

_EXPLAINED = 0.5  # least share of the outputs' energy which averages explain, for a decision by coordinate
_TRIAL = 0.05  # width of that trial
_LEAST = 2  # neighbours on each side


def by_coordinate(before: Tensors, after: Tensors, lead: int) -> bool:
    """Test whether a transform decides on each coordinate by the coordinate's value, as a sign or a rounding does; such
    a transform can be smoothed by `gradual`. The result is True if averages over coordinates with similar inputs
    explain at least half of the outputs' squares. `before` are the transform's inputs and `after` its outputs, both
    name → (*lead, *shape), with `lead` leading axes (such as client and example)."""
    unexplained = energy = 0.0
    for name, tensor in before.items():
        inputs, outputs = rows(tensor, lead).double(), rows(after[name], lead).double()
        means, _ = _local_lines(inputs, outputs, _TRIAL)
        unexplained += float((outputs - means).square().sum())
        energy += float(outputs.square().sum())
    return unexplained <= (1 - _EXPLAINED) * energy


def gradual(before: Tensors, after: Tensors, lead: int, width: float) -> dict[str, Tensor]:
    """Smooth a transform with hard decisions (such as a sign): return local averages of its outputs, name → (*lead,
    *shape), differentiable in its inputs.

    - `before`, `after`: the transform's inputs and outputs, name → (*lead, *shape).
    - `lead`: number of leading axes, such as client and example.
    - `width`: relative width of the averages.

    A coordinate's average is over the coordinates with nearest input values in the same tensor and row (client or
    example): a share `width`/(1 + `width`) of all coordinates, half on each side. The derivative is the slope of the
    regression line through these coordinates."""
    made = {}
    for name, tensor in before.items():
        with torch.no_grad():
            means, slopes = (
                value.to(tensor).reshape(tensor.shape)
                for value in _local_lines(rows(tensor, lead).double(), rows(after[name], lead).double(), width)
            )
        made[name] = means + slopes * (tensor - tensor.detach())
    return made


def _local_lines(inputs: Tensor, outputs: Tensor, width: float) -> tuple[Tensor, Tensor]:
    """Return the mean output and the slope of a regression line around each coordinate, both (*lead, coordinate).
    `inputs` and `outputs` have the same shape; `width` sets the share of coordinates in a line."""
    count = inputs.shape[-1]
    reach = max(_LEAST, round(count * width / (1 + width) / 2))
    order = inputs.argsort(dim=-1, stable=True)
    x, y = inputs.gather(-1, order), outputs.gather(-1, order)
    x = x - x.mean(-1, keepdim=True)
    place = torch.arange(count, device=inputs.device)
    low, high = (place - reach).clamp_min(0), (place + reach + 1).clamp_max(count)
    size = (high - low).to(x)

    def mean(values: Tensor) -> Tensor:
        sums = torch.nn.functional.pad(values.cpu().cumsum(-1).to(values), (1, 0))  # on CUDA not repeatable
        return (sums[..., high] - sums[..., low]) / size

    mean_x, mean_y = mean(x), mean(y)
    spread = (mean(x * x) - mean_x.square()).clamp_min(0)
    slope = (mean(x * y) - mean_x * mean_y) / spread.clamp_min(torch.finfo(x.dtype).tiny)
    slope = slope.where(spread > torch.finfo(x.dtype).eps * mean(x * x), 0.0)
    line = mean_y + slope * (x - mean_x)
    return torch.zeros_like(x).scatter(-1, order, line), torch.zeros_like(x).scatter(-1, order, slope)
