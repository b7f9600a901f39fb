"""Self-tuning: pseudo-novel classes are what they claim, the choice is safe, repeatable and remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fewcal.selftune as module
from fewcal.bank import BaseBank
from fewcal.cli import main
from fewcal.errors import InputError
from fewcal.estimators import GDCClassifier
from fewcal.evaluation import Protocol, evaluate
from fewcal.features.synthetic import make_features
from fewcal.gaussianize import fit_gaussianization
from fewcal.presets import get_preset
from fewcal.selftune import Candidate, blend, candidates, described_means, selftune, subset


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of its own, and fewer candidates."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_FOUND", {})
    monkeypatch.setattr(module, "_CANDIDATES", 8)
    monkeypatch.setattr(module, "_TASKS", 60)


def features(**more: Any) -> Any:
    return make_features(**({"base": 40, "val": 0, "novel": 10, "rows": 20, "dim": 24} | more))


def bank_of(**more: Any) -> BaseBank:
    base = features(**more).split("base")
    return BaseBank().fit(base.features, base.labels)


def test_a_pseudo_novel_mean_keeps_little_that_its_neighbours_do_not_describe() -> None:
    bank = bank_of(dim=64)
    held, own = torch.tensor([3, 17]), 0.3
    found = described_means(bank, held, own)
    means = bank.means.double().numpy()
    centre = means.mean(axis=0)
    for row, c in zip(found.numpy(), held.tolist(), strict=True):
        others = [i for i in range(len(bank)) if i not in held.tolist()]
        z = means - centre
        cosine = [z[i] @ z[c] / np.linalg.norm(z[i]) for i in others]
        near = z[[others[i] for i in np.argsort(cosine)[-module.DICTIONARY :]]]
        basis = np.linalg.qr(near.T)[0]

        def outside(v: np.ndarray, basis: np.ndarray = basis) -> float:
            return float(np.linalg.norm(v - basis @ (basis.T @ v)))

        assert outside(row - centre) == pytest.approx(own * outside(means[c] - centre), rel=1e-6)
        inside = basis.T @ (row - centre)
        np.testing.assert_allclose(inside, basis.T @ z[c], rtol=0.1, atol=0.1 * np.linalg.norm(inside))


def test_the_spread_makes_tasks_as_hard_as_asked() -> None:
    trials = module._World(bank_of(dim=48), 0.4, 1, 5, 0)
    low, high = module.WIDENING
    assert low < trials.spread < high
    easy = trials._episodes(trials.tasks[0][1].spec, 40)
    z = trials.rows - trials.bank.means.mean(dim=0)
    accuracy = module._plain_accuracy(z / z.norm(dim=1, keepdim=True), easy)
    assert accuracy == pytest.approx(module.DIFFICULTY, abs=0.06)


def test_features_that_are_never_negative_stay_so() -> None:
    assert float(module._World(bank_of(), 0.4, 1, 5, 0).rows.min()) == 0
    assert float(module._World(bank_of(relu=False), 0.4, 1, 5, 0).rows.min()) < 0


def test_the_choice_repeats_itself_and_is_never_behind_default_on_its_own_tasks() -> None:
    first, second = (module._selftune(bank_of(), 1, 5, 0) for _ in range(2))
    assert first.params == second.params
    assert first.candidates[0].params.k == 16
    assert (first.candidates[0].gains == 0).all()
    if first.params != first.candidates[0].params:
        assert first.candidates[-1].params == first.params
        assert (first.candidates[-1].gains > 0).all()
        assert "above default" in first.why


def test_without_a_clear_lead_the_preset_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLEAR", 1e9)
    found = selftune(bank_of())
    assert found.params == get_preset("default")
    assert "nothing is better than default" in found.why


def test_the_blend_lies_between_the_preset_and_the_best() -> None:
    default = get_preset("default")
    best = [default.with_changes(whiten=8.0, k=4, m=5.0, strength=0.5, unit=0.8)] * 3
    chosen = blend(default, best, 2.0)
    assert chosen.whiten == pytest.approx(4.0)
    assert chosen.k == 8
    assert chosen.m == pytest.approx((default.m + 5) / 2)
    assert chosen.strength == pytest.approx((default.strength * 0.5) ** 0.5)
    assert (chosen.beta, chosen.trust) == (default.beta, default.trust)
    nothing = [default.with_changes(whiten=2.0)]
    assert blend(default, nothing, 2.0).with_changes(whiten="auto").as_dict() == pytest.approx(default.as_dict())


def test_candidates_stay_near_the_preset() -> None:
    default = get_preset("default")
    for params in candidates(default, 3.0, 100, 0):
        assert 1.2 <= float(params.whiten) <= 7.5
        assert 8 <= params.k <= 32
    assert all(p.k <= 10 for p in candidates(default, 3.0, 10, 0))


def test_a_narrowed_bank_has_the_same_space_and_fewer_classes() -> None:
    whole = bank_of().transformed(beta=1.0, center=True, l2=True, whiten=2.0)
    part = subset(whole, torch.tensor([1, 5, 30]))
    assert part.classes == [whole.classes[i] for i in (1, 5, 30)]
    torch.testing.assert_close(part.means, whole.means[[1, 5, 30]])
    torch.testing.assert_close(part.pooled_covariance(), whole.pooled_covariance())
    assert part.unwhitened is not None
    torch.testing.assert_close(part.unwhitened.pooled_covariance(), whole.unwhitened.pooled_covariance())


def test_banks_without_rows_are_tuned_in_their_own_space() -> None:
    base = features().split("base")
    transform = fit_gaussianization(torch.from_numpy(base.features), 1.0, "auto", True, True, 1e-6)
    bank = BaseBank(0, transform=transform).fit(base.features, base.labels)
    found = selftune(bank, shot=20, way=3)
    assert (found.params.beta, found.params.center, found.params.l2) == (1.0, True, True)
    fitted = GDCClassifier(bank=bank, preset="auto").fit(base.features[:60], base.labels[:60])
    assert fitted.params_ == found.params.with_changes(k=fitted.params_.k)


def test_small_banks_and_wrong_numbers() -> None:
    assert selftune(bank_of(base=12)).params == get_preset("default").with_changes(k=12)
    with pytest.raises(InputError, match="shot=0"):
        selftune(bank_of(), shot=0)


def test_a_choice_is_remembered_by_the_banks_fingerprint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = selftune(bank_of())
    [file] = (tmp_path / "cache" / "fewcal" / "selftune").iterdir()

    def never(*_: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr(module, "_selftune", never)
    assert selftune(bank_of()).params == first.params  # in this process
    monkeypatch.setattr(module, "_FOUND", {})
    assert selftune(bank_of()).params == first.params  # from the file
    with pytest.raises(AssertionError, match="computed again"):
        selftune(bank_of(seed=1))
    monkeypatch.setattr(module, "_FOUND", {})
    file.write_text("{")
    with pytest.raises(AssertionError, match="computed again"):
        selftune(bank_of())


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert selftune(bank_of()).provenance["shot"] == 1


def test_auto_in_the_classifier_and_in_an_evaluation(tmp_path: Path) -> None:
    fs = features()
    base, novel = fs.split("base"), fs.split("novel")
    bank = BaseBank().fit(base.features, base.labels)
    rows = np.concatenate([np.flatnonzero(novel.labels == c)[:2] for c in range(5)])
    fitted = GDCClassifier(bank=bank, preset="auto").fit(novel.features[rows], novel.labels[rows])
    assert fitted.params_ == selftune(bank, shot=2).params
    assert GDCClassifier(bank=bank, preset="auto", k=3).fit(novel.features[rows], novel.labels[rows]).params_.k == 3
    results = evaluate("gdc:auto,gdc", fs, Protocol(tasks=6, query=5, shot=2))
    chosen = selftune(bank, shot=2).params.as_dict()
    assert results.settings["gdc:auto"]["preset"] == "auto"
    for name in ("whiten", "m", "strength"):
        used = results.settings["gdc:auto"][name]
        assert used == chosen[name]
    selftune(bank).save(tmp_path / "mine.json")
    assert get_preset(tmp_path / "mine.json") == selftune(bank).params
    with pytest.raises(InputError, match="no parameters of its own"):
        get_preset("auto")


def test_plain_values_for_json() -> None:
    import json

    text = json.dumps(selftune(bank_of()).to_dict())
    assert len(json.loads(text)["candidates"]) >= 9
    assert isinstance(selftune(bank_of()).candidates[0], Candidate)


@pytest.mark.parametrize("device", ["auto", "cuda:99", "tpu"])
def test_the_command_takes_the_devices_that_others_take(
    tmp_path: Path, device: str, capsys: pytest.CaptureFixture[str]
) -> None:
    features(base=12).split("base").save(tmp_path / "f" / "base.npz")
    command = ["tune", str(tmp_path / "f"), "--on", "base", "--out", str(tmp_path / "s"), "--device", device]
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == (0 if device == "auto" else 2)
    assert (tmp_path / "s" / "preset.json").is_file() == (device == "auto")
    assert ("device" in capsys.readouterr().err) == (device != "auto")
