"""Means and covariances that follow from what a bank holds, computed when they are first needed."""

from __future__ import annotations

import torch
from torch import Tensor

from fewcal._utils.memo import Memo
from fewcal._utils.threads import single_thread
from fewcal.bank.moments import Moments
from fewcal.bank.rows import RowStore, pooled_eigen
from fewcal.errors import InputError


class Statistics:
    """Statistics of base classes, derived from their moments and rows and remembered."""

    memo: Memo
    moments: Moments
    row_store: RowStore | None

    @property
    def counts(self) -> Tensor:
        """Rows of each class, `(C,)` int64."""
        return self.moments.counts

    @property
    def means(self) -> Tensor:
        """Class means, `(C, D)`."""
        return self.moments.means

    @property
    def scatter(self) -> Tensor:
        """The pooled within-class scatter, `(D, D)`."""
        return self.moments.scatter

    @property
    def within_scatter(self) -> Tensor:
        """The within-class sum of squares of each class, `(C,)` float64."""
        return self.moments.within_scatter

    @property
    def dim(self) -> int:
        """D, the number of features (0 before the first row)."""
        return int(self.means.shape[1])

    @property
    def n_rows(self) -> int:
        """Number of base rows."""
        return int(self.counts.sum())

    @property
    def has_rows(self) -> bool:
        """Whether the rows themselves were kept."""
        return self.row_store is not None

    def all_rows(self) -> Tensor:
        """Rows of all classes, class after class, `(R, D)`, as stored."""
        return self.require_rows().joined()

    def require_rows(self, remedy: str = "build it with keep_rows=True") -> RowStore:
        """The rows; raises with a remedy where they were not kept."""
        if self.row_store is None:
            raise InputError(f"this bank kept no rows; {remedy}")
        return self.row_store

    # ---- the same bank elsewhere ------------------------------------------------------------------------------------

    def centred_means(self) -> tuple[Tensor, Tensor, Tensor]:
        """The mean of the class means `(D,)`, the class means less it `(C, D)`, and their squared lengths `(C,)`."""

        def make() -> tuple[Tensor, Tensor, Tensor]:
            origin = self.means.mean(dim=0)
            centred = self.means - origin
            return origin, centred, torch.linalg.vecdot(centred, centred)

        return self.memo.get("centred", make)

    def paired_rows(self, common_size: int = 0, classes: Tensor | None = None) -> Tensor:
        """Rows for the `joint` covariance: `(C, P, D)`, centred, divided by √(P−1), classes cut to a common P.

        Row j of one class is paired with row j of every other, so that a weighted sum of base *random variables*
        (eq. 4) has the sample covariance FᵀF with F = Σ cᵢRᵢ. `common_size=0` takes the smallest class. With `classes`
        only these are made, and nothing is remembered.
        """
        smallest = self.memo.get("smallest", lambda: int(self.counts.min()))
        size = smallest if common_size == 0 else int(common_size)
        if not 2 <= size <= smallest:
            raise InputError(
                f"common_size={common_size}: the smallest base class has {smallest} rows; choose 2 to {smallest}, "
                "or 0 for the smallest class"
            )
        store = self.require_rows("the joint covariance pairs rows; use cov='pooled' or keep_rows=True")
        if classes is not None:
            return store.paired(classes.tolist(), size)
        return self.memo.get(("paired", size), lambda: store.paired(range(len(self.counts)), size))

    def class_factors(self, classes: Tensor | None = None) -> Tensor:
        """Rᵢ with RᵢᵀRᵢ = Σᵢ for each class, `(C, P, D)`: centred rows over √(Pᵢ−1), zero-padded to one P.

        With `classes` only these are made, and nothing is remembered: a large bank is never unpacked as a whole.
        """
        store = self.require_rows("it has no class covariances; use cov='pooled' or keep_rows=True")

        def make(chosen: list[int]) -> Tensor:
            scale = (self.counts[chosen] - 1).float().sqrt()[:, None, None]
            return store.centred(chosen, self.means).div_(scale)

        if classes is not None:
            return make(classes.tolist())
        return self.memo.get("factors", lambda: make(list(range(len(self.counts)))))

    def class_covariances(self) -> Tensor:
        """Σᵢ for each class, dense `(C, D, D)`; for reference, many neighbours, and small D."""

        def make() -> Tensor:
            factors = self.class_factors()
            return factors.transpose(1, 2) @ factors

        return self.memo.get("covariances", make)

    def pooled_covariance(self) -> Tensor:
        """S_w, the within-class covariance of all base classes together, `(D, D)`."""
        return self.scatter / self.moments.degrees_of_freedom

    def pooled_eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues `(D,)` (≥ 0) and eigenvectors `(D, D)`, in columns, of S_w; computed once."""

        def make() -> tuple[Tensor, Tensor]:
            with single_thread():
                if self.row_store is not None and self.n_rows < self.dim:
                    values, vectors = pooled_eigen(self.all_rows(), self.counts, self.moments.degrees_of_freedom)
                else:
                    values, vectors = torch.linalg.eigh(self.pooled_covariance().double())
            return values.clamp(min=0).float(), vectors.float()

        return self.memo.get("eigen", make)

    def pooled_factor(self) -> Tensor:
        """R with RᵀR = S_w, `(D, D)`."""
        values, vectors = self.pooled_eigen()
        return values.sqrt()[:, None] * vectors.T
