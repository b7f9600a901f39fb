"""The rows that a bank keeps of each class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

RowCheck: TypeAlias = "Callable[[int, Tensor], None]"
# Numbers that orders are made from are compared up to this share of the largest: sums depend on the order of columns.
ORDER_RESOLUTION = 2.0**-40


class RowStore:
    """The rows of each class in order of arrival, in one tensor or in the pieces they came in."""

    def __init__(self, pieces: list[list[Tensor]], joined: Tensor | None = None, check: RowCheck | None = None) -> None:
        self._pieces = pieces
        self._joined = joined
        self._check = check
        self._unchecked = set() if check is None else set(range(len(pieces)))

    @classmethod
    def from_joined(cls, joined: Tensor, counts: Sequence[int], check: RowCheck | None = None) -> RowStore:
        """The rows of all classes, class after class, `(R, D)`; each class is a view.

        `check(i, rows)` is called before the rows of class `i` are used for the first time.
        """
        return cls([[r] for r in torch.split(joined, list(counts))], joined, check)

    def _checked(self, classes: Iterable[int]) -> list[list[Tensor]]:
        if self._check is not None and self._unchecked:
            for i in sorted(self._unchecked.intersection(classes)):
                self._check(i, self._pieces[i][0])
                self._unchecked.discard(i)
        return self._pieces

    def __len__(self) -> int:
        return len(self._pieces)

    @property
    def dtype(self) -> torch.dtype:
        """How rows are stored."""
        return self._pieces[0][0].dtype

    def of_class(self, i: int) -> Tensor:
        """Rows of class `i`, `(P_i, D)`."""
        self._checked((i,))
        if len(self._pieces[i]) > 1:
            self._pieces[i] = [torch.cat(self._pieces[i])]
        return self._pieces[i][0]

    def joined(self) -> Tensor:
        """Rows of all classes, class after class, `(R, D)`."""
        self._checked(range(len(self)))
        if self._joined is None:
            sizes = [sum(map(len, pieces)) for pieces in self._pieces]
            self._joined = torch.cat([r for pieces in self._pieces for r in pieces])
            self._pieces = [[r] for r in torch.split(self._joined, sizes)]
        return self._joined

    def extended(self, other: RowStore, at: Sequence[int], size: int) -> RowStore:
        """With the rows of another store, whose classes stand at places `at` among `size`."""
        device = self._pieces[0][0].device
        own, theirs = (store._checked(range(len(store))) for store in (self, other))
        pieces = [*own, *([] for _ in range(size - len(own)))]
        for i, more in zip(at, theirs, strict=True):
            pieces[i] = pieces[i] + [r.to(device) for r in more]
        return RowStore(pieces)

    def mapped(self, f: Callable[[Tensor], Tensor]) -> RowStore:
        """The same with `f` applied to the rows."""
        joined = self.joined()
        return RowStore.from_joined(f(joined), [len(pieces[0]) for pieces in self._pieces])

    def paired(self, classes: Iterable[int], size: int) -> Tensor:
        """The first `size` rows of some classes, `(U, size, D)`, centred and divided by √(size − 1)."""
        rows = torch.stack([self.of_class(i)[:size] for i in classes]).float()
        return rows.sub_(rows.mean(dim=1, keepdim=True)).div_((size - 1) ** 0.5)

    def centred(self, classes: Iterable[int], means: Tensor) -> Tensor:
        """Rows of some classes less their means, zero-padded to one length, `(U, P, D)`."""
        pieces = [self.of_class(i).float() - means[i] for i in classes]
        return torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True)

    def order(self, means: Tensor) -> tuple[list[int], list[Tensor]]:
        """Numbers of the classes, and those of the rows of each class `(P_i,)`, in an order by their values alone.

        It does not depend on the order of rows, classes or columns. Rows are ordered by the sum of their absolute
        values, then by the product with the mean of their class, classes by the average of those sums.
        """
        sums, orders = [], []
        for i, mean in enumerate(means):
            rows = self.of_class(i).double()
            keys = torch.stack([rows.abs().sum(dim=1), rows @ mean.double()])
            step = ORDER_RESOLUTION * keys.abs().amax(dim=1, keepdim=True).clamp(min=1e-300)
            first, second = (keys / step).round()
            by_second = second.argsort(stable=True)
            orders.append(by_second[first[by_second].argsort(stable=True)])
            sums.append(float(keys[0].mean()))
        return sorted(range(len(sums)), key=sums.__getitem__), orders

    def tensors(self) -> list[list[Tensor]]:
        """Every tensor in it, for size accounting."""
        return self._pieces

    def __reduce__(self) -> tuple[Callable[..., RowStore], tuple[Tensor, list[int]]]:
        # Classes are views of one block, and a pickled view takes its whole block along: one tensor for all.
        joined = self.joined().clone()
        return RowStore.from_joined, (joined, [len(pieces[0]) for pieces in self._pieces])


def pooled_eigen(rows: Tensor, counts: Tensor, freedom: int) -> tuple[Tensor, Tensor]:
    """Eigenvalues `(D,)`, ascending, and eigenvectors `(D, D)` of the pooled within-class covariance of rows `(R, D)`.

    For fewer rows than features: the work is in the space that the rows span, and a basis of the rest is appended.
    """
    x, (r, d) = rows.double(), rows.shape
    means = torch.stack([part.mean(dim=0) for part in x.split(counts.tolist())])
    basis, triangle = torch.linalg.qr((x - means.repeat_interleave(counts, dim=0)).T, mode="complete")
    values, turn = torch.linalg.eigh(triangle[:r] @ triangle[:r].T / freedom)
    return torch.cat([values.new_zeros(d - r), values]), torch.cat([basis[:, r:], basis[:, :r] @ turn], dim=1)
