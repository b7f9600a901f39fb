r"""FactorGaussian: a batch of normal distributions with covariance FᵀF + a·I + b·11ᵀ (eq. 9-10).

The paper's shrunk covariance has exactly this form, so it is never built: sampling is one product with F and a cheap
isotropic part, solving is Woodbury's identity. `dense()` is there for tests and small problems.
"""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from fewcal._utils.bfloat16 import half_pays, products
from fewcal._utils.cpu_kernels import point_kernels
from fewcal._utils.cuda_kernels import compiled
from fewcal._utils.randomness import TaskRandom
from fewcal.errors import FewcalWarning, InputError

# Numbers made at a time on a CPU. It bounds memory; it is fixed because it fixes the random stream.
_AT_ONCE = 1 << 20
# The same for factors on a GPU, which bounds memory alone: each task has its own stream.
FACTORS_AT_ONCE_CUDA = 1 << 30
# Threads of a block of `finish_points.cu`, and the features that a warp of them holds at most.
_THREADS, _MOST_FUSED = 256, 2048
# Main axes along which factors may be drawn, and what may be left to isotropic noise beside them: in a direction not
# much more than this share of its variance, no more than half precision takes where a processor has that.
_MAIN = tuple(range(32, 128, 16))
_NEGLIGIBLE = 2e-3
# Below this many products, n·P·D, nothing is saved by it.
_WORTH_IT = 1 << 22
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

    def _a(self) -> Tensor:
        return torch.zeros_like(self.b) if self.a is None else self.a

    def dense(self) -> Tensor:
        """The covariance matrices `(*B, D, D)`."""
        eye = torch.eye(self.dim, dtype=self.mean.dtype, device=self.mean.device)
        factor = self.factor.to(self.mean.dtype)
        return factor.mT @ factor + self._a()[..., None, None] * eye + self.b[..., None, None]

    def sample(
        self,
        n: int,
        random: TaskRandom | torch.Generator | int,
        out: Tensor | None = None,
        axes: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Draw `n` points from each distribution, `(*B, n, D)` (eq. 10), into `out` where it is given.

        With a `TaskRandom` the first batch dimension is the tasks' and each task draws from its own stream. With `axes`
        a CPU draws from what `compressed` makes of each distribution.
        """
        if n < 1:
            raise InputError(f"n={n} must be at least 1")
        if isinstance(random, TaskRandom):
            if self.mean.shape[0] != len(random):
                raise InputError(f"{len(random)} random streams for {self.mean.shape[0]} tasks")
            batch: tuple[int, ...] = tuple(self.mean.shape[:-1])
        else:
            # One stream for everything: a single task.
            batch = (1, *self.mean.shape[:-1])
            if isinstance(random, int):
                random = TaskRandom(random, device=self.mean.device)
            else:
                generator, random = random, TaskRandom(0, device=self.mean.device)
                random.generators = [generator]
        shape = (*self.mean.shape[:-1], n, self.dim)
        result = torch.empty(shape, dtype=self.mean.dtype, device=self.mean.device) if out is None else out
        if result.shape != shape:
            raise InputError(f"out has shape {tuple(result.shape)}, expected {shape}")
        tasks, each, d, p = batch[0], math.prod(batch[1:]), self.dim, self.factor.shape[-2]
        flat = result.view(tasks, each, n, d)
        whole = FactorGaussian(
            self.mean.reshape(tasks, each, d),
            self.factor.expand(*self.mean.shape[:-1], p, d).reshape(tasks, each, p, d),
            None if self.a is None else self.a.reshape(tasks, each),
            self.b.reshape(tasks, each),
        )
        if flat.is_cuda:
            whole._draw(flat, random)
            return result
        # On a CPU some points of one task at a time, which bounds memory and keeps them in the cache.
        some, rows = max(1, _AT_ONCE // (n * max(p, d))), max(1, _AT_ONCE // max(p, d))
        compress = axes is not None and n * p * d >= _WORTH_IT and _saves(_MAIN[0], n, p)
        some = 1 if compress else some
        for t in range(tasks):
            own = random.part(slice(t, t + 1))
            for begin in range(0, each, some):
                at = (slice(t, t + 1), slice(begin, begin + some))
                drawn = whole[at]
                if axes is not None and compress:
                    drawn = drawn.compressed(axes, n)
                for part in flat[at].split(rows, dim=2):
                    drawn._draw(part, own)
        return result

    def __getitem__(self, at: slice | tuple[slice, ...]) -> FactorGaussian:
        """Some of the distributions, by slices of the batch dimensions."""
        return FactorGaussian(self.mean[at], self.factor[at], None if self.a is None else self.a[at], self.b[at])

    def compressed(self, axes: tuple[Tensor, Tensor], n: int) -> FactorGaussian:
        """The same with fewer rows in F, where shrinkage outweighs FᵀF so far that nobody could tell points from it.

        Parameters
        ----------
        axes : Tensor (A,) and Tensor (D, A)
            Variances in descending order, as shares of their mean over all D directions, and orthonormal columns: the
            axes along which such factors vary most.
        n : int
            Points that are to be drawn; where it would save nothing, nothing is done.

        With A the first of the axes, Σ keeps FᵀFA, all that F says of them, exactly: F becomes B = L⁻¹(FA)ᵀF with
        LLᵀ = (FA)ᵀFA, and the trace of FᵀF − BᵀB, which the other directions have among themselves, is spread evenly.
        """
        p, d = self.factor.shape[-2:]
        if self.a is None:
            return self
        variances, vectors = axes
        factor = self.factor.to(self.mean.dtype)
        total = torch.linalg.vector_norm(factor, dim=(-2, -1)).square()
        outweighed = float((total / (d * self.a)).max())
        if outweighed > 1:  # also where rounding would hide what is left out
            return self
        for r in _MAIN:
            if r >= len(variances) or not _saves(r, n, p):
                return self
            if float(variances[r]) * outweighed <= _NEGLIGIBLE:
                break
        else:
            return self
        main = vectors[:, :r]
        cross = (factor @ main).mT @ factor
        inner = cross @ main
        inner.diagonal(dim1=-2, dim2=-1).mul_(1 + 1e-5)
        lower, info = torch.linalg.cholesky_ex(inner)
        if bool(info.any()):
            return self
        rows = torch.linalg.solve_triangular(lower, cross, upper=False)
        rest = (total - torch.linalg.vector_norm(rows, dim=(-2, -1)).square()).clamp(min=0) / d
        if bool((rest > _NEGLIGIBLE * self.a).any()):  # a factor unlike its kind
            return self
        return FactorGaussian(self.mean, rows, self.a + rest, self.b)

    def _base_root(self) -> tuple[Tensor, Tensor]:
        """r and s, `(*B)`, with r·I + s·11ᵀ the square root of a·I + b·11ᵀ: √a and (√(a+bD) − √a)/D."""
        root = self._a().clamp(min=0).sqrt()
        return root, ((self._a() + self.b * self.dim).clamp(min=0).sqrt() - root) / self.dim

    def _draw(self, out: Tensor, random: TaskRandom) -> None:
        """Points into `out (T, S, n, D)`: the mean, noise with covariance a·I + b·11ᵀ, and G·F, G standard normal."""
        factor, p = self.factor, self.factor.shape[-2]
        root, along = self._base_root()
        shift = None
        if self.a is None:  # one number a point suffices
            shift = random.normal(*out.shape[1:-1], dtype=out.dtype) * (along * self.dim**0.5)[..., None]
        else:
            random.fill_normal(out)
        low = factor.dtype if factor.dtype != out.dtype else torch.bfloat16 if half_pays(factor) else out.dtype
        made = None
        if p and (out.is_cuda or low != out.dtype):
            latent = random.normal(*out.shape[1:-1], p, dtype=low)
            made = products(latent.flatten(0, 1), factor.to(low).flatten(0, 1)).view(out.shape)
        _finish(out, made, self.mean, None if self.a is None else (root, along), shift)
        if made is not None or not p:
            return
        latent = random.normal(*out.shape[1:-1], p, dtype=out.dtype)
        # Into place: no second array to fill and add.
        out.view(-1, *out.shape[2:]).baddbmm_(latent.flatten(0, 1), factor.flatten(0, 1))

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
        exists there is nothing to clip, and eigenvalues, which take ten times as long, are not asked for.
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


def add_stacked(out: Tensor, rows: Tensor, index: Tensor, c: Tensor, random: TaskRandom) -> None:
    """Add to points `out (T, S, n, D)` normal noise with covariance Σ c_j²·R_jᵀR_j, without stacking the R_j.

    Parameters
    ----------
    rows : Tensor (U, P, D)
        R of each class; may be in half precision.
    index, c : Tensor (T, S, k)
        Which of them each point is drawn with, and how much they count.
    """
    t, s, n, d = out.shape
    p, k = rows.shape[1], index.shape[-1]
    if not out.is_cuda:
        some = max(1, _AT_ONCE // max(p, d))
        for task, (classes, shares) in enumerate(zip(index.tolist(), c.tolist(), strict=True)):
            own = random.part(slice(task, task + 1))
            for point, j in itertools.product(range(s), range(k)):
                for part in out[task, point].split(some):
                    latent = own.normal(len(part), p, dtype=rows.dtype)[0]
                    _add_product(part, latent, rows[classes[point][j]], shares[point][j])
        return
    equal = bool((c == c[:1, :1, :1]).all())
    if equal:  # as in DC: the classes are multiplied, not their copies
        rows = rows * c[0, 0, 0].to(rows.dtype)
    some = max(1, FACTORS_AT_ONCE_CUDA // (s * k * p * d))
    for begin in range(0, t, some):
        part = slice(begin, begin + some)
        factor = rows[index[part]]
        if not equal:
            factor *= c[part, ..., None, None].to(rows.dtype)
        latent = random.part(part).normal(s, n, k * p, dtype=rows.dtype)
        made = products(latent.view(-1, n, k * p), factor.view(-1, k * p, d))
        _finish(out[part], made.view(-1, s, n, d))


def _finish(
    out: Tensor,
    made: Tensor | None,
    mean: Tensor | None = None,
    stretch: tuple[Tensor, Tensor] | None = None,
    shift: Tensor | None = None,
) -> None:
    """Points `out (T, S, n, D)` from their parts: r·out + s·Σout of `stretch` (r, s), mean, shift, and what was `made`.

    With a mean and no stretch what is in `out` does not count.
    """
    t, s, n, d = out.shape
    fresh = mean is not None and stretch is None
    kernel = None
    if out.dtype == torch.float32 and out.is_cuda and d <= _MOST_FUSED and not d % 4 and out[0].is_contiguous():
        kernel = compiled("finish_points", out.device, _THREADS, D=d)
    if kernel is not None and (made is None or made.dtype == torch.bfloat16):
        root, along = (None, None) if stretch is None else (v.contiguous() for v in stretch)
        mean, shift, made = (v if v is None else v.contiguous() for v in (mean, shift, made))
        blocks = -(-t * s * n // (_THREADS // 32))
        kernel(blocks, out, made, mean, root, along, shift, t * s * n, s, n, out.stride(0), int(fresh))
        return
    fused = point_kernels(out) if mean is not None and made is None and out[0, 0].is_contiguous() else None
    if fused is not None and mean is not None:
        for i, j in itertools.product(range(t), range(s)):
            noise = None if stretch is None else (float(stretch[0][i, j]), float(stretch[1][i, j]))
            fused.finish_points(out[i, j], mean[i, j].contiguous(), noise, None if shift is None else shift[i, j])
        return
    if stretch is not None:
        root, along = (v[..., None, None] for v in stretch)
        total = out.sum(dim=-1, keepdim=True) * along
        out.mul_(root).add_(total)
    if mean is not None:
        out.copy_(mean[..., None, :]) if fresh else out.add_(mean[..., None, :])
    if shift is not None:
        out.add_(shift[..., None])
    if made is not None:
        out.add_(made)


def _add_product(out: Tensor, latent: Tensor, factor: Tensor, share: float) -> None:
    """`out += share · latent @ factor`, in place where precision allows."""
    if factor.dtype == out.dtype:
        out.addmm_(latent, factor, alpha=share)
    else:
        out.add_(torch.mm(latent, factor), alpha=share)


def _saves(r: int, n: int, p: int) -> bool:
    """Whether n points along r axes, with the two products that find them, take far less than n points of P rows."""
    return 2.5 * (2 * p + n) * r <= n * p


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
                f"alpha2_ratio={alpha2_ratio:g} asks for off-diagonal terms that no covariance can have: α2σ2 was "
                "clipped into [−α1σ1/(D−1), α1σ1] to keep Σ'ₛ positive semi-definite; lower alpha2_ratio to avoid this",
                FewcalWarning,
                stacklevel=2,
            )
        b = clipped
    return diagonal - b, b
