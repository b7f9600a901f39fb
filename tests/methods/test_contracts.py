"""What every method promises, one class for all of them, and what methods and heads share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import optuna
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC

from fewcal import BaseBank, GDCClassifier, GDCParams
from fewcal._utils.parameters import Parameter, check_parameters, parameter, parameters_of
from fewcal._utils.randomness import TaskRandom
from fewcal.apply.predict import model_settings
from fewcal.cli import main
from fewcal.errors import FewcalWarning, InputError
from fewcal.gaussianize import fit_gaussianization
from fewcal.heads import HEADS, Calibrated, HeadTrainer, LinearHead, Shared, TaskBatch, register_head
from fewcal.heads import calibrated as calibrated_module
from fewcal.heads.linear import class_means, class_shots, nearest_mean_head
from fewcal.heads.sgd import SGD
from fewcal.methods import HGDC, METHODS, Method, make_method
from fewcal.params import describe_params
from fewcal.presets import get_preset, save_preset
from fewcal.tuning.spaces import suggest_gdc
from small_worlds import SmallData, make_world

PLAIN = GDCParams(
    beta=0.5, l2=True, k=3, m=1.0, distance_scale=1.0, alpha1=0.5, alpha2_ratio=0.1, n=40, head="closed_form"
)
# Every method, GDC with every kind of head.
CASES: dict[str, dict[str, Any]] = {
    **{name: {} for name in METHODS if name not in ("gdc", "dc")},
    "dc": {"n": 60},
    **{name: {"steps": 30, "rate": 0.01} for name in ("tim", "alpha-tim")},
    **{f"gdc {head}": {"preset": PLAIN, "head": head} for head in ("closed_form", "lbfgs", "sgd")},
    "gdc svc": {"preset": PLAIN, "head": SVC()},
    "gdc knn": {"preset": PLAIN, "head": KNeighborsClassifier(3)},
    "gdc authors": {"preset": "authors", "k": 3, "n": 60, "alpha1": 1.0, "head": "lbfgs"},
}
# Points are drawn in the order of support rows.
DRAWN = [name for name in CASES if name == "dc" or (name.startswith("gdc") and "closed_form" not in name)]


def make(name: str, **more: Any) -> Method:
    return make_method(name.split()[0], **(CASES[name] | more))


def run(
    method: Method, world: SmallData, seed: int = 0, tasks: slice = slice(None), shared: Shared | None = None
) -> torch.Tensor:
    """Logits `(T, Q, N)` of the chosen tasks of a world."""
    method.prepare(world.bank() if method.needs_bank else None)
    return fitted(method, world, seed, tasks, shared)


def fitted(
    method: Method, world: SmallData, seed: int = 0, tasks: slice = slice(None), shared: Shared | None = None
) -> torch.Tensor:
    support, labels, query = world.tensors
    names = list(range(len(support)))[tasks]
    xs = torch.stack([method.transform(t, "support") for t in support[tasks]])
    qs = torch.stack([method.transform(t, "query") for t in query[tasks]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)
        batch = TaskBatch(
            xs, labels[tasks], world.ways, TaskRandom(seed, names), Shared() if shared is None else shared
        )
        return method.fit(batch).logits(qs) if not method.transductive else method.fit_predict(batch, qs)


def one_task(method: Method, world: SmallData) -> TaskBatch:
    support, labels, _ = world.tensors
    return TaskBatch(method.transform(support[0])[None], labels[:1], world.ways, TaskRandom(0))


def accuracy(logits: torch.Tensor, world: SmallData) -> float:
    return float((logits.argmax(-1) == torch.from_numpy(world.query_labels)).float().mean())


def probabilities(logits: torch.Tensor) -> np.ndarray:
    out: np.ndarray = logits.double().softmax(dim=-1).numpy()
    return out


@pytest.mark.parametrize("name", CASES)
class TestMethod:
    """Holds for every method."""

    @pytest.mark.parametrize("signed", [False, True], ids=["relu", "signed"])
    @pytest.mark.parametrize("shots", [1, 3])
    def test_answers_are_finite_and_far_above_chance(self, name: str, shots: int, signed: bool) -> None:
        world = make_world(7, signed=signed, ways=4, shots=shots, tasks=4, queries=10, spread=0.4)
        logits = run(make(name), world)
        assert (logits.shape, logits.dtype) == ((4, 40, 4), torch.float32)
        assert torch.isfinite(logits).all()
        assert accuracy(logits, world) > (0.75 if shots > 1 else 0.6)

    def test_a_task_alone_gets_what_it_gets_in_a_batch(self, name: str) -> None:
        world, method = make_world(8, tasks=5, shots=2), make(name)
        whole = run(method, world)
        assert torch.equal(fitted(method, world), whole)
        # SGD, L-BFGS and Adam add in another order, step after step.
        close = 2e-3 if name in DRAWN or name.startswith("lr") or name.endswith("tim") else 1e-5
        for size in (1, 2):
            parts = torch.cat([fitted(method, world, tasks=slice(i, i + size)) for i in range(0, 5, size)])
            scale = max(float(whole.abs().max()), 1)
            torch.testing.assert_close(parts, whole, rtol=0, atol=close * scale)

    def test_classes_with_other_numbers_get_the_same(self, name: str) -> None:
        if name in DRAWN:
            pytest.skip("draws other points")
        world, order = make_world(8, tasks=2, ways=4, shots=2), np.array([2, 0, 3, 1])
        found = probabilities(run(make(name), replace(world, labels=order[world.labels])))
        np.testing.assert_allclose(found[..., order], probabilities(run(make(name), world)), atol=1e-4)

    def test_rows_in_another_order_get_the_same(self, name: str) -> None:
        world = make_world(8, tasks=2, ways=4, shots=2)
        rng = np.random.default_rng(0)
        s, q = rng.permutation(world.support.shape[1]), rng.permutation(world.query.shape[1])
        base = [rows[rng.permutation(len(rows))] for rows in world.base]
        moved = replace(world, query=world.query[:, q])
        if name not in DRAWN:
            joint = name == "gdc closed_form"  # base rows are paired by their index
            moved = replace(
                moved, support=world.support[:, s], labels=world.labels[:, s], base=world.base if joint else base
            )
        expected = probabilities(run(make(name), world))[:, q]
        np.testing.assert_allclose(probabilities(run(make(name), moved)), expected, atol=1e-4)

    def test_unequal_shots(self, name: str) -> None:
        world = make_world(9, shots=4, tasks=1, queries=15)
        keep = [0, 4, 5, 8, 9, 10, 11]  # one, two and four shots
        logits = run(make(name), replace(world, support=world.support[:, keep], labels=world.labels[:, keep]))
        assert torch.isfinite(logits).all()
        assert accuracy(logits, world) > 0.55

    def test_two_classes(self, name: str) -> None:
        world = make_world(11, ways=2, tasks=2)
        logits = run(make(name), world)
        assert logits.shape == (2, 16, 2)
        assert accuracy(logits, world) > 0.7

    def test_base_classes_are_needed_or_not(self, name: str) -> None:
        method, world = make(name), make_world(8)
        if method.needs_bank:
            with pytest.raises(InputError, match=r"method '.*' needs base classes; give a bank"):
                method.prepare(None)
        else:
            with_bank, without = make(name).prepare(world.bank()), make(name).prepare(None)
            if with_bank.space == without.space:  # lr_l2 centres rows where there is a bank
                assert torch.equal(fitted(with_bank, world), fitted(without, world))

    def test_a_thin_base_class_is_refused_before_any_task(self, name: str) -> None:
        if name in ("gdc authors", "simpleshot", "lr-gauss") or not make(name).needs_bank:
            pytest.skip("takes no covariance of classes")
        bank = make_world(1).bank().partial_fit(np.ones((1, 12)), ["lonely"])
        with pytest.raises(InputError, match="single row: 'lonely'"):
            make(name).prepare(bank)

    def test_settings_make_the_same_method(self, name: str) -> None:
        method = make(name)
        if method.name != "gdc":
            assert make_method(method.name, **method.settings).settings == method.settings
            with pytest.raises(InputError, match="has no parameter 'nonsense'"):
                make_method(method.name, nonsense=1)
        for key, declared in method.accepts.items():
            assert declared.help
            assert declared.checked(key, method.settings[key]) == method.settings[key]

    def test_memory_grows_with_the_task(self, name: str) -> None:
        method = make(name).prepare(make_world(8).bank())
        assert method.task_bytes(20, 10, 12) > method.task_bytes(10, 5, 12) > 0
        hash(method.space)

    def test_a_head_that_stays_is_itself(self, name: str) -> None:
        world = make_world(8)
        method = make(name).prepare(world.bank())
        head = method.fit(one_task(method, world))
        assert head.to("cpu").to("cpu") is head.to("cpu")

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    def test_a_device_changes_rounding_alone(self, name: str) -> None:
        world = make_world(8)
        method = make(name).prepare(world.bank().to("cuda"))
        batch = one_task(method, world)
        x = method.transform(torch.from_numpy(world.query[0]).cuda())[None]
        found = method.fit(replace(batch, support=batch.support.cuda(), labels=batch.labels.cuda())).logits(x)
        np.testing.assert_allclose(
            probabilities(found.cpu()), probabilities(run(make(name), world, tasks=slice(1))), atol=1e-3
        )


def test_other_seeds_give_other_points() -> None:
    world = make_world(8)
    for name in ("gdc lbfgs", "gdc sgd", "dc"):
        assert not torch.equal(run(make(name), world, seed=0), run(make(name), world, seed=1))


def test_methods_are_listed_under_their_names_in_the_order_of_their_import() -> None:
    assert list(METHODS)[:2] == ["ncm", "simpleshot"]
    transductive = ["hgdc-transductive", "soft-kmeans", "bd-cspn", "laplacianshot", "pt-map", "tim", "alpha-tim"]
    assert [name for name in METHODS if METHODS[name].transductive] == transductive
    assert all(cls.name == name for name, cls in METHODS.items())


def test_methods_that_map_rows_alike_have_one_space() -> None:
    bank = make_world(8).bank()
    spaces = {name: make(name).prepare(bank).space for name in CASES}
    same = [("ncm", "lr"), ("cosine", "support-only", "lr_l2"), ("gdc closed_form", "gdc sgd"), ("dc", "lr-gauss")]
    x = torch.from_numpy(make_world(8).query[0])
    for group in same[2:]:
        assert len({spaces[name] for name in group}) == 1
    for a in CASES:
        for b in CASES:
            if spaces[a] == spaces[b]:
                torch.testing.assert_close(make(a).prepare(bank).transform(x), make(b).prepare(bank).transform(x))
    assert make("hgdc", ridge=1.0).prepare(bank).space != spaces["hgdc"]


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
    assert "a" in shared
    assert (len(shared), shared.reused_seconds) == (1, 2.0)
    with pytest.raises(ZeroDivisionError):
        shared.get("b", lambda: 1 // 0)
    assert "b" not in shared  # a failed entry is not kept


def test_shared_stages_are_computed_once_and_change_nothing() -> None:
    world, heads = make_world(8), ("closed_form", "lbfgs", "sgd")
    alone = [run(make(f"gdc {head}"), world) for head in heads]
    bank, shared = world.bank(), Shared()
    together = [fitted(make(f"gdc {head}").prepare(bank), world, shared=shared) for head in heads]
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a, b)
    assert len(shared) == 3  # one calibration, one covariance, one set of points


def test_the_closed_form_draws_no_points(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("drew points")

    monkeypatch.setattr(calibrated_module, "augment", never)
    world = make_world(8)
    assert torch.isfinite(run(make("gdc closed_form"), world)).all()
    with pytest.raises(AssertionError, match="drew points"):
        run(make("gdc sgd"), world)


@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize(
    "name", ["dc", "joint lbfgs", "joint closed_form", "independent closed_form", "pooled closed_form"]
)
def test_batches_take_nothing_more_from_a_bank_that_was_prepared_for_them(name: str, shots: int) -> None:
    world = make_world(0, dim=16, tasks=3, ways=4, shots=shots)
    chosen = dict(zip(("cov", "head"), name.split(), strict=False)) if name != "dc" else {}
    method: Any = make_method("gdc" if chosen else "dc", "paper/mini/1shot" if chosen else None, **chosen)
    method.prepare(world.bank())
    method.prepare_batches(3, 4, shots)
    ready = set(method.bank.memo)
    fitted(method, world)
    small = {"centred", "fingerprint", "roots of sums"}  # the means; what the engine has asked for before
    assert set(method.bank.memo) - ready <= small
    assert ready


# ---- heads ----------------------------------------------------------------------------------------------------------


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
            means = class_means(task.mean, task.batch.labels, task.batch.n_classes)
            return nearest_mean_head(means, torch.full((len(means), 1, 1), self.width))

    yield Toy
    del HEADS["toy"]


def test_a_new_head_is_known_wherever_heads_are_named(
    toy: type[HeadTrainer], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make_world(1, signed=True, tasks=1, ways=4, shots=3)
    X, y = world.support[0], world.labels[0]
    fitted = GDCClassifier(world.bank(), head="toy").fit(X, y)
    assert fitted.params_.trainer == toy()
    wide = GDCClassifier(world.bank(), head={"name": "toy", "width": 4.0}).fit(X, y)
    np.testing.assert_allclose(4 * wide.decision_function(X), fitted.decision_function(X), rtol=1e-4, atol=1e-3)
    trial = optuna.trial.FixedTrial(
        {**get_preset("paper").as_dict(), "center": True, "l2": True, "distance_scale": 1.0}
    )
    assert suggest_gdc(trial, 9, ["toy"]).params.trainer == toy()
    save_preset(tmp_path / "toy.json", GDCParams(head={"name": "toy", "width": 4.0}), "a toy")
    assert get_preset(tmp_path / "toy.json").trainer == toy(width=4.0)
    assert model_settings(['head={"name": "toy", "width": 2.0}'], "paper") == {"head": {"name": "toy", "width": 2.0}}
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


def test_shots_of_classes_are_counted_and_averaged() -> None:
    x = torch.randn(2, 4, 6)[..., :3]
    one = class_shots(torch.tensor([[2, 0, 3, 1], [0, 1, 2, 3]]), 4, x.dtype)
    assert (one.least, one.most, one.even, one.each) == (1, 1, True, 1.0)
    assert torch.equal(one.means(x)[0, 2], x[0, 0])
    labels = torch.tensor([[2, 0, 0, 2]])
    some = class_shots(labels, 3, x.dtype)
    assert (some.least, some.most, some.even, some.counts.tolist()) == (0, 2, False, [[2, 0, 2]])
    torch.testing.assert_close(some.means(x[:1]), class_means(x[:1], labels, 3))


# ---- declared parameters --------------------------------------------------------------------------------------------


def test_every_field_has_a_help_and_a_default_that_is_accepted() -> None:
    declared = parameters_of(GDCParams)
    assert [row[0] for row in describe_params()] == list(declared) == [f.name for f in fields(GDCParams)]
    assert all(p.help for p in declared.values())
    check_parameters(GDCParams())


@pytest.mark.parametrize("declared", [parameters_of(GDCParams), HGDC.accepts], ids=["gdc", "hgdc"])
def test_a_search_range_lies_within_what_is_accepted(declared: dict[str, Parameter]) -> None:
    searched = {name: p for name, p in declared.items() if p.search is not None}
    assert searched
    for name, p in searched.items():
        assert p.search is not None
        for value in (p.search.low, p.search.high):
            p.checked(name, int(value) if p.integer else value)


def test_false_is_not_zero() -> None:
    declared = Parameter("", low=1, also=(False, "auto"))
    assert declared.checked("x", False) is False
    assert declared.checked("x", "auto") == "auto"
    for value in (0, 0.0, "other", True, np.bool_(False)):
        with pytest.raises(InputError, match="is out of range"):
            declared.checked("x", value)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("zzzz", {}, "method 'zzzz' is unknown; known: ncm, simpleshot, lr"),
        ("gcd", {}, "method 'gcd' is unknown; did you mean 'gdc'"),
        ("dc", {"beat": 1}, "method 'dc' has no parameter 'beat'; did you mean 'beta'"),
        ("dc", {"k": "two"}, "method 'dc': k='two' is out of range"),
        ("hgdc", {"k": 1}, "method 'hgdc' has no parameter 'k'; known: ridge"),
        ("gdc", {"alpa1": 1}, "GDC has no parameter 'alpa1'; did you mean 'alpha1'"),
        ("gdc", {"preset": "papr"}, "preset 'papr' is unknown; did you mean 'paper'"),
        ("gdc", {"m": -1}, "m=-1 is out of range"),
        ("ncm", {"preset": "paper"}, "presets are for gdc; method 'ncm'"),
        ("ncm", {"k": 1}, "method 'ncm' has no parameter 'k'; it has none"),
    ],
)
def test_a_wrong_name_or_value_is_refused(name: str, settings: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_method(name, **settings)


def test_a_bank_in_another_space_is_refused() -> None:
    world = make_world(1)
    built = BaseBank(transform=fit_gaussianization(torch.from_numpy(world.x), 1.0, l2=True)).fit(world.x, world.y)
    with pytest.raises(InputError, match="another space"):
        make("gdc closed_form").prepare(built)
    built = BaseBank(transform=fit_gaussianization(torch.from_numpy(world.x), 0.5)).fit(world.x, world.y)
    for name in ("dc", "gdc authors"):
        with pytest.raises(InputError, match="compares with raw base classes"):
            make(name).prepare(built)
