"""`make demo`: letters of unseen scripts from one and five examples, every method on the same tasks, and a report.

Beside it, two banks that cannot help: of few letters, and with shuffled labels.

Pictures are drawn from fonts, features come from the small network in the package; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fewcal._utils.atomic import atomic_path
from fewcal._utils.terminal import ProgressBar
from fewcal.bank import BaseBank
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.errors import FewcalError, FewcalWarning, InputError
from fewcal.evaluation import Protocol, Results, evaluate
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.methods import parse_methods
from fewcal.methods.dc import DC
from fewcal.methods.gdc import GDC

if TYPE_CHECKING:
    from fewcal.estimators.explain import Explanation
    from fewcal.features.glyphs import GlyphPictures
    from fewcal.render import Page
    from fewcal.render.page import Value

METHODS = ("ncm", "simpleshot", "lr_l2", "dc", "support-only", "hgdc")
REFERENCE, WITHOUT_BASES = "simpleshot", "support-only"
# Its paper samples 750 points a class; 100 are as good on the validation letters, and eight times as fast.
DC_POINTS = 100
WHAT = {
    "ncm": "nearest centroid",
    "simpleshot": "nearest centroid after centring and normalising",
    "lr_l2": "logistic regression on centred rows of unit length",
    "dc": f"distribution calibration, {DC_POINTS} sampled points a class",
    "support-only": "what fewcal recommends without base letters",
    "hgdc": "HGDC, the hierarchical Gaussian model that fewcal recommends",
}
SHOWN_QUERIES, SHOWN_BASES = 5, 5
FEW_LETTERS = 10


@dataclass(frozen=True, eq=False)
class SolvedTask:
    """One task, its answers and what shaped them.

    number: of the task; names: the N classes; support (N,) and query (N, Q) rows of the novel pictures; answers and
    confidence (N, Q), the answer a position in `names`.
    """

    number: int
    names: list[str]
    support: np.ndarray
    query: np.ndarray
    answers: np.ndarray
    confidence: np.ndarray
    explanation: Explanation


@dataclass(frozen=True, eq=False)
class PoorBank:
    """Base letters that cannot help: the methods with them on the one-shot tasks, and the warning of fewcal."""

    what: str
    results: Results
    warning: str


def poor_banks(features: FeatureSet, protocol: Protocol) -> list[PoorBank]:
    """A bank of few letters, and one of all letters with shuffled labels."""
    base = features.split("base")
    x, labels, names = base.float32(), base.require_labels(), np.array(base.classes)
    rng = np.random.default_rng(protocol.seed)
    rows = np.isin(labels, rng.permutation(len(names))[:FEW_LETTERS])
    few = FeatureSplit.from_arrays(x[rows], names[labels[rows]])
    mixed = FeatureSplit.from_arrays(x, rng.permutation(names[labels]))
    found = []
    for what, split in ((f"{len(few.classes)} of the base letters", few), ("all, with shuffled labels", mixed)):
        poor = FeatureSet(base=split, novel=features.split("novel"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = evaluate([REFERENCE, WITHOUT_BASES, "hgdc"], poor, protocol)
        messages = [str(w.message) for w in caught if issubclass(w.category, FewcalWarning)]
        found.append(PoorBank(what, results, messages[0] if messages else ""))
    return found


def median_task(accuracy: np.ndarray) -> int:
    """The first task of median accuracy, of accuracies `(T,)`; of an even number the lower median.

    >>> median_task(np.array([0.9, 0.4, 0.7, 0.7]))
    2
    """
    middle = np.sort(accuracy)[(len(accuracy) - 1) // 2]
    return int(np.flatnonzero(accuracy == middle)[0])


def solve_task(features: FeatureSet, protocol: Protocol, task: int = 0) -> SolvedTask:
    """Task number `task` of a one-shot protocol, solved by `FewShotClassifier` as a user would."""
    from fewcal.estimators import FewShotClassifier

    base, novel = features.split("base"), features.split(protocol.split)
    bank = BaseBank().fit(base.float32(), np.array(base.classes)[base.require_labels()])
    drawn = sample_episodes(novel.require_labels(), protocol.spec, [task], novel.classes)
    support, query = drawn.support[0, :, 0], drawn.query[0]
    names = [novel.classes[c] for c in drawn.classes[0]]
    classifier = FewShotClassifier(bank).fit(novel.float32()[support], names)
    column = np.searchsorted(classifier.classes_, names)
    probabilities = classifier.predict_proba(novel.float32()[query.ravel()])[:, column].reshape(*query.shape, -1)
    return SolvedTask(
        task, names, support, query, probabilities.argmax(axis=-1), probabilities.max(axis=-1), classifier.explain()
    )


# ---- the report -----------------------------------------------------------------------------------------------------


def write_report(
    path: Path,
    features: FeatureSet,
    pictures: dict[str, GlyphPictures],
    runs: Sequence[Results],
    poor: Sequence[PoorBank],
) -> None:
    """One HTML file: results, poor banks, a task in pictures, what shaped its classes, and its samples in the plane."""
    from fewcal.render import Page

    base, novel = pictures["base"], pictures["novel"]
    page = Page(
        "Reading letters of scripts never seen before",
        f"fewcal demo: {len(base.glyphs)} Latin and Cyrillic letters are the base classes; {len(novel.glyphs)} letters "
        "of Georgian, Hebrew, Arabic, Tifinagh, Lao and N'Ko are classified from one or five examples each.",
    )
    page.heading("Results")
    page.text(
        "Each task has five novel letters, one or five distorted pictures of each as support, and 15 more of each as "
        "queries. All methods see the same tasks and the same features, those of a Conv-4 trained on the base letters "
        "alone. ± is half of the 95% interval."
    )
    for results in runs:
        _results_table(page, results)
    page.facts(WHAT)
    _poor_banks(page, runs[0], poor)
    task = solve_task(features, runs[0].protocol, median_task(runs[0].accuracy("hgdc")))
    _task(page, pictures, task, runs[0])
    _neighbours(page, pictures, task)
    _plane(page, features, runs[0].protocol, task.number)
    page.heading("Go on from here")
    page.text(
        "`python -m fewcal.demo --features glyphs` also writes these features, and `fewcal evaluate glyphs` and every "
        "other command works on them. `fewcal evaluate DIR` does the same with features of your own."
    )
    page.write(path)


def _results_table(page: Page, results: Results) -> None:
    from fewcal.render import Cell

    summary, p = results.summary(REFERENCE), results.protocol
    rows: list[list[Value]] = []
    for name, m in summary.methods.items():
        mark = "best" if m.accuracy == summary.methods[summary.best].accuracy else ""
        gain = Cell("–", sort=0.0)
        if name != REFERENCE:
            d = summary.difference(name, REFERENCE)
            sign = ("good" if d.difference > 0 else "bad") if abs(d.difference) > d.ci95 else ""
            gain = Cell(_points(d.difference, d.ci95, "+"), 100 * d.difference, mark=sign)
        accuracy = Cell(_points(m.accuracy, m.ci95), 100 * m.accuracy, mark=mark)
        rows.append([name, accuracy, gain, None if m.ece is None else f"{m.ece:.3f}"])
    page.table(
        ["method", "accuracy %", f"points above {REFERENCE}", "calibration error"],
        rows,
        f"{p.tasks} tasks, {p.way} letters, {p.shot} example{'s' * (p.shot > 1)} of each",
    )


def _points(value: float, half: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.2f}" + ("" if math.isnan(half) else f" ± {100 * half:.2f}")


def _poor_banks(page: Page, full: Results, poor: Sequence[PoorBank]) -> None:
    page.heading("Banks that do not help")
    page.text(
        "Novel letters share strokes with base letters, which show where other pictures of them will lie: that is the "
        f"gain of hgdc above. {FEW_LETTERS} letters are too few for a near one among them: they lend little but their "
        "covariance, and the examples get most of the weight. Letters with shuffled labels have nothing in common with "
        "each other, and answers come from the examples alone. fewcal detects this and warns. The same one-shot tasks:"
    )
    rows: list[list[Value]] = []
    for what, results in (("all", full), *((bank.what, bank.results) for bank in poor)):
        summary = results.summary(WITHOUT_BASES, class_intervals=False)
        gap = summary.difference("hgdc", WITHOUT_BASES)
        figures = [f"{100 * summary.methods[name].accuracy:.2f}" for name in (REFERENCE, WITHOUT_BASES, "hgdc")]
        ece = f"{summary.methods['hgdc'].ece:.3f}"
        rows.append([what, *figures, _points(gap.difference, gap.ci95, "+"), ece])
    columns = ["base letters", REFERENCE, WITHOUT_BASES, "hgdc", f"hgdc − {WITHOUT_BASES}", "ECE of hgdc"]
    page.table(columns, rows, "accuracy in %, one example of each letter", sortable=False)
    for bank in poor:
        if bank.warning:
            page.note(f"{bank.what}: {bank.warning}.", "warning")


def _task(page: Page, pictures: dict[str, GlyphPictures], task: SolvedTask, results: Results) -> None:
    novel = pictures["novel"]
    truth = np.arange(len(task.names))[:, None]
    right = task.answers == truth
    page.heading("One task in pictures")
    page.text(
        f"The median one-shot task: number {task.number + 1} of {results.protocol.tasks}, the first whose accuracy with"
        f" hgdc is the median of all. From one picture of each of the five letters hgdc answered {int(right.sum())} of "
        f"{right.size} queries rightly; the first {SHOWN_QUERIES} of each letter are shown."
    )
    page.table(
        ["method", "right answers of this task"],
        [[name, f"{int(count[task.number].sum())} of {right.size}"] for name, count in results.correct.items()],
        sortable=False,
    )
    for i, name in enumerate(task.names):
        page.heading(f"{i + 1}. {name}", level=4)
        items = [(picture_png(novel.pictures[task.support[i]]), f"support picture of {name}", "the one example")]
        for q in range(min(SHOWN_QUERIES, right.shape[1])):
            answer, sure = int(task.answers[i, q]), f"{task.confidence[i, q]:.0%}"
            caption = f"✓ right, {sure}" if right[i, q] else f"✗ wrong: {answer + 1}. {task.names[answer]}, {sure}"
            items.append((picture_png(novel.pictures[task.query[i, q]]), f"query {q + 1} of {name}", caption))
        page.gallery(items, small=True)


def _neighbours(page: Page, pictures: dict[str, GlyphPictures], task: SolvedTask) -> None:
    base = {glyph.name: glyph for glyph in pictures["base"].glyphs}
    page.heading("Which base letters shaped each class")
    page.text(
        "Calibration moves the mean of a class from its only example towards base letters that resemble it. The "
        "percentages are shares in the new mean; the pictures of base letters are undistorted."
    )
    for note in task.explanation.notes:
        page.note(note, "warning")
    by_name = {str(c.label): c for c in task.explanation.classes}
    for i, name in enumerate(task.names):
        one = by_name[name]
        page.heading(f"{i + 1}. {name}", level=4)
        own = picture_png(pictures["novel"].pictures[task.support[i]])
        shares = [(str(label), share) for label, share in zip(one.bases, one.shares, strict=True)]
        drawn = [pair for pair in shares if pair[0] in base][:SHOWN_BASES]  # their mean has no picture
        items = [(picture_png(base[letter].drawings[0]), letter, f"{share:.0%} {letter}") for letter, share in drawn]
        page.gallery([(own, f"support picture of {name}", f"{one.own_share:.0%} itself"), *items], small=True)
        if rest := one.shares[SHOWN_BASES:]:
            page.text(f"{len(rest)} more letters hold {sum(rest):.0%}.")


def _plane(page: Page, features: FeatureSet, protocol: Protocol, task: int) -> None:
    from fewcal.paper.points import draw_tsne, tsne_data
    from fewcal.presets import get_preset

    page.heading("Its samples in the plane")
    gdc = GDC(get_preset("paper").with_changes(center=True, l2=True), cap_k=True)
    data = tsne_data(
        {"DC": (DC(), features), "GDC": (gdc, features)},
        seed=protocol.seed,
        tasks=(task,),
        spec=EpisodeSpec(protocol.way, protocol.shot, protocol.query),
        shown=60,
        scored=20,
        split=protocol.split,
        iterations=500,
    )
    near = {name: sum(one["distance"]) / len(one["distance"]) for name, one in data["nearness"].items()}
    page.text(
        "The features of the same task by t-SNE, which keeps neighbours together and no distances. The better a method "
        "guessed a class from its one example, the better its sampled points cover the queries of that class. Over 20 "
        "tasks the energy distance between sampled points and their class, in units of the distance "
        "between two of its rows, is "
        + ", ".join(f"{distance:.2f} with {name}" for name, distance in near.items())
        + "; it is 0 for the class itself and 1 for a single example."
    )
    page.figure(
        draw_tsne(data),
        "Support, sampled and query points of the task, one panel for DC and one for GDC; numbers are the classes",
        "Numbers are the letters above. GDC has the preset `paper` on centred unit vectors; HGDC needs no samples.",
    )


def picture_png(picture: np.ndarray, side: int = 128) -> bytes:
    """A picture (H, W) uint8 with bright ink as PNG, black on white, enlarged without smoothing."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(255 - picture).resize((side, side), Image.Resampling.NEAREST).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


# ---- the command ----------------------------------------------------------------------------------------------------


def run(tasks: int, rows: int, seed: int, out: Path, features_out: Path | None) -> Path:
    """Draw, extract, evaluate, report; gives the report's path."""
    try:
        import matplotlib  # noqa: F401
        import PIL  # noqa: F401
    except ImportError as error:
        raise InputError(f"the demo needs {error.name}; pip install 'fewcal[plots]'") from error
    from fewcal._utils.tables import print_markdown
    from fewcal.features.glyphs import glyph_features, glyph_pictures

    if rows < 20:
        raise InputError(f"--rows {rows} is too few: five examples and 15 queries of a letter need 20")
    protocols = [Protocol(shot=shot, tasks=tasks, seed=seed) for shot in (1, 5)]  # refuses what cannot be drawn
    methods = parse_methods(",".join(METHODS), settings=[f"dc.n={DC_POINTS}"])
    report = out / "index.html"
    for folder in (out, features_out):
        if folder is not None:
            _check_writable(folder)  # now, not after a minute's work
    log, began = partial(print, file=sys.stderr, flush=True), time.monotonic()
    log("drawing letters …")
    splits = ("base", "novel") if features_out is None else ("base", "val", "novel")
    pictures = {split: glyph_pictures(split, rows, seed) for split in splits}
    log(", ".join(f"{split} {len(p.glyphs)} letters" for split, p in pictures.items()) + f", {rows} pictures each")
    log("extracting features …")
    features = glyph_features(pictures)
    if features_out is not None:
        features.save(features_out)
        log(f"features written to {features_out}")
    runs = []
    for protocol in protocols:
        with ProgressBar("tasks") as progress:
            runs.append(evaluate(methods, features, protocol, progress=progress))
        print_markdown(runs[-1].summary(REFERENCE).to_markdown())
        print(flush=True)
    poor = poor_banks(features, protocols[0])
    print("banks that do not help, one example of each:\n")
    for bank in poor:
        figures = [f"{name} {100 * bank.results.accuracy(name).mean():.2f}" for name in bank.results.correct]
        print(f"- {bank.what}: {', '.join(figures)}" + f"; {bank.warning}" * bool(bank.warning))
    print(flush=True)
    log("writing the report …")
    write_report(report, features, pictures, runs, poor)
    log(f"{time.monotonic() - began:.0f} s")
    return report


def _check_writable(folder: Path) -> None:
    with atomic_path(folder / f".fewcal-{os.getpid()}") as temporary:
        temporary.touch()
    (folder / f".fewcal-{os.getpid()}").unlink()


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `python -m fewcal.demo`; exit codes as in `fewcal`."""
    parser = argparse.ArgumentParser(prog="python -m fewcal.demo", description=__doc__)
    parser.add_argument("--tasks", type=int, default=300, help="tasks at each number of shots (300)")
    parser.add_argument("--rows", type=int, default=30, help="pictures of each letter (30)")
    parser.add_argument("--seed", type=int, default=0, help="of pictures and tasks (0)")
    parser.add_argument("--out", type=Path, default=Path("demo-report"), help="folder of the report (demo-report)")
    parser.add_argument(
        "--features", type=Path, metavar="DIR", help="also write the features, for `fewcal evaluate DIR`"
    )
    options = parser.parse_args(argv)
    try:
        report = run(options.tasks, options.rows, options.seed, options.out, options.features)
    except KeyboardInterrupt:
        print("fewcal: interrupted", file=sys.stderr)
        sys.exit(130)
    except FewcalError as error:
        print(f"fewcal: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(3 if isinstance(error.__cause__, OSError) else 2)
    print(f"report: {report.resolve()}")


if __name__ == "__main__":
    main()
