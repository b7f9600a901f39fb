"""What methods and heads agree on: registries, declared parameters, shared work, and names on their way out."""

from __future__ import annotations

import json
import pickle
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from fewcal.heads.composite import FallbackHead, QueryCalibratedHead

from conftest import make_world
from fewcal import BaseBank, GDCClassifier, GDCParams
from fewcal._utils.parameters import Parameter, check_parameters, parameter, parameters_of
from fewcal._utils.randomness import TaskRandom
from fewcal.apply.predict import gdc_settings
from fewcal.cli import main
from fewcal.errors import FewcalWarning, InputError
from fewcal.estimators import explain as explain_module
from fewcal.estimators.sampler import GDCSampler
from fewcal.heads import HEADS, Calibrated, HeadTrainer, LinearHead, Shared, TaskBatch, register_head
from fewcal.heads import calibrated as calibrated_module
from fewcal.heads.linear import nearest_mean_head
from fewcal.heads.sgd import SGD
from fewcal.methods import GDC, METHODS, make_method
from fewcal.params import RENAMED, describe_params
from fewcal.presets import get_preset, load_preset, save_preset
from fewcal.rejection import OutlierTest
from fewcal.tuning.spaces import default_space, field_axes, make_space

WORLD = make_world(1, signed=True, tasks=1, ways=4, shots=3)
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))


def one_task(method: GDC) -> TaskBatch:
    support, labels, _ = WORLD.tensors
    return TaskBatch(method.transform(support[0])[None], labels, WORLD.ways, TaskRandom(0))


# ---- shared work ----------------------------------------------------------------------------------------------------


def test_what_is_shared_is_made_once_and_its_time_is_charged_to_all() -> None:
    now = [0.0]
    shared = Shared(lambda: now[0])

    def slow() -> str:
        now[0] += 2.0
        return "made"

    assert "a" not in shared
    assert (shared.get("a", slow), shared.reused_seconds) == ("made", 0.0)
    assert (shared.get("a", slow), shared.reused_seconds, now[0]) == ("made", 2.0, 2.0)
    assert "a" in shared  # asking changes nothing
    assert (len(shared), shared.reused_seconds) == (1, 2.0)


def test_a_failed_entry_is_not_kept() -> None:
    shared = Shared()
    with pytest.raises(ZeroDivisionError):
        shared.get("a", lambda: 1 // 0)
    assert "a" not in shared


# ---- heads ----------------------------------------------------------------------------------------------------------


def test_the_closed_form_draws_no_sample_and_the_default_asks_for_no_covariance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("nobody asked for this")

    monkeypatch.setattr(calibrated_module, "augment", never)
    closed = make_method("gdc", "paper", head="closed_form", l2=True, k=3, alpha2_ratio=0.0).prepare(WORLD.bank())
    assert isinstance(closed.fit(one_task(closed)), LinearHead)
    monkeypatch.setattr(GDC, "shrunk", never)
    default = make_method("gdc", k=3).prepare(WORLD.bank())
    default.fit(one_task(default))
    with pytest.raises(AssertionError, match="nobody asked"):
        closed.fit(one_task(closed))


@pytest.fixture
def toy() -> Iterator[type[HeadTrainer]]:
    """A head as a reader of the recipe would add it: one class, registered by name."""

    @register_head("toy")
    @dataclass(frozen=True)
    class Toy(HeadTrainer):
        """The nearest calibrated mean, with a width of its own."""

        samples: ClassVar[bool] = False
        searched: ClassVar[tuple[str, ...]] = ("alpha1",)
        width: float = parameter(1.0, "variance of a class", low=0.1, high=10)

        def train(self, task: Calibrated) -> LinearHead:
            return nearest_mean_head(task.prototypes, self.width)

    yield Toy
    del HEADS["toy"]


def test_a_new_head_is_known_wherever_heads_are_named(
    toy: type[HeadTrainer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    X, y = WORLD.support[0], WORLD.labels[0]
    fitted = GDCClassifier(WORLD.bank(), head="toy").fit(X, y)
    assert fitted.params_ is not None
    assert fitted.params_.trainer == toy()
    wide = GDCClassifier(WORLD.bank(), head={"name": "toy", "width": 4.0}, query_strength=0.0, trust=1.0).fit(X, y)
    narrow = GDCClassifier(WORLD.bank(), head="toy", query_strength=0.0, trust=1.0).fit(X, y)
    np.testing.assert_allclose(4 * wide.decision_function(X), narrow.decision_function(X), rtol=1e-4, atol=1e-3)
    assert "alpha1" in [axis.name for axis in make_space("whitened", 9, ["toy"]).axes({"cov": "pooled"})]
    save_preset(tmp_path / "toy.json", GDCParams(head={"name": "toy", "width": 4.0}), "a toy")
    assert get_preset(tmp_path / "toy.json").trainer == toy(width=4.0)
    assert gdc_settings(['head={"name": "toy", "width": 2.0}']) == {"head": {"name": "toy", "width": 2.0}}
    with pytest.raises(SystemExit):
        main(["presets", "params"])
    assert "The nearest calibrated mean" in capsys.readouterr().out
    with pytest.raises(InputError, match="use one of closed_form, lbfgs, sgd, toy"):
        GDCParams(head="tyo")


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ({"name": "sgd", "lr": -1}, "lr=-1 is out of range"),
        ({"name": "sgd", "speed": 2}, "head 'sgd' has no parameter 'speed'; it has batch_size, epochs, lr"),
        ({"name": "closed_form", "lr": 2}, "head 'closed_form' has no parameter 'lr'; it has none"),
        ({"lr": 2}, "head=None is unknown"),
    ],
)
def test_parameters_of_heads_are_checked(head: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        GDCParams(head=head)


def test_a_head_with_parameters_is_the_head_and_goes_through_files() -> None:
    params = GDCParams(head={"name": "sgd", "lr": 0.02, "epochs": 50})
    assert params.trainer == SGD(lr=0.02, epochs=50)
    assert params.as_dict()["head"] == {"name": "sgd", "epochs": 50, "lr": 0.02}
    assert GDCParams(**params.as_dict()) == params
    assert GDCParams(head=SGD()).as_dict()["head"] == "sgd"
    assert GDCParams(head="lbfgs", C=3.0).trainer.C == 3.0  # type: ignore[attr-defined]


def test_heads_move_and_stay() -> None:
    method = make_method("gdc", k=3).prepare(WORLD.bank())
    head = method.fit(one_task(method))
    inner = head.head if isinstance(head, FallbackHead) else head
    assert isinstance(inner, QueryCalibratedHead)
    moved = head.to("cpu")
    assert moved.to("cpu") is moved
    x = method.transform(torch.from_numpy(WORLD.query[0]))[None]
    assert torch.equal(moved.logits(x), head.logits(x))
    kept = moved.head if isinstance(moved, FallbackHead) else moved
    assert isinstance(kept, QueryCalibratedHead)
    assert kept.calibrator.bank.unwhitened is None  # the base rows stay behind


# ---- declared parameters --------------------------------------------------------------------------------------------


def test_every_field_says_what_it_is_for_and_its_default_is_accepted() -> None:
    declared = parameters_of(GDCParams)
    assert list(declared) == [f.name for f in fields(GDCParams)]
    assert all(p.help for p in declared.values())
    check_parameters(GDCParams())
    assert [row[0] for row in describe_params()] == list(declared)


@pytest.mark.parametrize("name", [n for n, p in parameters_of(GDCParams).items() if p.search is not None])
def test_a_usual_range_lies_within_what_is_accepted(name: str) -> None:
    [axis] = field_axes(name)
    for value in (axis.low, axis.high):
        parameters_of(GDCParams)[name].checked(name, int(value) if axis.integer else value)


def test_a_parameter_without_a_usual_range() -> None:
    with pytest.raises(InputError, match="'eps' has no usual range"):
        field_axes("eps")


def test_false_is_not_zero() -> None:
    declared = Parameter("", low=1, also=(False, "auto"))
    assert declared.checked("x", False) is False
    assert declared.checked("x", "auto") == "auto"
    for value in (0, 0.0, "other", True, np.bool_(False)):
        with pytest.raises(InputError, match="is out of range"):
            declared.checked("x", value)


# ---- old names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_names_work_for_one_release_and_name_the_new_one(old: str, new: str, tmp_path: Path) -> None:
    value = {"unit": 0.5, "unit_of": "one", "query_pull": 0.1}[old]
    default = get_preset("default")
    now = default.with_changes(**{new: value})
    says = pytest.warns(FewcalWarning, match=f"{old} is now called {new}")
    with says:
        assert default.with_changes(**{old: value}) == now
    rest = {k: v for k, v in now.as_dict().items() if k != new}
    with says:
        assert GDCParams(**rest, **{old: value}) == now
    with says:
        assert getattr(now, old) == value
    with says:
        assert make_method("gdc", **{old: value}).settings[new] == value
    with says:
        assert gdc_settings([f"{old}={value}"]) == {new: value}
    with says:
        fitted = GDCClassifier(WORLD.bank(), **{old: value}).fit(WORLD.support[0], WORLD.labels[0])
    assert getattr(fitted.params_, new) == value
    save_preset(tmp_path / "old.json", now, "before")
    content = json.loads((tmp_path / "old.json").read_text())
    content["params"][old] = content["params"].pop(new)
    (tmp_path / "old.json").write_text(json.dumps(content))
    with says:
        assert load_preset(tmp_path / "old.json").params == now
    with pytest.raises(InputError, match=f"{old} and {new} are the same parameter"):
        default.with_changes(**{old: value, new: value})
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = now.nothing  # type: ignore[attr-defined]


def test_trials_of_an_old_study_are_read() -> None:
    space = default_space(20)
    values = space.values(get_preset("whitened").with_changes(whiten=3.0))
    assert values is not None
    before = {{v: k for k, v in RENAMED.items()}.get(k, k): v for k, v in values.items()}
    assert set(RENAMED) <= set(before)
    with pytest.warns(FewcalWarning, match="is now called"):
        assert space.params(before) == space.params(values)


def test_the_sampler_takes_its_old_name() -> None:
    x, y = WORLD.x, WORLD.y
    keep = np.ones(len(y), bool)
    keep[1 : int((y == y[0]).sum())] = False
    with pytest.warns(FewcalWarning, match="unit is now called distance_scale"):
        old = GDCSampler(random_state=0, unit=2.0).fit_resample(x[keep], y[keep])[0]
    np.testing.assert_array_equal(old, GDCSampler(random_state=0, distance_scale=2.0).fit_resample(x[keep], y[keep])[0])


def test_auto_is_default_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(FewcalWarning, match="self-tuning was removed"):
        assert get_preset("auto") == get_preset("default")
    X, y = WORLD.support[0], WORLD.labels[0]
    with pytest.warns(FewcalWarning, match="'auto' is now the same as 'default'"):
        fitted = GDCClassifier(WORLD.bank(), "auto").fit(X, y)
    assert fitted.params_ == GDCClassifier(WORLD.bank()).fit(X, y).params_
    with pytest.raises(SystemExit) as ended:
        main(["tune", str(tmp_path), "--on", "base", "--out", str(tmp_path / "s")])
    assert ended.value.code == 0
    assert "self-tuning was removed" in capsys.readouterr().err
    assert get_preset(tmp_path / "s" / "preset.json") == get_preset("default")


def test_the_old_name_of_the_outlier_pvalue() -> None:
    fitted = GDCClassifier(WORLD.bank(), "whitened").fit(WORLD.support[0], WORLD.labels[0])
    with pytest.warns(FewcalWarning, match="other_class_share is now called outlier_pvalue"):
        old = fitted.other_class_share(WORLD.query[0])
    np.testing.assert_array_equal(old, fitted.outlier_pvalue(WORLD.query[0]))


# ---- the classifier computes what is asked for ----------------------------------------------------------------------


def test_explanation_and_outliers_are_computed_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for owner, name in ((explain_module, "explain_calibration"), (OutlierTest, "from_bank")):
        true = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, _n=name, _t=true: (calls.append(_n), _t(*a))[1])
    fitted = GDCClassifier(WORLD.bank(), "whitened").fit(WORLD.support[0], WORLD.labels[0])
    fitted.predict(WORLD.query[0])
    assert calls == []
    assert fitted.explain() is fitted.explain()
    assert calls == ["explain_calibration"]
    first = fitted.outlier_pvalue(WORLD.query[0])
    assert calls == ["explain_calibration", "from_bank"]
    again = pickle.loads(pickle.dumps(fitted))
    assert again.explain() == fitted.explain()
    np.testing.assert_array_equal(again.outlier_pvalue(WORLD.query[0]), first)
    assert len(calls) == 2


def test_growing_the_bank_afterwards_changes_no_explanation() -> None:
    bank = WORLD.bank()
    plain = GDCParams(beta=1.0, k=3, alpha1=1.0, alpha2_ratio=0.0, head="closed_form")
    early, late = (GDCClassifier(bank, plain).fit(WORLD.support[0], WORLD.labels[0]) for _ in range(2))
    want = early.explain()
    bank.partial_fit(WORLD.support[0][:3], ["new"] * 3)
    assert late.explain() == want


def test_pickles_hold_no_base_rows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 12)).astype(np.float32)
    bank = BaseBank().fit(rows, np.arange(6000) % 10)
    for settings in ({}, {"preset": "paper", "l2": True, "k": 3, "head": "closed_form"}):
        fitted = GDCClassifier(bank, **settings).fit(WORLD.support[0], WORLD.labels[0])
        fitted.bank = None  # what a user gave is the user's to keep or drop
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert len(pickle.dumps(fitted)) < rows.nbytes / 4


def test_a_fit_on_a_cold_bank_stays_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    import fewcal.methods.hierarchical as model
    from module_switches import fit_on_a_cold_bank, module_switches

    whole = module_switches(fit_on_a_cold_bank()).total()
    # Tasks of base classes are fits of their own, with both of its classifiers.
    monkeypatch.setattr(model, "one_shot_scale", lambda *_, **__: None)
    entered = module_switches(fit_on_a_cold_bank())
    assert entered["fewcal.methods.gdc"]
    assert entered.total() <= 50  # 94 when every module asked every other for its parts
    assert whole - entered.total() <= 25
    assert not {"fewcal.covariance.calibrated", "fewcal.rejection", "fewcal.bank.io"} & set(entered)


def test_methods_are_listed_in_the_order_of_their_import() -> None:
    assert list(METHODS) == ["ncm", "simpleshot", "lr", "lr-gauss", "lr_l2", "cosine", "lda", "dc", "bankless", "gdc"]
    assert all(cls.name == name for name, cls in METHODS.items())
