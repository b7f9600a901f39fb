"""The accuracy benchmarks on small synthetic features: cells, paired differences, poor banks; and recorded tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fewcal.bank import BaseBank
from fewcal.errors import FewcalWarning, InputError
from fewcal.evaluation import Protocol, evaluate
from fewcal.evaluation.stats import calibration_error
from fewcal.features import FeatureSet, FeatureSplit
from fewcal.features.synthetic import make_features
from fewcal.methods import make_method
from fewcal.paper.published import implied_distances
from fewcal.tuning import Search

SCRIPTS = Path(__file__).parent.parent / "benchmarks" / "accuracy"
sys.path.insert(0, str(SCRIPTS))

import common  # noqa: E402
import default  # noqa: E402
import mahalanobis  # noqa: E402
import make_odd_sets  # noqa: E402
import make_sets  # noqa: E402
import narrow_sets  # noqa: E402
import paper_search  # noqa: E402
import poor_banks  # noqa: E402
import record  # noqa: E402
import scale  # noqa: E402


@pytest.fixture(scope="module")
def features() -> FeatureSet:
    return make_features(base=64, val=8, novel=8, rows=24, dim=32)


def test_cells_are_read_and_wrong_ones_refused() -> None:
    assert [(c.way, c.shot) for c in common.parse_cells("5x1, 20x5")] == [(5, 1), (20, 5)]
    assert len(common.parse_cells("all")) == 8
    for text in ("5", "5x", "x1", "1x1", "5x0", "5x1,"):
        with pytest.raises(InputError, match="WAYxSHOT"):
            common.parse_cells(text)


def test_a_cell_fits_where_classes_and_rows_suffice(features: FeatureSet) -> None:
    novel = features.split("novel")
    assert common.Cell(8, 9).fits(novel)
    assert not common.Cell(9, 1).fits(novel)
    assert not common.Cell(5, 10).fits(novel)  # 10 + 15 rows of 24


def test_differences_are_paired_on_the_tasks_that_both_have() -> None:
    a, b = np.array([0.9, 0.8, 0.1]), np.array([0.8, 0.6])
    found = common.difference(a, b)
    assert found.mean == pytest.approx(15.0)
    assert common.average([found, common.Points(5.0, 0.0)]).mean == pytest.approx(10.0)


def test_slow_methods_run_on_the_first_of_the_same_tasks(features: FeatureSet) -> None:
    methods = {name: make_method(name) for name in ("ncm", "dc", "hgdc")}
    cells = [common.Cell(9, 1), common.Cell(5, 1)]  # nine ways do not fit
    [(cell, found)] = common.run_cells(features, cells, methods, 8, 0, "novel", {"dc": 3})
    assert (cell.way, {name: len(one.accuracy) for name, one in found.items()}) == (5, {"ncm": 8, "dc": 3, "hgdc": 8})
    alone = evaluate(["dc", "hgdc"], features, Protocol(way=5, shot=1, tasks=8))
    np.testing.assert_allclose(found["dc"].accuracy, alone.accuracy("dc")[:3])
    np.testing.assert_allclose(found["hgdc"].accuracy, alone.accuracy("hgdc"))
    assert found["hgdc"].ece == pytest.approx(calibration_error(alone.bins["hgdc"]))


def test_the_summary_has_the_best_baseline_of_each_cell_and_names_cells_below_it() -> None:
    def cell(shot: int, plain: float, ours: float, ece: float) -> default.CellResult:
        values = {"ncm": plain - 0.1, "simpleshot": plain, "hgdc": ours}
        outcomes = {name: common.Outcome(np.full(4, value), ece) for name, value in values.items()}
        return default.CellResult("birds", common.Cell(5, shot), outcomes)

    lines = default.summary([cell(1, 0.7, 0.75, 0.01), cell(5, 0.9, 0.89, 0.07)])
    assert "mean difference to the best baseline of each cell: +2.00 ± 0.00" in lines
    assert "mean difference to ncm: +12.00 ± 0.00" in lines
    assert "below a baseline: birds 5x5 -1.00 ± 0.00 (simpleshot)" in lines
    assert "calibration error: mean 0.040, largest 0.070 (birds 5x5)" in lines


def test_poor_banks_have_few_classes_shuffled_labels_or_noise(features: FeatureSet) -> None:
    base = features.split("base")
    few = poor_banks.few_classes(base, 5)
    assert len(few.classes) == 5
    for code, name in enumerate(few.classes):
        mine = few.float32()[few.require_labels() == code]
        assert np.array_equal(mine, base.float32()[base.require_labels() == base.classes.index(name)])
    mixed = poor_banks.shuffled_labels(base)
    assert np.array_equal(mixed.float32(), base.float32())
    assert (mixed.require_labels() != base.require_labels()).mean() > 0.9
    noise = poor_banks.made_up(base)
    assert np.allclose(noise.float32().mean(), base.float32().mean(), atol=0.2)
    assert len(noise.classes) == poor_banks.MADE_UP_CLASSES


def test_base_classes_get_weight_by_their_number_and_none_with_shuffled_labels(features: FeatureSet) -> None:
    base = features.split("base")
    full, few = poor_banks.base_weight(base), poor_banks.base_weight(poor_banks.few_classes(base, 5))
    assert 1 >= full > few > 0
    with pytest.warns(FewcalWarning, match="do not differ"):
        assert poor_banks.base_weight(poor_banks.shuffled_labels(base)) == 0


def test_a_set_of_the_same_extractor_is_found() -> None:
    folders = [Path(name) for name in ("text-minilm", "text-wordllama", "pydoc-minilm", "a-resnet12", "b-resnet12")]
    assert poor_banks.relative(folders[0], folders) == folders[2]
    assert poor_banks.relative(folders[1], folders) is None
    assert poor_banks.relative(folders[3], folders) is None  # each was trained on its own base classes


def test_sets_that_cannot_be_made_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sets.debian_texts.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))  # no apt-cache here
    assert make_sets.main(["--out", str(tmp_path / "sets"), "text-wordllama", "cub-efficientnet"]) == 1
    told = capsys.readouterr().out
    assert "text-wordllama: not made; descriptions of Debian's packages come from apt-cache" in told
    assert "cub-efficientnet: not made; give the folder that holds images/cub_base.npz with --packs" in told
    assert not (tmp_path / "sets").exists()


def test_signs_of_printed_mahalanobis_distances() -> None:
    rng = np.random.default_rng(0)
    narrow, wide = rng.normal(0, 0.1, (40, 3)), rng.normal(5, 3, (40, 3))
    bank = BaseBank().fit(np.concatenate([narrow, wide]), np.repeat(["narrow", "wide"], 40))
    found = mahalanobis.signs(bank.means, bank)
    assert (found.negative, found.nearest_negative, found.other_nearest) == (0.25, 0.5, 0.0)
    thin = make_features(base=4, val=4, novel=4, rows=6, dim=8)
    assert "4 of 4 have no inverse" in str(mahalanobis.look(thin, "val", unit=False))


def test_the_papers_search_is_compared_with_the_published_setting_on_the_same_tasks(features: FeatureSet) -> None:
    search = Search("paper", "paper/cub", "closed_form", trials=1, tasks=3)
    settings = paper_search.published_settings("cub", 1, "closed_form")
    assert settings["published"].alpha1 == 8000
    assert settings["published, unit scale"].l2
    rows = paper_search.compare(features, search, settings | {"again": settings["published"]}, 4, "cpu")
    assert [row.name for row in rows] == ["published", "published, unit scale", "again"]
    gains = [row.to_dict(rows[0])["gain"] for row in rows]
    assert gains[0] == gains[2] == (0.0, 0.0)
    mean, half = paper_search.mean_and_half_width(np.array([0.4, 0.6]))
    assert mean == pytest.approx(50)
    assert half == pytest.approx(196 * 0.1)


def test_the_scale_of_features_is_a_squared_distance(features: FeatureSet) -> None:
    small = scale.nearest(features, "val", beta=1.0)
    base, val = features.split("base"), features.split("val")
    twice = FeatureSet(
        FeatureSplit.from_arrays(2 * base.features, base.require_labels(), base.classes),
        FeatureSplit.from_arrays(2 * val.features, val.require_labels(), val.classes),
    )
    assert scale.nearest(twice, "val", beta=1.0) == pytest.approx(4 * small, rel=1e-4)


def test_weights_of_the_paper_imply_its_distances() -> None:
    found = implied_distances("mini", 1)
    assert len(found) == 8
    w = 1 / (1 + np.array(found))  # m = 1
    np.testing.assert_allclose(w / (1 + w.sum()), [0.1008, 0.0979, 0.0953, 0.0935, 0.0928, 0.0924, 0.0916, 0.0912])
    assert implied_distances("cub", 1) == implied_distances("birds", 1) == []


def test_odd_sets_without_what_they_are_made_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_odd_sets.main(["--out", str(tmp_path), "cub-few-rows", "cub-pixels"]) == 1
    said = capsys.readouterr().out
    assert "cub-few-rows: not made; it is made from cub-efficientnet" in said
    assert "cub-pixels: not made; give the folder that holds images/cub_base.npz" in said
    assert not list(tmp_path.iterdir())


def test_few_rows_keep_every_base_class() -> None:
    x, labels = np.arange(12.0).reshape(6, 2), ["a", "a", "a", "b", "b", "c"]
    kept, names = make_odd_sets.few_rows({"base": (x, labels)}, 2)["base"]
    assert list(names) == ["a", "a", "b", "b", "c"]
    np.testing.assert_array_equal(kept, x[[0, 1, 3, 4, 5]])


def test_histograms_of_a_plain_and_a_striped_picture() -> None:
    plain = np.full((64, 64, 3), 200, np.uint8)
    striped = plain.copy()
    striped[:, ::8] = 0
    found = make_odd_sets.gradients_and_colours(np.stack([plain, striped]))
    assert found.shape == (2, 640)
    assert not found[0, :576].any()
    assert found[0, 576:].tolist().count(4096) == 1  # all pixels have one colour
    assert found[1, :576].reshape(-1, 9)[:, 0].any()  # across the stripes, and in no other direction
    assert not found[1, :576].reshape(-1, 9)[:, 1:8].any()
    assert sorted(found[1, 576:])[-2:] == [512, 3584]


def test_a_narrow_layer_leaves_about_as_many_directions_as_there_were_categories(
    features: FeatureSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(narrow_sets, "STEPS", 300)
    made = narrow_sets.narrow_set(features, width=16, categories=4)
    assert {name: (split.features.shape[1], len(split.classes)) for name, split in made.items()} == {
        "base": (16, 4),
        "val": (16, 6),
        "novel": (16, 6),
    }
    assert np.array_equal(
        np.bincount(made["base"].require_labels()) % 24, np.zeros(4)
    )  # whole classes of 24 rows were merged
    rows = made["base"].float32()
    variances = np.linalg.eigvalsh(np.cov(rows.T))
    assert variances[-4:].sum() > 0.5 * variances.sum()
    FeatureSet(**made)  # no category is in two splits


def test_the_pages_of_results_are_what_the_records_give() -> None:
    assert record.PAGE.read_text(encoding="utf-8") == record.page()  # `make results` writes them
    assert len(record.page().splitlines()) <= 250
    for path in record.other_pages():
        text = path.read_text(encoding="utf-8")
        assert record.fill(text) == text


def test_a_recorded_table_replaces_what_was_measured_and_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(record.HERE / "speed" / "run.py"), "--record", "speed/loop", str(tmp_path)])
    written = {"title": "Speed", "tables": {"loop": {"title": "Loop", "rows": [["old", "1"]], "notes": ["Quiet."]}}}
    (tmp_path / "speed.json").write_text(json.dumps(written), encoding="utf-8")
    table = record.Table("method", "tasks/s")
    table.add("dc", 2.5)
    table.keep("speed/loop")
    found = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))["tables"]["loop"]
    assert (found["title"], found["notes"], found["rows"]) == ("Loop", ["Quiet."], [["dc", "2.5"]])
    assert found["command"] == f"python benchmarks/speed/run.py {tmp_path.name}"
    assert "| dc | 2.5 |\n\nQuiet." in record.page()
    marked = "Before.\n<!-- results: speed/loop rows=d -->\nold\n<!-- end -->\nAfter."
    assert "| dc | 2.5 |" in record.fill(marked)
    assert record.fill(record.fill(marked)) == record.fill(marked)
    table.keep(None)
    with pytest.raises(SystemExit, match="SECTION/NAME"):
        table.keep("nowhere")
    with pytest.raises(ValueError, match="names of their own"):
        record.Table("%", "%")


def test_a_table_shows_some_columns_and_rows_on_the_page() -> None:
    rows = [["a", "5x1", "1"], ["a", "5x5", "2"]]
    table = {"columns": ["features", "cell", "gdc"], "rows": rows}
    table["shown"] = {"columns": ["gdc"], "where": {"cell": ["5x5"]}}
    assert record.shown(table) == (["gdc"], [["2"]])
