"""The oracle approximating shrinkage (OAS) of a covariance: Chen, Wiesel, Eldar, Hero, IEEE TSP 2010."""

from __future__ import annotations

import torch
from torch import Tensor

# The share is below 1, so that the shrunk matrix keeps the directions of the covariance.
MAX_SHARE = 0.99


def oas_share(trace: Tensor, square: Tensor, freedom: Tensor | float, dim: int) -> Tensor:
    r"""ρ in (1 − ρ) S + ρ (tr S / D) I, for a covariance S of Gaussian rows; of any shape.

        ρ = ((1 − 2/D) tr S² + tr² S) / ((f + 1 − 2/D) (tr S² − tr² S / D))

    Parameters
    ----------
    trace, square : Tensor
        tr S and tr S².
    freedom : Tensor or float
        f, degrees of freedom of S.
    dim : int
        D.

    Examples
    --------
    >>> values = torch.tensor([3.0, 1.0])
    >>> oas_share(values.sum(), values.square().sum(), 100.0, 2)
    tensor(0.0800)
    """
    apart = (freedom + 1 - 2 / dim) * (square - trace.square() / dim)
    share = ((1 - 2 / dim) * square + trace.square()) / apart.clamp(min=torch.finfo(trace.dtype).tiny)
    return share.clamp(max=MAX_SHARE)
