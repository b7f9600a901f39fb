"""What a bank keeps of each class beside its moments: its rows, or a low-rank factor of its covariance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from fewcal._utils.threads import single_thread
from fewcal.bank.moments import Moments
from fewcal.power_choice import SAMPLED_CLASSES, SAMPLED_ROWS

# Classes decomposed together hold about this many numbers: 64 MB.
_BATCH_NUMBERS = 1 << 24
# Up to this size a decomposition is done by one core, on the CPU.
_SMALL = 256


RowCheck: TypeAlias = "Callable[[int, Tensor], None]"


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
        self._checked(range(len(self._pieces)))
        if self._joined is None:
            sizes = [sum(map(len, pieces)) for pieces in self._pieces]
            self._joined = torch.cat([r for pieces in self._pieces for r in pieces])
            self._pieces = [[r] for r in torch.split(self._joined, sizes)]
        return self._joined

    def extended(self, other: RowStore, at: Sequence[int], size: int) -> RowStore:
        """With the rows of another store, whose classes stand at places `at` among `size`."""
        device = self._pieces[0][0].device
        own, theirs = (store._checked(range(len(store._pieces))) for store in (self, other))
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

    def sample(self) -> tuple[Tensor, Tensor]:
        """A few rows of evenly spaced classes, `(R, D)`, and the numbers of their classes, `(R,)`."""
        chosen = torch.linspace(0, len(self._pieces) - 1, min(len(self._pieces), SAMPLED_CLASSES)).long().tolist()
        some = [self.of_class(i)[:SAMPLED_ROWS].float() for i in chosen]
        sizes = torch.tensor([len(rows) for rows in some], device=some[0].device)
        return torch.cat(some), torch.repeat_interleave(torch.arange(len(some), device=sizes.device), sizes)

    def tensors(self) -> list[list[Tensor]]:
        """Every tensor in it, for size accounting."""
        return self._pieces

    def __reduce__(self) -> tuple[Callable[..., RowStore], tuple[Tensor, list[int]]]:
        # Classes are views of one block, and a pickled view takes its whole block along: one tensor for all.
        joined = self.joined().clone()
        return RowStore.from_joined, (joined, [len(pieces[0]) for pieces in self._pieces])


@dataclass(eq=False)
class FactorStore:
    """B `(C, r, D)` with BᵀB ≈ the scatter of each class, r = min(rank, D); zero rows where fewer suffice.

    Attributes
    ----------
    room : Tensor (≥ C, r, D)
        Memory with room to grow.
    size : int
        C.
    lent : bool
        Whether more than one bank may look at this memory. Then it is copied before it changes.
    """

    room: Tensor
    size: int
    lent: bool = False

    @classmethod
    def from_rows(cls, x: Tensor, codes: Tensor, moments: Moments, rank: int, dtype: torch.dtype) -> FactorStore:
        """The strongest directions of rows `x (R, D)` in order of their classes `codes (R,)`."""
        width = min(rank, x.shape[1])  # there are no more directions than features
        counts = moments.counts.tolist()
        room = torch.empty(len(counts), width, x.shape[1], dtype=dtype, device=x.device)
        pieces = torch.split(x.float() - moments.means[codes], counts)
        step = max(1, _BATCH_NUMBERS // (max(counts) * x.shape[1]))
        for low in range(0, len(pieces), step):
            padded = torch.nn.utils.rnn.pad_sequence(list(pieces[low : low + step]), batch_first=True)
            room[low : low + step] = top_directions(padded, width)
        return cls(room, len(counts))

    @classmethod
    def from_tensors(cls, factors: Tensor, sizes: Tensor, rank: int) -> FactorStore:
        """From the file's rows `factors (Σr_c, D)`, of which each class has `sizes (C,)`."""
        width = min(rank, factors.shape[1])
        if bool((sizes == width).all()):
            return cls(factors.view(len(sizes), width, factors.shape[1]), len(sizes))
        # As banks were written before, without padding.
        pieces = torch.nn.utils.rnn.pad_sequence(list(torch.split(factors, sizes.tolist())), batch_first=True)
        return cls(top_directions(pieces.float(), width).to(factors), len(sizes))

    @property
    def tensor(self) -> Tensor:
        """B `(C, r, D)` as stored."""
        return self.room[: self.size]

    def lend(self) -> FactorStore:
        """The same store, for a second owner: whoever changes it first makes a copy."""
        self.lent = True
        return self

    def absorb(self, other: FactorStore, at: Tensor, size: int, own: Moments, theirs: Moments) -> FactorStore:
        """Join the directions of another store, whose classes stand at places `at` among `size`.

        `own` and `theirs` are the moments of both before they are joined. Memory that is not lent is taken over.
        """
        room, old, width = self.room, self.size, self.room.shape[1]
        if size > len(room) or self.lent:
            # Twice the room each time: copies then add up to no more than the end result.
            length = max(size, 2 * len(room)) if size > old else size
            room = room.new_empty(length, *room.shape[1:])
            room[:old] = self.tensor
        new = (at >= old).nonzero().flatten()
        room[at[new]] = other.tensor[new.to(other.room.device)].to(room)
        known = (at < old).nonzero().flatten()
        step = max(1, _BATCH_NUMBERS // ((2 * width + 1) * room.shape[2]))
        for part in known.split(step):
            where, there = at[part], part.to(other.room.device)
            gap, share = own.gap(theirs, where, there)
            stacked = [room[where], other.tensor[there].to(at.device), (gap * share.sqrt())[:, None]]
            room[where] = top_directions(torch.cat([t.float() for t in stacked], dim=1), width).to(room)
        return FactorStore(room, size)

    def mapped(self, f: Callable[[Tensor], Tensor]) -> FactorStore:
        """The same with `f` applied to the factors."""
        return FactorStore(f(self.tensor), self.size)

    def __reduce__(self) -> tuple[type[FactorStore], tuple[Tensor, int]]:
        return FactorStore, (self.tensor.clone(), self.size)  # without the room to grow


def top_directions(x: Tensor, rank: int) -> Tensor:
    """B `(c, rank, D)` whose BᵀB are the best rank-r approximations of xᵀx, for centred rows x `(c, P, D)`."""
    if x.shape[1] <= rank:
        return torch.nn.functional.pad(x, (0, 0, 0, rank - x.shape[1]))
    # Right singular vectors through the smaller Gram matrix: rows are few and features many, or the reverse.
    if x.shape[1] <= x.shape[2]:
        _, vectors = _eigh(x @ x.mT)
        return vectors[..., -rank:].mT @ x
    values, vectors = _eigh(x.mT @ x)
    return values[..., -rank:].clamp(min=0).sqrt()[..., None] * vectors[..., -rank:].mT


@single_thread()
def _eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of small matrices `(c, p, p)`."""
    if a.is_cuda and a.shape[-1] <= _SMALL:  # where each takes four times as long as on a CPU
        values, vectors = torch.linalg.eigh(a.cpu())
        return values.to(a.device), vectors.to(a.device)
    values, vectors = torch.linalg.eigh(a)
    return values, vectors
