r"""Self-tuning: parameters for a bank from its base classes alone, without a validation set.

Episodes of held-out base classes are too easy where the backbone was trained on those very classes: each of them has a
direction of its own in feature space, which no novel class has, and little spread around it. So pseudo-novel classes
are made from them. The mean of a held-out class c is replaced, but for a share o, by what its `DICTIONARY` nearest
other base classes say of it, and its spread is scaled until the plain nearest centroid finds the tasks about as hard as
real ones:

    x' = g + P_c (μ_c − g) + o·(I − P_c)(μ_c − g) + s·(x − μ_c),

P_c the projection onto the span of those base means less the grand mean g. How well base classes describe the novel
ones, o, cannot be known from the bank: little between domains, a lot within one; and the best parameters depend on it.
So there are several `WORLDS`, and a candidate counts by the one where it does worst. Candidates differ from the preset
`default` in whitening, neighbours and weights; those that are better than it in every world are averaged, and the
choice lies half-way between `default` and that average. Where nothing is better everywhere, it is `default`.
"""

from __future__ import annotations

import copy
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal._version import __version__
from fewcal.bank import BaseBank
from fewcal.domain_match import held_out_similarity
from fewcal.episodes import Episodes, EpisodeSpec, sample_episodes
from fewcal.errors import FewcalError, InputError
from fewcal.gaussianize import l2_normalise
from fewcal.methods.base import Method
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams
from fewcal.presets import get_preset, load_preset, save_preset

# Base classes that describe a pseudo-novel class, the shares of what they leave undescribed that it keeps, and the
# accuracy of the plain nearest centroid on 1-shot tasks that its spread is scaled to, within bounds.
DICTIONARY = 8
WORLDS = (0.0, 0.4, 1.0)
DIFFICULTY = 0.65
WIDENING = (0.3, 4.0)
# Rows of a pseudo-novel class, tasks of a world, folds of base classes, candidates, and how many of the best count.
_ROWS, _TASKS, _FOLDS, _CANDIDATES, _BEST = 40, 180, 6, 24, 3
# With fewer base classes the folds would leave too few to hold out, or to calibrate with.
_FEWEST = 24
# Standard errors that a candidate must lead by, in every world.
_CLEAR = 2.0
_QUERY = 6


@dataclass(frozen=True, eq=False)
class Candidate:
    """Parameters that were tried on pseudo-novel tasks.

    Attributes
    ----------
    params : GDCParams
    accuracy : array (worlds, tasks)
    gains, errors : arrays (worlds,)
        Mean difference to `default` on the same tasks, and its standard error.
    """

    params: GDCParams
    accuracy: np.ndarray
    gains: np.ndarray
    errors: np.ndarray

    @property
    def mean(self) -> float:
        """Mean accuracy over all worlds."""
        return float(self.accuracy.mean())

    @property
    def safe_gain(self) -> float:
        """What it gains over `default` at least: in its worst world, and less two standard errors."""
        return float((self.gains - _CLEAR * self.errors).min())


@dataclass(frozen=True, eq=False)
class SelfTuning:
    """The outcome: `params`, the candidates with `default` first, and what it was made from."""

    params: GDCParams
    candidates: list[Candidate]
    why: str
    provenance: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        tried = [
            {"mean": c.mean, "gains": c.gains.tolist(), "errors": c.errors.tolist(), "params": c.params.as_dict()}
            for c in self.candidates
        ]
        return {"params": self.params.as_dict(), "why": self.why, "provenance": self.provenance, "candidates": tried}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters as a preset file."""
        save_preset(path, self.params, f"self-tuned from base classes: {self.why}", self.provenance)


def selftune(bank: BaseBank, *, shot: int = 1, way: int = 5, seed: int = 0) -> SelfTuning:
    """Parameters of GDC for tasks with `shot` examples of each of `way` classes, from the bank alone.

    It takes seconds for a bank of a hundred classes. The result is remembered by the bank's fingerprint: in this
    process, and in the user's cache folder (`$XDG_CACHE_HOME/fewcal`, usually `~/.cache/fewcal`) for the next one.

    Examples
    --------
    >>> from fewcal.features.synthetic import make_features
    >>> base = make_features(base=12, val=0, novel=0, rows=12, dim=8).split("base")
    >>> selftune(BaseBank().fit(base.features, base.labels)).why
    'the bank has 12 classes, fewer than 24: the preset default'
    """
    if shot < 1 or way < 2:
        raise InputError(f"shot={shot} and way={way}: use at least one example of at least two classes")
    bank.check()
    # More ways than a fold has classes say little more about which parameters are best.
    way = min(way, 5)
    known = f"{bank.fingerprint[:32]}-{shot}-{way}-{seed}-{__version__}-{_REVISION}"
    found = _FOUND.get(known) or _recall(known)
    if found is None:
        found = _selftune(bank, shot, way, seed)
        _remember(known, found)
    if len(_FOUND) >= _REMEMBERED:
        _FOUND.pop(next(iter(_FOUND)))
    _FOUND[known] = found
    return found


# To be raised whenever the same bank would get other parameters: what was remembered before is then not asked.
_REVISION = 1
_FOUND: dict[str, SelfTuning] = {}
_REMEMBERED = 64


def _cache_file(known: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "fewcal" / "selftune" / f"{known}.json"


def _recall(known: str) -> SelfTuning | None:
    """What an earlier process chose for the same bank; its candidates are not kept."""
    try:
        preset = load_preset(_cache_file(known))
    except (FewcalError, OSError, RuntimeError):  # nothing there, or a file that cannot be read: choose again
        return None
    return SelfTuning(preset.params, [], preset.provenance.pop("why", ""), preset.provenance)


def _remember(known: str, found: SelfTuning) -> None:
    try:
        save_preset(_cache_file(known), found.params, "self-tuned", found.provenance | {"why": found.why})
    except (FewcalError, OSError, RuntimeError):
        return  # a home that cannot be written costs seconds next time, no more


def _selftune(bank: BaseBank, shot: int, way: int, seed: int) -> SelfTuning:
    default = get_preset("default").with_changes(k=min(get_preset("default").k, len(bank)))
    if bank.transform is not None:
        have = bank.transform.settings()
        default = default.with_changes(**{f: have[f] for f in ("beta", "kind", "center", "l2")})
    provenance = {"bank": bank.fingerprint, "source": bank.source, "shot": shot, "way": way, "seed": seed}
    if len(bank) < _FEWEST:
        why = f"the bank has {len(bank)} classes, fewer than {_FEWEST}: the preset default"
        return SelfTuning(default, [], why, provenance)
    worlds = [_World(bank, own, shot, way, seed) for own in WORLDS]
    reference = _measure(worlds, default)
    tried = [_compare(default, reference, reference)]
    whiten = worlds[0].shrinkage(default)
    for params in candidates(default, whiten, len(bank), seed):
        tried.append(_compare(params, _measure(worlds, params), reference))
    best = [c for c in sorted(tried, key=lambda c: -c.safe_gain)[:_BEST] if c.safe_gain > 0]
    if not best:
        return SelfTuning(default, tried, "nothing is better than default wherever base classes may lead", provenance)
    chosen = blend(default, [c.params for c in best], whiten)
    last = _compare(chosen, _measure(worlds, chosen), reference)
    tried.append(last)
    if last.safe_gain <= 0:
        return SelfTuning(default, tried, "nothing between default and the best is better everywhere", provenance)
    shown = ", ".join(f"{100 * gain:+.2f}" for gain in last.gains)
    return SelfTuning(chosen, tried, f"{shown} points above default in {len(worlds)} pseudo-novel worlds", provenance)


def _measure(worlds: list[_World], params: GDCParams) -> np.ndarray:
    return np.stack([world.accuracy(params) for world in worlds])


def _compare(params: GDCParams, accuracy: np.ndarray, reference: np.ndarray) -> Candidate:
    difference = accuracy - reference
    error = difference.std(axis=1, ddof=1) / difference.shape[1] ** 0.5
    return Candidate(params, accuracy, difference.mean(axis=1), error)


class SelfTunedGDC(GDC):
    """GDC with parameters chosen for the bank by `selftune`; `settings` are set on top of them."""

    def __init__(self, settings: dict[str, Any], way: int = 5, shot: int = 1) -> None:
        super().__init__(get_preset("default").with_changes(**settings), cap_k="k" not in settings)
        self.given, self.way, self.shot = settings, way, shot

    @property
    def settings(self) -> dict[str, Any]:
        return super().settings | {"preset": "auto"}

    def expects(self, way: int, shot: int) -> SelfTunedGDC:
        """Tune for tasks like these."""
        self.way, self.shot = way, shot
        return self

    def prepare(self, bank: BaseBank | None) -> Method:
        """Choose the parameters, then prepare."""
        if bank is not None:
            self.params = selftune(bank, shot=self.shot, way=self.way).params.with_changes(**self.given)
        return super().prepare(bank)


# ---- candidates -----------------------------------------------------------------------------------------------------


def candidates(default: GDCParams, whiten: float, n_classes: int, seed: int) -> list[GDCParams]:
    """Parameters around the preset: scattered evenly (a Sobol sequence) over whitening, neighbours and weights.

    `whiten` is the shrinkage that the preset's "auto" stands for: base classes cannot tell how far the covariance of
    novel ones is from theirs, so that nobody strays far from it. Nor can they tell which power suits features of
    another domain, or whether to trust them there: Gaussianization and trust stay as they are.
    """
    points = torch.quasirandom.SobolEngine(6, scramble=True, seed=seed).draw(_CANDIDATES).double().tolist()
    out = []
    for p in points:
        changes: dict[str, Any] = {
            "whiten": whiten * _between(p[0], 0.4, 2.5, log=True),
            "k": min(n_classes, max(1, round(default.k * _between(p[1], 0.5, 2.0, log=True)))),
            "m": _between(p[2], 1.5, 5.0),
            "unit": default.unit * _between(p[3], 0.75, 4 / 3, log=True),
            "strength": default.strength * _between(p[4], 0.4, 2.5, log=True),
            "query_pull": _between(p[5], 0.0, 0.3),
        }
        out.append(default.with_changes(**changes))
    return out


def _between(share: float, low: float, high: float, log: bool = False) -> float:
    return low * (high / low) ** share if log else low + share * (high - low)


def blend(default: GDCParams, best: list[GDCParams], whiten: float) -> GDCParams:
    """Half-way between the preset and the average of the best.

    `whiten` is the shrinkage that the preset's "auto" stands for. Scales are averaged in logarithms.
    """
    changes: dict[str, Any] = {}
    for name in ("whiten", "k", "unit", "strength"):
        start = whiten if name == "whiten" else getattr(default, name)
        mean = sum(math.log(getattr(p, name)) for p in best) / len(best)
        changes[name] = math.exp((math.log(start) + mean) / 2)
    changes["k"] = round(changes["k"])
    for name in ("m", "query_pull"):
        changes[name] = (getattr(default, name) + sum(getattr(p, name) for p in best) / len(best)) / 2
    return default.with_changes(**changes)


# ---- pseudo-novel tasks ---------------------------------------------------------------------------------------------


class _World:
    """Pseudo-novel tasks, fold by fold, and the accuracy of parameters on them."""

    def __init__(self, bank: BaseBank, own: float, shot: int, way: int, seed: int) -> None:
        self.bank = bank
        random = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(bank), generator=random)
        count = max(2, min(_FOLDS, len(bank) // (way + 3)))
        self.folds = [order[i::count].sort().values for i in range(count)]
        per_class = max(_ROWS, shot + _QUERY)
        spec = EpisodeSpec(way, shot, _QUERY, seed, True)
        self.tasks = self._episodes(spec, per_class)
        centres = torch.cat([described_means(bank, held, own) for held in self.folds])
        spread = torch.cat([_deviations(bank, c, per_class, random) for held in self.folds for c in held.tolist()])
        centres = centres.repeat_interleave(per_class, dim=0)
        easy = self._episodes(EpisodeSpec(way, 1, _QUERY, seed, True), per_class)
        self.spread = _widening(bank, centres, spread, easy)
        self.rows = _as_features(bank, centres + self.spread * spread)
        # Rows of a bank in a space of its own are in that space already.
        self.space = bank.as_raw() if bank.transform is not None else bank

    def _episodes(self, spec: EpisodeSpec, per_class: int) -> list[tuple[int, Episodes]]:
        """Tasks of each fold, with the row at which its classes begin."""
        out, begin, each = [], 0, -(-_TASKS // len(self.folds))
        for number, held in enumerate(self.folds):
            labels = np.repeat(np.arange(len(held)), per_class)
            out.append((begin, sample_episodes(labels, spec, range(number * each, (number + 1) * each))))
            begin += len(labels)
        return out

    def shrinkage(self, params: GDCParams) -> float:
        """λ in force for the parameters."""
        return float(self._ready(params)._space[1]) if params.whiten == "auto" else float(params.whiten)

    def _ready(self, params: GDCParams) -> Any:
        if self.space is not self.bank:
            params = params.with_changes(beta=1.0, kind="none", center=False, l2=False)
        return GDC(params, cap_k=True).prepare(self.space)

    def accuracy(self, params: GDCParams) -> np.ndarray:
        """Accuracy on every task, `(tasks,)`."""
        method = self._ready(params)
        z = method.transform(self.rows, "base X")
        whole = method.bank
        held_out_similarity(whole)
        out = []
        with torch.no_grad():
            for held, (begin, episodes) in zip(self.folds, self.tasks, strict=True):
                keep = torch.ones(len(whole), dtype=torch.bool)
                keep[held] = False
                part = copy.copy(method)
                part.bank = subset(whole, keep.nonzero().flatten())
                part.params = method.params.with_changes(k=min(method.params.k, len(part.bank)))
                out.append(_answers(part, z, begin, episodes))
                whole.memo.share(part.bank.memo, ["unwhitening"])  # an inverse that only some tasks ask for
        return np.concatenate(out)


def _answers(method: GDC, z: Tensor, begin: int, episodes: Episodes) -> np.ndarray:
    spec, tasks = episodes.spec, len(episodes)
    support = torch.tensor(episodes.support.reshape(tasks, -1), device=z.device) + begin
    query = torch.tensor(episodes.query.reshape(tasks, -1), device=z.device) + begin
    order = torch.arange(spec.way, device=z.device)
    labels = order.repeat_interleave(spec.shot).expand(tasks, -1)
    random = TaskRandom(spec.seed, episodes.task_ids.tolist(), z.device)
    head = method.fit(z[support], labels, spec.way, random)
    right = head.logits(z[query]).argmax(dim=-1) == order.repeat_interleave(spec.query)
    return right.double().mean(dim=1).cpu().numpy()


def described_means(bank: BaseBank, held: Tensor, own: float) -> Tensor:
    """Means of pseudo-novel classes `(H, D)`: those of `held (H,)`, but of what others leave undescribed only `own`."""
    means = bank.means.double()
    centre = means.mean(dim=0)
    centred = means - centre
    unit = l2_normalise(centred)
    others = torch.ones(len(bank), dtype=torch.bool)
    others[held] = False
    pool = others.nonzero().flatten().to(means.device)
    out = []
    for c in held.tolist():
        near = pool[(unit[pool] @ unit[c]).topk(min(DICTIONARY, len(pool))).indices]
        basis = centred[near]
        gram = basis @ basis.T
        # A little ridge, so that near twins among the base classes do no harm.
        gram.diagonal().add_(0.01 * gram.diagonal().mean())
        described = torch.linalg.solve(gram, basis @ centred[c]) @ basis
        out.append(centre + described + own * (centred[c] - described))
    return torch.stack(out)


def _widening(bank: BaseBank, centres: Tensor, spread: Tensor, tasks: list[tuple[int, Episodes]]) -> float:
    """s at which the plain nearest centroid answers `DIFFICULTY` of the 1-shot tasks, within `WIDENING`."""
    low, high = WIDENING
    for _ in range(6):
        middle = (low * high) ** 0.5
        z = l2_normalise(_as_features(bank, centres + middle * spread) - bank.means.mean(dim=0))
        if _plain_accuracy(z, tasks) > DIFFICULTY:
            low = middle
        else:
            high = middle
    return float((low * high) ** 0.5)


def _plain_accuracy(z: Tensor, tasks: list[tuple[int, Episodes]]) -> float:
    right = []
    for begin, episodes in tasks:
        t, n = len(episodes), episodes.spec.way
        support = z[torch.tensor(episodes.support.reshape(t, n), device=z.device) + begin]
        query = z[torch.tensor(episodes.query.reshape(t, -1), device=z.device) + begin]
        truth = torch.arange(n, device=z.device).repeat_interleave(episodes.spec.query)
        right.append(((query @ support.mT).argmax(dim=-1) == truth).double().mean())
    return float(torch.stack(right).mean())


def _as_features(bank: BaseBank, rows: Tensor) -> Tensor:
    """Made-up rows as the extractor, or the bank's transform, could have given them."""
    made = rows.float()
    if bank.transform is None and bank.has_rows and _nonnegative(bank):
        made = made.clamp(min=0)
    if bank.transform is not None and bank.transform.l2:
        made = l2_normalise(made)
    return made


def _deviations(bank: BaseBank, c: int, rows: int, random: torch.Generator) -> Tensor:
    """Rows of a class less its mean, `(rows, D)`."""
    if bank.has_rows:
        own = bank.rows(c)
        picked = torch.randint(len(own), (rows,), generator=random)
        if len(own) >= rows:
            picked = torch.randperm(len(own), generator=random)[:rows]
        return own[picked.to(own.device)].double() - bank.means[c].double()
    noise = torch.randn(rows, bank.dim, generator=random, dtype=torch.float64).to(bank.device)
    values, vectors = bank.pooled_eigen()
    return ((noise @ vectors.double()) * values.double().sqrt()) @ vectors.double().T


def _nonnegative(bank: BaseBank) -> bool:
    return bank.memo.get("non-negative", lambda: all(bool((bank.rows(i) >= 0).all()) for i in range(len(bank))))


def subset(bank: BaseBank, keep: Tensor) -> BaseBank:
    """`bank.subset(keep)`, with what hardly changes with a few classes less taken over."""
    out = bank.subset(keep)
    out.memo.share(bank.memo, ("unwhitening", "held-out similarity"))
    return out
