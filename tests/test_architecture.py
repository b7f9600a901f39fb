"""docs/architecture.md: a toy one of each thing, added by its recipe, works from end to end.

What a recipe puts into a file is defined inside its test; `registered` takes it out again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pytest
import torch

from fewcal import BaseBank, GDCClassifier, GDCParams
from fewcal.cli import main
from fewcal.evaluation import Protocol, evaluate
from fewcal.methods import make_method
from small_features import feature_set

if TYPE_CHECKING:
    import optuna

    from fewcal.paper.blocks import Records
    from fewcal.paper.measure import Case

ROOT = Path(__file__).parent.parent
FEW = Protocol(way=3, shot=1, query=5, tasks=4)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """All registries as they were, whatever a test adds."""
    from fewcal.calibrate import METRICS
    from fewcal.evaluation.summary import STATISTICS
    from fewcal.features.extractors.base import REGISTRY
    from fewcal.features.io.files import FORMATS
    from fewcal.heads import HEADS
    from fewcal.methods.registry import METHODS
    from fewcal.paper.experiments import EXPERIMENTS
    from fewcal.tuning.spaces import SPACES

    registries = (EXPERIMENTS, FORMATS, HEADS, METHODS, METRICS, REGISTRY, SPACES, STATISTICS)
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)


def fewcal(*arguments: object) -> None:
    """The command, as a user types it."""
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    assert end.value.code == 0


def test_the_page_names_files_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`(src/\S+?)`", page)
    assert len(named) >= 12
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_a_distance(tmp_path: Path) -> None:
    from fewcal.calibrate import MetricOptions, distances, register_metric

    @register_metric("toy", "sum of absolute differences")
    def toy(x: torch.Tensor, bank: BaseBank, options: MetricOptions) -> torch.Tensor:
        """Σ|x − μ|."""
        return (x[..., None, :] - bank.means).abs().sum(dim=-1)

    features = feature_set()
    bank = BaseBank().fit(features.base.features, features.base.labels)
    x = torch.from_numpy(features.novel.features[:3])
    assert distances(x, bank, "toy").shape == (3, len(bank))
    support = features.novel.features[[0, 20, 40]]
    settings = {"preset": "paper", "head": "closed_form", "k": 3}
    ours = GDCClassifier(bank, metric="toy", **settings).fit(support, [0, 1, 2])
    theirs = GDCClassifier(bank, metric="euclidean", **settings).fit(support, [0, 1, 2])
    assert (ours.predict_proba(support) != theirs.predict_proba(support)).any()
    features.save(tmp_path / "features")
    fewcal(
        *("evaluate", tmp_path / "features", "--methods", "gdc", "--preset", "paper", "--set", "metric=toy"),
        *(
            "--set",
            "head=closed_form",
            "--set",
            "k=3",
            "--way",
            3,
            "--tasks",
            4,
            "--query",
            5,
            "--out",
            tmp_path / "run",
        ),
    )
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["methods"]["gdc"]["settings"]["metric"] == "toy"


def test_a_search_space(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    from fewcal.methods import GDC
    from fewcal.presets import get_preset
    from fewcal.tuning import search_space

    @search_space("toy", "a handful of neighbours", heads=("closed_form",))
    def toy(trial: optuna.Trial, classes: int, heads: Sequence[str]) -> GDC:
        k = trial.suggest_int("k", 1, min(3, classes))
        return GDC(get_preset("paper").with_changes(head=heads[0], k=k))

    feature_set().save(tmp_path / "features")
    fewcal(
        *("tune", tmp_path / "features", "--space", "toy", "--trials", 3, "--way", 3, "--tasks", 4, "--query", 5),
        *("--final-tasks", 4, "--out", tmp_path / "study", "--quiet"),
    )
    preset = json.loads((tmp_path / "study" / "preset.json").read_text())
    assert 1 <= preset["params"]["k"] <= 3


def test_a_method(tmp_path: Path) -> None:
    from fewcal.heads import TaskBatch
    from fewcal.heads.linear import LinearHead, class_means, nearest_mean_head
    from fewcal.methods.base import Method
    from fewcal.methods.registry import register_method

    @register_method
    class Toy(Method):
        """Nearest centroid with a width of one's own."""

        name = "toy"

        def __init__(self, width: float = 1.0) -> None:
            self.width = width

        @property
        def settings(self) -> dict[str, float]:
            return {"width": self.width}

        def fit(self, batch: TaskBatch) -> LinearHead:
            means = class_means(batch.support, batch.labels, batch.n_classes)
            return nearest_mean_head(means, torch.full((len(means), 1, 1), self.width))

    results = evaluate({"toy": make_method("toy", width=2.0), "ncm": make_method("ncm")}, feature_set(), FEW)
    assert results.accuracy("toy").tolist() == results.accuracy("ncm").tolist()
    feature_set().save(tmp_path / "features")
    fewcal(
        *("evaluate", tmp_path / "features", "--methods", "toy,ncm", "--set", "toy.width=3"),
        *("--way", 3, "--tasks", 4, "--query", 5, "--out", tmp_path / "run", "--quiet"),
    )
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["methods"]["toy"]["settings"]["width"] == 3


def test_a_head(tmp_path: Path) -> None:
    from fewcal._utils.parameters import parameter
    from fewcal.heads import Calibrated, HeadTrainer, LinearHead, register_head
    from fewcal.heads.linear import class_means, nearest_mean_head

    @register_head("toy")
    @dataclass(frozen=True)
    class Toy(HeadTrainer):
        """The nearest calibrated class mean."""

        samples: ClassVar[bool] = False
        width: float = parameter(1.0, "width of a class", low=1e-6)

        def train(self, task: Calibrated) -> LinearHead:
            means = class_means(task.mean, task.batch.labels, task.batch.n_classes)
            return nearest_mean_head(means, torch.full((len(means), 1, 1), self.width))

    features = feature_set()
    results = evaluate({"toy": make_method("gdc", "paper", head="toy", k=3)}, features, FEW)
    assert results.accuracy("toy").mean() > 1 / 3
    # In a classifier, with its own parameter, checked like any other.
    rows = np.flatnonzero(np.isin(features.novel.labels, [0, 1, 2]))
    x, y = features.novel.features[rows], features.novel.labels[rows]
    bank = BaseBank().fit(features.base.features, features.base.labels)
    model = GDCClassifier(bank, preset="paper", k=3, head={"name": "toy", "width": 0.5}).fit(x, y)
    assert model.score(x, y) > 0.8
    with pytest.raises(ValueError, match="width=-1"):
        GDCParams(head={"name": "toy", "width": -1})
    # On the command line.
    features.save(tmp_path / "features")
    fewcal(
        *("evaluate", tmp_path / "features", "--methods", "gdc", "--preset", "paper"),
        *("--set", "head=toy", "--set", "k=3", "--way", 3, "--tasks", 4, "--query", 5, "--out", tmp_path / "run"),
    )
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["methods"]["gdc"]["settings"]["head"] == "toy"


def test_a_statistic(tmp_path: Path) -> None:
    from fewcal.evaluation.summary import STATISTICS, Statistic, percent
    from fewcal.report.run_report import run_report

    STATISTICS["toy"] = Statistic("toy", "median %", lambda m: float(np.median(m.accuracy)), percent)
    results = evaluate("ncm", feature_set(), FEW, out=tmp_path / "run")
    median = float(np.median(results.accuracy("ncm")))
    summary = results.summary()
    assert summary.methods["ncm"].value("toy") == median
    assert "| median % |" in summary.to_markdown()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["methods"]["ncm"]["toy"] == median
    run_report([tmp_path / "run"]).write(tmp_path / "report.html")
    assert "median %" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_file_format(tmp_path: Path) -> None:
    from fewcal.features import FeatureSet
    from fewcal.features.io.files import FORMATS
    from fewcal.features.io.formats import FileFormat, RawSplit

    def read(path: Path) -> RawSplit:
        held = json.loads(path.read_text())
        return RawSplit(np.array(held["features"], np.float32), np.array(held["labels"]), held["classes"])

    def write(path: Path, raw: RawSplit) -> None:
        held = {"features": raw.features.tolist(), "labels": raw.labels.tolist(), "classes": raw.classes}
        path.write_text(json.dumps(held))

    FORMATS[".toy"] = FileFormat((".toy",), read, write)
    features = feature_set()
    features.save(tmp_path / "features", format="toy")
    back = FeatureSet.load(tmp_path / "features")
    assert {n: p.fingerprint() for n, p in back.splits().items()} == {
        n: p.fingerprint() for n, p in features.splits().items()
    }
    fewcal("evaluate", tmp_path / "features", "--methods", "ncm", "--way", 3, "--tasks", 2, "--query", 5, "--quiet")
    fewcal("bank", "build", tmp_path / "features", "--out", tmp_path / "bank.safetensors", "--quiet")
    assert BaseBank.load(tmp_path / "bank.safetensors").classes == features.base.classes


def test_an_extractor(tmp_path: Path) -> None:
    from fewcal.features.extractors import get_extractor
    from fewcal.features.extractors.base import Extractor, fingerprint_of, register

    @register("toy", kind="text", features="2", signs="≥ 0", needs="nothing")
    def toy(name: str, device: torch.device, allow_download: bool) -> Extractor:
        """Shares of vowels and of other letters."""

        def embed(texts: list[str]) -> np.ndarray:
            vowels = np.array([[sum(c in "aeiou" for c in t) / len(t)] for t in texts])
            return np.hstack([vowels, 1 - vowels])

        return Extractor(name, "text", 2, fingerprint_of(b"toy"), embed)

    assert get_extractor("toy")(["ab", "aeio"]).tolist() == [[0.5, 0.5], [1, 0]]
    (tmp_path / "support.csv").write_text("text,label\nqueue,many\nouija,many\nrhythm,few\nstrength,few\n")
    (tmp_path / "query.csv").write_text("text\naerie\ntwelfth\n")
    fewcal(
        *("classify", "--support", tmp_path / "support.csv", "--query", tmp_path / "query.csv"),
        *("--extractor", "toy", "--out", tmp_path / "answers.csv"),
    )
    rows = (tmp_path / "answers.csv").read_text().splitlines()[1:]
    assert [row.split(",")[:2] for row in rows] == [["aerie", "many"], ["twelfth", "few"]]


def test_a_table_of_the_paper(tmp_path: Path) -> None:
    from fewcal.paper.blocks import Experiment, Section, Table
    from fewcal.paper.experiments import EXPERIMENTS

    def compute(case: Case) -> dict[str, float]:
        results = evaluate("ncm", case.of.features, Protocol(way=3, shot=case.shot, query=5, tasks=case.budget.tasks))
        return {"accuracy": float(results.accuracy("ncm").mean())}

    def show(records: Records) -> Section:
        rows = [[place.dataset, place.shot, f"{100 * r['accuracy']:.2f}"] for place, r in records.items()]
        return Section([Table(["dataset", "shots", "accuracy of the toy %"], rows)])

    EXPERIMENTS["toy"] = Experiment("toy", "A toy table", "Table 0", "Nothing.", compute, show)
    feature_set().save(tmp_path / "dogs")
    fewcal("paper", "run", "toy", "--features", tmp_path / "dogs", "--tasks", 3, "--out", tmp_path / "out", "--quiet")
    assert sorted(p.name for p in (tmp_path / "out" / "results" / "toy").iterdir()) == [
        "dogs-1shot.json",
        "dogs-5shot.json",
    ]
    for name in ("summary.md", "report.html"):
        assert "accuracy of the toy %" in (tmp_path / "out" / name).read_text(encoding="utf-8")
