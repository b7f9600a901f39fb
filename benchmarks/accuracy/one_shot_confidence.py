"""How well the confidence at one shot can be known: the rule of fewcal beside one that is learnt from other sets.

    python benchmarks/accuracy/one_shot_confidence.py FEATURES [MORE_FEATURES…] [--method gdc|bankless] [--tasks 200]

Of one example a class nothing can be left out, so that the scale of probabilities has to follow from what examples, a
query and the bank look like. For every set the confidence of answers is compared with how often they are right, as
calibration error:

- `rule`: as fewcal answers;
- `learnt`: a boosted classifier of whether an answer is right, from how the scores of a query lie, how alike the
  examples are, the number of classes and (for gdc) what the bank tells. It is trained on one-shot tasks of all other
  sets, both splits; sets whose names begin alike are left out together;
- `own scale`: probabilities of this very cell raised to the one power by which average confidence is accuracy. Nobody
  can know it without labelled queries; it is what a scale alone can reach.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from common import QUERIES, Cell, feature_folders, table_head, table_row
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.evaluation.stats import expected_calibration_error
from fewcal.features import FeatureSet
from fewcal.heads.discriminant import cosine_variance
from fewcal.methods import Method, TaskBatch, make_method
from fewcal.methods.hierarchical import HierarchicalGDC

CELLS = (Cell(5, 1), Cell(20, 1))
# Every so many queries are learnt from.
_LEARN_FROM = 4


@dataclass(frozen=True, eq=False)
class Answers:
    """Queries of one-shot tasks: log-probabilities `(Q, N)`, whether answers are right, and what is seen, `(Q, F)`."""

    features: str
    split: str
    cell: Cell
    log_probabilities: np.ndarray
    right: np.ndarray
    seen: np.ndarray

    @property
    def family(self) -> str:
        """Sets that are left out together."""
        return self.features.partition("-")[0]

    def error(self, confidence: np.ndarray) -> float:
        return expected_calibration_error(confidence, self.right)

    def confidence(self, power: float = 1.0) -> np.ndarray:
        """Of each answer, with probabilities raised to a power."""
        return 1 / np.exp(power * (self.log_probabilities - self.log_probabilities.max(axis=1, keepdims=True))).sum(1)

    def own_power(self) -> float:
        """The power by which average confidence is accuracy."""
        low, high = -4.0, 4.0
        for _ in range(20):
            middle = (low + high) / 2
            low, high = (middle, high) if self.confidence(2**middle).mean() < self.right.mean() else (low, middle)
        return float(2**low)


def told_by_bank(method: Method) -> list[float]:
    """What the confidence of the default follows from."""
    if not isinstance(method, HierarchicalGDC) or method.unused is not None or method.one_shot is None:
        return []
    prior, scale = method.prior, method.one_shot
    known = [prior.within, prior.along, prior.gap, method.confidence, *scale[:4]]
    return [float(np.log(value)) for value in known] + [method.say, scale.learnt]


def answers(features: FeatureSet, name: str, split: str, cell: Cell, method: Method, tasks: int) -> Answers:
    """Run the tasks of a cell."""
    rows = features.split(split)
    episodes = sample_episodes(rows.require_labels(), EpisodeSpec(cell.way, cell.shot, QUERIES), range(tasks))
    x = torch.from_numpy(rows.float32())
    support, query = (torch.from_numpy(i.reshape(tasks, -1)) for i in (episodes.support, episodes.query))
    z = method.row_map(x)
    labels = torch.arange(cell.way).expand(tasks, -1)
    random = TaskRandom(0, episodes.task_ids.tolist())
    head = method.fit(TaskBatch(z[support], labels, cell.way, random))
    scores = torch.log_softmax(head.logits(z[query][..., : head.width]), dim=-1)
    right = scores.argmax(dim=-1) == torch.arange(cell.way).repeat_interleave(QUERIES)
    seen = _seen(scores, x[support], x[query], told_by_bank(method))
    return Answers(name, split, cell, scores.flatten(0, 1).numpy(), right.flatten().numpy(), seen)


def _seen(scores: Tensor, support: Tensor, query: Tensor, bank: list[float]) -> np.ndarray:
    """`(T·Q, F)`: log-odds of the answer, cosines of the query with the examples, how alike these are, N, the bank."""
    unit = torch.nn.functional.normalize
    centre = unit(support, dim=-1).mean(dim=1, keepdim=True)
    support, query = (unit(unit(v, dim=-1) - centre, dim=-1) for v in (support, query))
    cosines = query @ support.mT
    best = cosines.topk(3, dim=-1).values
    confidence = scores.amax(dim=-1).exp().clamp(1e-6, 1 - 1e-6)
    task = [cosine_variance(support).log(), torch.full((len(scores),), float(scores.shape[-1]))]
    task += [torch.full((len(scores),), value) for value in bank]
    parts = [torch.logit(confidence), best[..., 0], best[..., 0] - best[..., 1], best[..., 0] - best[..., 2]]
    parts += [cosines.std(dim=-1)] + [value[:, None].expand_as(confidence) for value in task]
    return torch.stack(parts, dim=-1).flatten(0, 1).numpy()


def learnt(found: list[Answers], family: str) -> HistGradientBoostingClassifier:
    """The classifier of right answers, from all sets but a family; every cell counts as much."""
    others = [a for a in found if a.family != family]
    seen, right = (np.concatenate([getattr(a, key)[::_LEARN_FROM] for a in others]) for key in ("seen", "right"))
    weight = np.concatenate([np.full(len(a.right[::_LEARN_FROM]), 1 / len(a.right)) for a in others])
    model = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=8, min_samples_leaf=1000, random_state=0)
    return model.fit(seen, right, weight / weight.mean())


def main() -> None:
    """Print a row for each cell and what is missed by each way of knowing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="+")
    parser.add_argument("--method", default="gdc", choices=("gdc", "bankless"))
    parser.add_argument("--tasks", type=int, default=200)
    options = parser.parse_args()
    found: list[Answers] = []
    for folder in feature_folders(*options.features):
        features = FeatureSet.load(folder)
        base = features.split("base")
        bank = BaseBank().fit(base.features, base.require_labels()) if options.method == "gdc" else None
        method = make_method(options.method).prepare(bank)
        for split in (s for s in ("val", "novel") if s in features.splits()):
            for cell in (c for c in CELLS if c.fits(features.split(split))):
                tasks = max(options.tasks * 5 // cell.way, 1)
                found.append(answers(features, folder.name, split, cell, method, tasks))
    models = {family: learnt(found, family) for family in sorted({a.family for a in found})}
    print(table_head("features", "split", "cell", "accuracy", "rule", "learnt", "own scale", "power"))
    errors = []
    for a in found:
        told = (a.confidence(), models[a.family].predict_proba(a.seen)[:, 1], a.confidence(a.own_power()))
        errors.append([a.error(c) for c in told])
        numbers = (f"{100 * a.right.mean():.1f}", *(f"{e:.3f}" for e in errors[-1]), f"{a.own_power():.2f}")
        print(table_row([a.features, a.split, a.cell, *numbers]))
    mean, over = np.mean(errors, axis=0), (np.array(errors) > 0.06).sum(axis=0)
    for name, average, count in zip(("rule", "learnt", "own scale"), mean, over, strict=True):
        print(f"- {name}: {average:.3f} on average, above 0.06 in {count} of {len(found)} cells")


if __name__ == "__main__":
    main()
