r"""FactorGaussian: a batch of normal distributions with covariance FᵀF + a·I + b·11ᵀ (eq. 9-10).

The paper's shrunk covariance has exactly this form, so it is never built: sampling is one product with F and a cheap
isotropic part, solving is Woodbury's identity. `dense()` is there for tests and small problems.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from fewcal._utils.bfloat16 import half_pays
from fewcal._utils.randomness import TaskRandom
from fewcal.errors import FewcalWarning, InputError

# Numbers drawn at a time on a CPU, whose cache holds them between noise and product. It fixes the random stream.
CHUNK_NUMBERS = 1 << 20
# Rows that a compressed factor may have, and the largest share of a direction's variance that is spread evenly: half
# precision takes as much.
RANKS = tuple(range(32, 128, 16))
MAX_SPREAD_SHARE = 2e-3
# Below this many products, n·P·D, compression saves nothing.
MIN_COMPRESSED_PRODUCTS = 1 << 22
# b stays this far inside the interval where the covariance has an inverse.
CLIP_MARGIN = 1e-3


@dataclass(frozen=True, eq=False)
class FactorGaussian:
    """Normal distributions N(mean, FᵀF + a·I + b·11ᵀ) over a batch of any shape `B`.

    Attributes
    ----------
    mean : Tensor (*B, D)
    factor : Tensor (*B, P, D)
        F; P may be 0, leading dimensions may be expanded views, and it may be in half precision.
    a : Tensor (*B) or None
        Weight of the unit matrix, ≥ 0. `None` means that it is zero everywhere, which saves the isotropic noise.
    b : Tensor (*B)
        Weight of the all-ones matrix, a + b·D ≥ 0.

    Examples
    --------
    >>> g = FactorGaussian(torch.zeros(2), torch.tensor([[1.0, 0.0]]), torch.tensor(1.0), torch.tensor(0.5))
    >>> g.dense()
    tensor([[2.5000, 0.5000],
            [0.5000, 1.5000]])
    >>> g.sample(3, 0).shape
    torch.Size([3, 2])
    """

    mean: Tensor
    factor: Tensor
    a: Tensor | None
    b: Tensor

    @property
    def dim(self) -> int:
        """D."""
        return int(self.mean.shape[-1])

    def __getitem__(self, at: slice | tuple[slice, ...]) -> FactorGaussian:
        """Some of the distributions, by slices of the batch dimensions."""
        return FactorGaussian(self.mean[at], self.factor[at], None if self.a is None else self.a[at], self.b[at])

    def dense(self) -> Tensor:
        """The covariance matrices `(*B, D, D)`."""
        eye = torch.eye(self.dim, dtype=self.mean.dtype, device=self.mean.device)
        factor = self.factor.to(self.mean.dtype)
        return factor.mT @ factor + self._a()[..., None, None] * eye + self.b[..., None, None]

    def _a(self) -> Tensor:
        return torch.zeros_like(self.b) if self.a is None else self.a

    # ---- sampling ---------------------------------------------------------------------------------------------------

    def sample(self, n: int, random: TaskRandom | torch.Generator | int, out: Tensor | None = None) -> Tensor:
        """Draw `n` points from each distribution, `(*B, n, D)` (eq. 10), into `out` where it is given.

        With a `TaskRandom` the first batch dimension is the tasks' and each task draws from its own stream.
        """
        if n < 1:
            raise InputError(f"n={n} must be at least 1")
        batch = self.mean.shape[:-1]
        if isinstance(random, TaskRandom):
            if batch[0] != len(random):
                raise InputError(f"{len(random)} random streams for {batch[0]} tasks")
            tasks = len(random)
        else:  # one stream for everything
            seed, generator = (random, None) if isinstance(random, int) else (0, random)
            random, tasks = TaskRandom(seed, device=self.mean.device), 1
            if generator is not None:
                random.generators = [generator]
        shape, d, p = (*batch, n, self.dim), self.dim, self.factor.shape[-2]
        result = torch.empty(shape, dtype=self.mean.dtype, device=self.mean.device) if out is None else out
        if result.shape != shape:
            raise InputError(f"out has shape {tuple(result.shape)}, expected {shape}")
        each = math.prod(batch) // tasks
        points = result.view(tasks, each, n, d)
        flat = FactorGaussian(
            self.mean.reshape(tasks, each, d),
            self.factor.expand(*batch, p, d).reshape(tasks, each, p, d),
            None if self.a is None else self.a.reshape(tasks, each),
            self.b.reshape(tasks, each),
        )
        if points.is_cuda:
            flat._draw(points, random)
            return result
        some, rows = max(1, CHUNK_NUMBERS // (n * max(p, d))), max(1, CHUNK_NUMBERS // max(p, d))
        for t in range(tasks):
            own = random.part(slice(t, t + 1))
            for begin in range(0, each, some):
                at = (slice(t, t + 1), slice(begin, begin + some))
                for part in points[at].split(rows, dim=2):
                    flat[at]._draw(part, own)
        return result

    def _draw(self, out: Tensor, random: TaskRandom) -> None:
        """Points into `out (T, S, n, D)`: the mean, noise with covariance a·I + b·11ᵀ, and G·F, G standard normal.

        The root of a·I + b·11ᵀ is r·I + s·11ᵀ with r = √a and s = (√(a+bD) − √a)/D.
        """
        mean, p = self.mean[..., None, :], self.factor.shape[-2]
        if self.a is None:  # one number a point suffices
            shift = random.normal(*out.shape[1:-1], 1, dtype=out.dtype) * self.b.clamp(min=0).sqrt()[..., None, None]
            torch.add(mean, shift, out=out)
        else:
            r = self.a.clamp(min=0).sqrt()
            s = ((self.a + self.b * self.dim).clamp(min=0).sqrt() - r) / self.dim
            random.fill_normal(out)
            shift = out.sum(dim=-1, keepdim=True) * s[..., None, None]
            torch.addcmul(shift, out, r[..., None, None], out=out)
            out.add_(mean)
        if not p:
            return
        latent = random.normal(*out.shape[1:-1], p, dtype=out.dtype).flatten(0, 1)
        factor = self.factor.bfloat16() if half_pays(self.factor) else self.factor
        if factor.dtype == out.dtype:
            out.view(-1, *out.shape[2:]).baddbmm_(latent, factor.flatten(0, 1))
        else:
            out.add_(torch.bmm(latent.to(factor.dtype), factor.flatten(0, 1)).view(out.shape))

    def compressed(self, axes: tuple[Tensor, Tensor], n: int) -> FactorGaussian:
        """The same with fewer rows in F, where shrinkage outweighs FᵀF so far that points show no difference.

        Parameters
        ----------
        axes : Tensor (A,) and Tensor (D, A)
            Variances in descending order, as shares of their mean over all D directions, and orthonormal columns: the
            axes along which such factors vary most.
        n : int
            Points that are to be drawn; where it would save nothing, nothing is done.

        With A the first of the axes, Σ keeps FᵀFA, all of F along them: F becomes B = L⁻¹(FA)ᵀF with
        LLᵀ = (FA)ᵀFA, and the trace of FᵀF − BᵀB, which the other directions have among themselves, is spread evenly.
        """
        p, d = self.factor.shape[-2:]
        if self.a is None or n * p * d < MIN_COMPRESSED_PRODUCTS:
            return self
        variances, vectors = axes
        # Points along r axes, with the two products that find them, must take far less than points of P rows.
        ranks = [r for r in RANKS if r < len(variances) and 2.5 * (2 * p + n) * r <= n * p]
        if not ranks:
            return self
        total = torch.linalg.vector_norm(self.factor, dim=(-2, -1), dtype=self.mean.dtype).square()
        outweighed = float((total / (d * self.a)).max())
        ranks = [r for r in ranks if float(variances[r]) * outweighed <= MAX_SPREAD_SHARE]
        if outweighed > 1 or not ranks:  # above 1 rounding would hide what is left out
            return self
        sketch = self.factor @ vectors[:, : ranks[0]].to(self.factor.dtype)
        cross, sketch = (sketch.mT @ self.factor).to(self.mean.dtype), sketch.to(self.mean.dtype)
        gram = sketch.mT @ sketch
        gram.diagonal(dim1=-2, dim2=-1).mul_(1 + 1e-5)
        lower, info = torch.linalg.cholesky_ex(gram)
        if bool(info.any()):
            return self
        rows = torch.linalg.solve_triangular(lower, torch.eye(ranks[0]).to(lower), upper=False) @ cross
        rest = (total - torch.linalg.vector_norm(rows, dim=(-2, -1)).square()).clamp(min=0) / d
        if bool((rest > MAX_SPREAD_SHARE * self.a).any()):  # a factor unlike its kind
            return self
        return FactorGaussian(self.mean, rows, self.a + rest, self.b)

    # ---- B = a·I + b·11ᵀ, and Woodbury around it ------------------------------------------------------------------

    def _base_solve(self, v: Tensor) -> Tensor:
        """B⁻¹v for `v (*B, M, D)`, by Sherman and Morrison."""
        a = self._a()[..., None, None]
        b = self.b[..., None, None]
        return (v - (b / (a + b * self.dim)) * v.sum(dim=-1, keepdim=True)) / a

    def _require_invertible(self) -> None:
        a = self._a()
        if bool((a <= 0).any()) or bool((a + self.b * self.dim <= 0).any()):
            raise InputError(
                "a covariance without an isotropic part (a = 0) has no inverse in general; use alpha1 > 0, "
                "or a head that trains on samples"
            )

    def _capacitance(self) -> tuple[Tensor, Tensor]:
        """B⁻¹Fᵀ as rows `(*B, P, D)` and the Cholesky factor of I + F·B⁻¹·Fᵀ `(*B, P, P)`."""
        self._require_invertible()
        scaled = self._base_solve(self.factor)
        inner = self.factor @ scaled.mT
        inner = inner + torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
        return scaled, torch.linalg.cholesky(inner)

    def solve(self, v: Tensor) -> Tensor:
        """Σ⁻¹v for rows `v (*B, M, D)`, by Woodbury: only P×P systems are solved."""
        scaled, chol = self._capacitance()
        base = self._base_solve(v)
        if not self.factor.shape[-2]:
            return base
        inner = torch.cholesky_solve(self.factor @ base.mT, chol)
        return base - inner.mT @ scaled

    def logdet(self) -> Tensor:
        """log |Σ|, `(*B)`."""
        _, chol = self._capacitance()
        a = self._a()
        base = (self.dim - 1) * a.log() + (a + self.b * self.dim).log()
        return base + 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of rows `x (*B, M, D)`, `(*B, M)`."""
        z = x - self.mean[..., None, :]
        square = (z * self.solve(z)).sum(dim=-1)
        return -0.5 * (square + self.logdet()[..., None] + self.dim * math.log(2 * math.pi))

    def eigen_clipped(self) -> FactorGaussian:
        """The nearest positive semi-definite covariance: negative eigenvalues set to 0 (what the authors' script did).

        This is dense, O(D³) for each distribution; the analytic clip of `shrink` costs nothing. Where a Cholesky factor
        exists there is nothing to clip, and eigenvalues, which take ten times as long, are not computed.
        """
        factor = root(self.dense().double())
        return FactorGaussian(self.mean, factor.to(self.mean.dtype), None, torch.zeros_like(self.b))


def root(dense: Tensor, jitter: float = 0.0) -> Tensor:
    """F with FᵀF = matrices `(*B, D, D)`, less their negative eigenvalues: Cholesky, or eigenvalues where that fails.

    `jitter` is added to the diagonal before, in units of its mean.

    >>> root(torch.tensor([[[4.0, 0.0], [0.0, -1.0]]])).square().sum(dim=1)
    tensor([[4., 0.]])
    """
    eye = torch.eye(dense.shape[-1], dtype=dense.dtype, device=dense.device)
    added = jitter * dense.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
    lower, info = torch.linalg.cholesky_ex(dense + added[..., None, None] * eye if jitter else dense)
    factor, failed = lower.mT.contiguous(), info != 0
    if bool(failed.any()):
        values, vectors = torch.linalg.eigh(dense[failed].double())
        factor[failed] = (values.clamp(min=0).sqrt()[..., None] * vectors.mT).to(dense.dtype)
    return factor


def shrink(
    sigma1: Tensor,
    sigma2: Tensor,
    dim: int,
    alpha1: float,
    alpha2_ratio: float,
    *,
    clip: bool = True,
) -> tuple[Tensor, Tensor]:
    r"""The two scalars of the shrunk covariance (eq. 9): :math:`a = α_1σ_1 - α_2σ_2` and :math:`b = α_2σ_2`.

    :math:`Σ'_s = Σ' + α_1σ_1 I + α_2σ_2(11^T - I)` with :math:`α_2 = \text{alpha2\_ratio}·α_1`. As Σ' is positive
    semi-definite, Σ'ₛ is too if :math:`-α_1σ_1/(D-1) \le b \le α_1σ_1`; with `clip` b is brought into that interval,
    `CLIP_MARGIN` inside its ends.

    Parameters
    ----------
    sigma1, sigma2 : Tensor, any shape
        Mean variance and mean off-diagonal covariance of Σ'.
    dim : int
        D.

    Examples
    --------
    >>> a, b = shrink(torch.tensor(2.0), torch.tensor(0.1), dim=10, alpha1=3.0, alpha2_ratio=2.0)
    >>> round(float(a), 4), round(float(b), 4)
    (5.4, 0.6)
    """
    if not (alpha1 >= 0 and math.isfinite(alpha1)):
        raise InputError(
            f"alpha1={alpha1!r} must be a finite number ≥ 0; it scales the mean variance added to the diagonal"
        )
    if not (alpha2_ratio >= 0 and math.isfinite(alpha2_ratio)):
        raise InputError(f"alpha2_ratio={alpha2_ratio!r} must be a finite number ≥ 0; it is α2/α1")
    diagonal = alpha1 * sigma1
    b = alpha1 * alpha2_ratio * sigma2
    if clip:
        # A hair inside the interval: at its ends the covariance has no inverse.
        high = (1 - CLIP_MARGIN) * diagonal
        clipped = torch.minimum(torch.maximum(b, -high / max(dim - 1, 1)), high)
        moved = (clipped - b).abs() > 1e-6 * diagonal
        if bool(moved.any()):
            # No counts in the message: the same text from every batch is shown once.
            warnings.warn(
                f"alpha2_ratio={alpha2_ratio:g} gives off-diagonal terms that no covariance can have: α2σ2 was "
                "clipped into [−α1σ1/(D−1), α1σ1] to keep Σ'ₛ positive semi-definite; lower alpha2_ratio to avoid this",
                FewcalWarning,
                stacklevel=2,
            )
        b = clipped
    return diagonal - b, b
