"""Decompose a reading into candidates' gradients by nonnegative least squares."""

from dataclasses import dataclass

import torch
from scipy.optimize import nnls
from torch import Tensor

_RIDGE = 1e-8  # relative to the Gram matrix's diagonal, 1
_ABOUT = (0.5, 2.0)  # times 1/B: coefficients of the candidates taken first
_FEW = 2  # values per candidate
_TINY = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """Gradients of the granted candidates, prepared for fits by nonnegative least squares: a reading (the observed
    update) of a batch is approximated as a combination of these gradients. `scores` then tells the candidates behind
    the reading."""

    gradients: Tensor
    """Gradients of the candidates (candidate, value); values left out by the mask `shown` of the method `of` are 0."""
    norms: Tensor
    """Norm of each candidate's gradient (candidate,)."""
    root: Tensor
    """Lower Cholesky factor (candidate, candidate) of the Gram matrix of normalised gradients."""

    @classmethod
    def of(cls, gradients: Tensor, shown: Tensor | None = None) -> "Basis":
        """Prepare candidates' gradients for least-squares fits to a reading (the observed update).

        - `gradients` (candidate, value): gradients as vectors.
        - `shown` (value,): mask of the values that count in the fit; None keeps all values.

        If the mask leaves few values per candidate, the Gram matrix is nearly singular, so products are taken in
        float64."""
        few = shown is not None and int(shown.sum()) < _FEW * len(gradients)
        gradients = gradients if shown is None else gradients * shown
        norms = torch.linalg.vector_norm(gradients, dim=1).double().clamp_min(_TINY)
        values = gradients[:, shown].double() if shown is not None and few else gradients
        gram = (values @ values.T).double() / norms / norms[:, None]
        return cls(gradients=gradients, norms=norms, root=_root(gram))


def _root(gram: Tensor) -> Tensor:
    """Return the lower Cholesky factor of a Gram matrix plus a small ridge. If rounding makes the matrix indefinite
    (gradients in a few directions), its eigenvalues are raised to the ridge."""
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(gram + _RIDGE * torch.eye(len(gram), dtype=gram.dtype))
    if not failed:
        return lower
    values, vectors = torch.linalg.eigh(gram)
    upper: Tensor = torch.linalg.qr(values.clamp_min(_RIDGE).sqrt()[:, None] * vectors.T, mode="r").R
    return upper.T


def scores(basis: Basis, observed: Tensor, examples: int) -> Tensor:
    """Estimate the set of examples behind a reading (the observed update) among candidates. Return a score per
    candidate, (candidate,): above 1 for candidates in the estimated set, in [0, 1) for all others.

    - `basis`: the candidates' gradients.
    - `observed` (value,): the reading, a mean gradient over the set.
    - `examples`: size B of the set.

    Candidates join the set one by one. First come candidates with a least-squares coefficient near 1/B, their true
    coefficient in a mean over B examples. (Much larger or smaller coefficients fit noise.) Then the candidate joins
    that lowers the remainder most, until the set has B members. The remainder is `observed` minus the members'
    gradients divided by B."""
    gradients, norms, root = basis.gradients, basis.norms, basis.root
    products = (gradients @ observed).double() / norms
    target = torch.linalg.solve_triangular(root, products[:, None], upper=False)[:, 0]
    coefficients = torch.from_numpy(nnls(root.T.numpy(), target.numpy(), maxiter=20 * len(root))[0])
    share = coefficients / norms * examples
    sure = coefficients * ((share > _ABOUT[0]) & (share < _ABOUT[1]))
    scored = torch.zeros_like(coefficients)
    left = observed.double()
    chosen = [int(at) for at in sure.topk(min(examples, len(sure))).indices if sure[at] > 0]
    for at in chosen:
        scored[at] = 2 + coefficients[at]
        left = left - gradients[at].double() / examples
    for step in range(examples - len(chosen)):
        gain = 2 * gradients.double() @ left / examples - (norms / examples) ** 2
        gain[scored > 0] = -torch.inf
        at = int(gain.argmax())
        scored[at] = 2 - (step + 1) / (examples + 1)
        left = left - gradients[at].double() / examples
    gain = 2 * gradients.double() @ left / examples - (norms / examples) ** 2
    return scored.where(scored > 0, gain.argsort().argsort() / len(gain))
