"""Golden logits: what presets and methods give in the worlds of `golden.worlds`, by name, and the file that keeps them.

Names are `preset/NAME@1shot` for every preset of GDC and `method/NAME@1shot` for other methods, at 1, 3 and 5 shots. A
value is `(worlds, T, Q, N)`. With PYTHONPATH=tests:

    python -m golden.values                                what differs from the file; exit status 1 if anything does
    python -m golden.values --update 'method/hgdc@*'    rewrite these names and no other

An update is refused where a name that it does not match differs too. Names that there are no more drop out of the file.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning
from fewcal.methods import METHODS, Method, TaskBatch, make_method
from fewcal.presets import get_preset, list_presets
from golden.worlds import SHOTS, WAYS, WORLDS, World, worlds_checksum

FILE = Path(__file__).parent / "logits.npz"
SEED = 7
# Points to draw in place of 750, where a head is trained on points: so few are not in half precision on any processor.
POINTS = 40
# The paper's α1 and α2/α1 are for features of its own. Divided by these, base classes and shrinkage both tell in the
# points, the learning rate of the paper suits them, and no covariance has negative eigenvalues: what points are drawn
# with would be eigenvectors then, and of these every processor finds its own.
ALPHA1_UNIT, ALPHA2_UNIT = 1000, 500
# The largest difference between two processors, in units of the largest logit of a task, or of 1.
TOLERANCE = 1e-5
# L-BFGS stops where the gradient is small, at a point that rounding moves: least determined is logistic regression on
# raw features, 2.5e-5 apart. The study of HGDC stops at a confidence that single precision rounds.
# Adam takes steps of one length wherever a gradient is not zero, also where rounding alone makes it so.
TOLERANCES = {"method/lr@*": 1e-4, "method/lr[-_]*": 3e-5, "method/hgdc*": 3e-5, "method/*tim@*": 1e-2}
# With these a processor takes other kernels.
_SURROUNDINGS = ("FEWCAL_FLOAT32", "FEWCAL_OPS", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")


# ---- values ---------------------------------------------------------------------------------------------------------


def golden_names() -> list[str]:
    """Every preset of GDC and every other method, at all shots."""
    of = [*(f"preset/{name}" for name in list_presets()), *(f"method/{name}" for name in METHODS if name != "gdc")]
    return [f"{name}@{shots}shot" for name in of for shots in SHOTS]


def golden_method(name: str) -> Method:
    """The method of `preset/NAME` or `method/NAME`, with fewer points to draw."""
    kind, _, own = name.partition("/")
    if kind == "preset":
        return make_method("gdc", own, **preset_settings(own))
    return make_method(own, **({"n": POINTS} if own == "dc" else {}))


def preset_settings(name: str) -> dict[str, float]:
    """What differs from a preset: nothing where no points are drawn."""
    p = get_preset(name)
    if not p.trainer.samples:
        return {}
    return {"n": POINTS, "alpha1": p.alpha1 / ALPHA1_UNIT, "alpha2_ratio": p.alpha2_ratio / ALPHA2_UNIT}


def compute(name: str) -> np.ndarray:
    """Logits `(worlds, T, Q, N)` of a name, on one thread and from a bank of their own: no other entry can change them.

    Warnings that data are few are no news here.
    """
    of, _, setting = name.rpartition("@")
    shots, threads = int(setting.removesuffix("shot")), torch.get_num_threads()
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)
        torch.set_num_threads(1)
        try:
            logits = torch.stack([_logits(golden_method(of), world, shots) for world in WORLDS])
        finally:
            torch.set_num_threads(threads)
    return logits.numpy()


def _logits(method: Method, world: World, shots: int) -> torch.Tensor:
    # Copies begin where torch lets tensors begin: a product of matrices is rounded as these lie in memory.
    bank = BaseBank().fit(torch.from_numpy(world.base).clone(), world.base_labels)
    rows, labels = (torch.from_numpy(part).clone() for part in world.support_of(shots))
    query = torch.from_numpy(world.query).clone()
    method = method.prepare(bank)
    support, asked = (method.transform(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:2], -1) for x in (rows, query))
    batch = TaskBatch(support, labels, WAYS, TaskRandom(SEED, range(len(rows))))
    return method.fit_predict(batch, asked).detach().float()


def tolerance(name: str) -> float:
    """How far a value may be from the stored one, as `difference` has it."""
    return max([TOLERANCE, *(wide for pattern, wide in TOLERANCES.items() if fnmatchcase(name, pattern))])


def difference(found: np.ndarray, stored: np.ndarray) -> float:
    """The largest difference of logits, in units of the largest of a stored task, or of 1; ∞ where one is no number.

    >>> difference(np.full((1, 1), 21.0), np.full((1, 1), 20.0))
    0.05
    """
    scale = np.maximum(1, np.abs(stored).max(axis=(-2, -1), keepdims=True))
    far = float((np.abs(found.astype(float) - stored) / scale).max())
    return far if np.isfinite(far) else float("inf")


def this_machine() -> str:
    """What decides the last bits of a value: the same text, the same bits."""
    numbers = f"torch {torch.__version__}, numpy {np.__version__}"
    kernels = [
        torch.backends.cpu.get_cpu_capability(),
        *(f"{k}={os.environ[k]}" for k in _SURROUNDINGS if k in os.environ),
    ]
    return f"{numbers}, {platform.machine()}, {_processor()}, {' '.join(kernels)}"


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    first = facts.read_text(encoding="utf-8").partition("\n\n")[0] if facts.is_file() else ""
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    found = [known[key] for key in ("model name", "cpu family", "model", "stepping") if key in known]
    return " ".join(found) or platform.processor()


# ---- the file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Golden:
    """A stored value and the machine that it was computed on."""

    logits: np.ndarray
    machine: str


def load(file: Path = FILE) -> dict[str, Golden]:
    """All stored values; none where there is no file, or where it is of other worlds."""
    if not file.is_file():
        return {}
    with np.load(file) as stored:
        if str(stored["worlds"]) != worlds_checksum():
            return {}
        rows = zip(stored["names"].tolist(), stored["logits"], stored["machines"].tolist(), strict=True)
        return {name: Golden(logits, machine) for name, logits, machine in rows}


def save(values: Mapping[str, Golden], file: Path = FILE) -> None:
    """Write all values, with the worlds that they are of."""
    np.savez_compressed(
        file,
        worlds=np.array(worlds_checksum()),
        names=np.array(list(values)),
        logits=np.stack([value.logits for value in values.values()]).astype(np.float32),
        machines=np.array([value.machine for value in values.values()]),
    )


def update(patterns: Sequence[str], file: Path = FILE) -> int:
    """Compare every name with the file and rewrite those that match a pattern; says what changes, returns exit status.

    Nothing is written where another name differs, or is not in the file: also for want of a file, or of other worlds.
    """
    stored, here, made, others, written = load(file), this_machine(), {}, 0, 0
    for name in golden_names():
        matches = any(fnmatchcase(name, pattern) for pattern in patterns)
        found, before = compute(name), stored.get(name)
        far = None if before is None else difference(found, before.logits)
        if far is None or far > tolerance(name):
            print(f"{name}: {'not in the file' if far is None else f'differs by {far:.2g}'}")
            others += not matches
        written += matches
        made[name] = Golden(found, here) if matches or before is None else before
    gone = [name for name in stored if name not in made]
    for name in gone:
        print(f"{name}: in the file alone")
    if others:
        print(f"{others} of these match none of the patterns: nothing is written" if patterns else f"{others} differ")
        return 1
    if not patterns:
        return 1 if gone else 0
    save(made, file)
    print(f"{written} of {len(made)} values written anew, {len(gone)} left out")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare golden logits with their file, or rewrite some of them.")
    parser.add_argument("--update", nargs="+", default=[], metavar="NAME", help="patterns of names to rewrite")
    sys.exit(update(parser.parse_args().update))
