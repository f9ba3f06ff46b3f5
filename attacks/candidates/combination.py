"""Of which candidates' gradients is a reading the mean?  By non-negative least squares."""

from dataclasses import dataclass

import torch
from scipy.optimize import nnls
from torch import Tensor

_RIDGE = 1e-8  # of the Gram matrix's diagonal, which is 1
_ABOUT = (0.5, 2.0)  # times 1/B, the coefficients of candidates that are taken first
_FEW = 2  # values for each candidate
_TINY = 1e-30


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """The candidates' `gradients` (candidate, value), their `norms` (candidate,), and a Cholesky factor of the Gram
    matrix of the gradients at norm 1, lower."""

    gradients: Tensor
    norms: Tensor
    root: Tensor

    @classmethod
    def of(cls, gradients: Tensor, shown: Tensor | None = None) -> "Basis":
        """Of the values that are `shown` (value,), by default all.

        Where these are hardly more than the candidates, the Gram matrix is singular but for its ridge, which rounding
        in single precision is larger than.
        """
        few = shown is not None and int(shown.sum()) < _FEW * len(gradients)
        gradients = gradients if shown is None else gradients * shown
        norms = torch.linalg.vector_norm(gradients, dim=1).double().clamp_min(_TINY)
        values = gradients[:, shown].double() if shown is not None and few else gradients
        gram = (values @ values.T).double() / norms / norms[:, None]
        return cls(gradients=gradients, norms=norms, root=_root(gram))


def _root(gram: Tensor) -> Tensor:
    """A Cholesky factor, lower, of a Gram matrix with its ridge; where rounding makes that indefinite, as of gradients
    that all lie in a few directions, of the nearest matrix whose eigenvalues are no less than the ridge."""
    lower: Tensor
    lower, failed = torch.linalg.cholesky_ex(gram + _RIDGE * torch.eye(len(gram), dtype=gram.dtype))
    if not failed:
        return lower
    values, vectors = torch.linalg.eigh(gram)
    upper: Tensor = torch.linalg.qr(values.clamp_min(_RIDGE).sqrt()[:, None] * vectors.T, mode="r").R
    return upper.T


def scores(basis: Basis, observed: Tensor, examples: int) -> Tensor:
    """Scores (candidate,) of those that one reading (value,) holds, a mean of so many examples: over 1 of as many
    candidates, of the others their rank by what each would explain of the rest, in [0, 1).

    In a mean of B every gradient has the coefficient 1/B: a faint one with far more explains noise, and one that is
    much fainter than others may have any.  So those of about 1/B are taken first, and taken off; then, one by one, the
    candidate that leaves the least.
    """
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
