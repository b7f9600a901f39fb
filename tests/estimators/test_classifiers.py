"""What both classifiers promise, as scikit-learn users meet them, and what each alone does."""

from __future__ import annotations

import json
import pickle
import warnings
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

import reference
from fewcal import BaseBank, FewShotClassifier, Gaussianizer, GDCClassifier, GDCParams
from fewcal.errors import FewcalWarning, InputError
from fewcal.estimators import inputs
from fewcal.estimators.inputs import class_codes
from fewcal.methods.hgdc import HGDC
from small_worlds import SmallData, make_world

WORLD = make_world(1, signed=True, tasks=1, ways=4, shots=3)
NAMES = np.array(["ant", "bee", "cat", "dog"])
X, Q = WORLD.support[0], WORLD.query[0]
Y, TRUTH = NAMES[WORLD.labels[0]], NAMES[WORLD.query_labels[0]]
# GDC without random numbers, with shrinkage for features like these.
CLOSED = {"l2": True, "k": 3, "alpha1": 0.5, "alpha2_ratio": 0.1, "head": "closed_form"}


@pytest.fixture(scope="module")
def bank() -> BaseBank:
    return WORLD.bank()


def spoilt(value: float) -> np.ndarray:
    out = X.copy()
    out[2, 1] = value
    return out


class ClassifierContract:
    """Holds for every classifier; `make` is one with its bank."""

    cls: ClassVar[type[Any]]
    settings: ClassVar[dict[str, Any]] = {}
    # A grid of its parameters, and what the classifier answers with unequal shots.
    grid: ClassVar[dict[str, Any]] = {}
    with_bank: ClassVar[bool] = True

    @pytest.fixture
    def make(self, bank: BaseBank) -> Any:
        return lambda **more: self.cls(**{"bank": bank if self.with_bank else None, **self.settings, **more})

    # ---- answers ----------------------------------------------------------------------------------------------------

    def test_predict_new_rows_is_right(self, make: Any) -> None:
        assert make().fit(X, Y).score(Q, TRUTH) > 0.8

    def test_scores_probabilities_and_answers_agree(self, make: Any) -> None:
        clf = make().fit(X, Y)
        scores, p = clf.decision_function(Q), clf.predict_proba(Q)
        assert scores.shape == p.shape == (len(Q), 4)
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        np.testing.assert_allclose(p, e / e.sum(axis=1, keepdims=True), atol=1e-12)
        np.testing.assert_allclose(clf.predict_log_proba(Q), np.log(p), atol=1e-9)
        assert (clf.predict(Q) == NAMES[scores.argmax(axis=1)]).all()

    def test_two_classes_have_one_score(self, make: Any) -> None:
        two = np.isin(Y, ["ant", "dog"])
        clf = make().fit(X[two], Y[two])
        scores = clf.decision_function(Q)
        assert scores.shape == (len(Q),)
        assert ((scores > 0) == (clf.predict(Q) == "dog")).all()
        np.testing.assert_allclose(clf.predict_proba(Q)[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-6)

    def test_unequal_shots(self, make: Any) -> None:
        keep = [0, 1, 2, 3, 6, 7, 9]
        assert make().fit(X[keep], Y[keep]).score(Q, TRUTH) > 0.75

    def test_support_in_another_order_gives_the_same(self, make: Any) -> None:
        order = np.random.default_rng(0).permutation(len(X))
        found, expected = make().fit(X[order], Y[order]), make().fit(X, Y)
        assert found.classes_.tolist() == sorted(NAMES)
        np.testing.assert_allclose(found.predict_proba(Q), expected.predict_proba(Q), atol=1e-5)

    def test_classes_with_other_names_get_the_same_probabilities(self, make: Any) -> None:
        order = [2, 0, 3, 1]
        numbers = make().fit(X, np.array([-5, 7, 40, 3])[np.searchsorted(NAMES, Y)])
        assert numbers.classes_.tolist() == [-5, 3, 7, 40]
        expected = make().fit(X, Y).predict_proba(Q)[:, [0, 3, 1, 2]]
        np.testing.assert_allclose(numbers.predict_proba(Q), expected, atol=1e-5)
        renamed = make().fit(X, NAMES[np.argsort(order)][np.searchsorted(NAMES, Y)])
        np.testing.assert_allclose(renamed.predict_proba(Q), make().fit(X, Y).predict_proba(Q)[:, order], atol=1e-5)

    def test_a_query_row_alone_gets_the_same_answer(self, make: Any) -> None:
        clf = make().fit(X, Y)
        alone = np.concatenate([clf.predict_proba(row[None]) for row in Q])
        np.testing.assert_allclose(alone, clf.predict_proba(Q), atol=1e-5)
        np.testing.assert_allclose(clf.predict_proba(Q[::-1])[::-1], clf.predict_proba(Q), atol=1e-5)

    @pytest.mark.parametrize("made", [list, pd.DataFrame, np.asfortranarray, lambda x: x.astype(np.float64)])
    def test_rows_of_any_container_get_the_same(self, make: Any, made: Any) -> None:
        found = make().fit(made(X), list(Y)).predict_proba(made(Q))
        np.testing.assert_allclose(found, make().fit(X, Y).predict_proba(Q), atol=1e-6)

    def test_half_precision_is_held_in_double(self, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        half, asked = X.astype(np.float16), Q.astype(np.float16)
        expected = make().fit(half.astype(np.float64), Y)
        monkeypatch.setattr(inputs, "_validated", None)  # a millisecond that is not needed
        found = make().fit(half, Y)
        assert found.support_[0].dtype == np.float64
        assert (found.decision_function(asked) == expected.decision_function(asked.astype(np.float64))).all()

    def test_column_names_are_remembered_and_forgotten(self, make: Any) -> None:
        columns = [f"f{i}" for i in range(X.shape[1])]
        frame = pd.DataFrame(Q, columns=columns)
        clf = make().fit(pd.DataFrame(X, columns=columns), pd.Series(Y))
        assert clf.feature_names_in_.tolist() == columns
        with pytest.raises(ValueError, match="feature names should match"):
            clf.predict(frame[columns[::-1]])
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            clf.predict(Q)
        clf.fit(X, Y)
        assert not hasattr(clf, "feature_names_in_")

    def test_fit_keeps_copies_of_the_rows(self, make: Any) -> None:
        rows = X.copy()
        clf = make().fit(rows, Y)
        rows[:] = 0
        np.testing.assert_array_equal(clf.support_[0], X)

    # ---- bad input --------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        ("rows", "y", "message"),
        [
            (spoilt(np.nan), Y, "X has NaN in row 2; drop or impute"),
            (spoilt(np.inf), Y, "X has infinity in row 2; drop or impute"),
            (X.astype(np.float64) * 1e30, Y, "do not fit single precision"),
            (X[:0], Y[:0], "X has no rows"),
            (X[:3], Y[:3], "y has one class only, 'ant'; give support rows of at least two classes"),
            (X, Y[:-1], "X has 12 rows and y has 11 labels; give exactly one label per row"),
            (X.astype(str).astype(object) + "x", Y, "X holds values that are not numbers"),
            (X, np.array([7, *Y.tolist()[1:]], dtype=object), r"y mixes labels of several types \(int, str\)"),
            (X, np.array([None, *Y.tolist()[1:]], dtype=object), r"y has no label in row 0 \(None\)"),
        ],
        ids=["nan", "inf", "huge", "empty", "one class", "labels", "texts", "mixed", "none"],
    )
    def test_bad_support_is_refused_in_one_line(self, make: Any, rows: Any, y: Any, message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            make().fit(rows, y)
        assert "\n" not in str(caught.value)

    def test_bad_queries_are_refused(self, make: Any) -> None:
        clf = make().fit(X, Y)
        with pytest.raises(ValueError, match=f"X has 5 features, but {self.cls.__name__} is expecting 12 features"):
            clf.predict(Q[:, :5])
        with pytest.raises(InputError, match="X has NaN in row 2"):
            clf.predict(spoilt(np.nan))

    def test_bad_bank_and_device_are_refused(self, make: Any) -> None:
        for bank, message in (
            (7, "bank=7 is not a bank; use a BaseBank, a path"),
            ("/nowhere/bank.safetensors", "no bank at /nowhere/bank.safetensors"),
            ((X, Y[:-1]), "base y has 11 labels for 12 rows"),
            ((X[:4], Y[:4]), "1 base class.* with a single row: 'bee'"),
            ((X[:, :5], Y), "X has 12 features and the bank 5; use the same extractor for both"),
        ):
            with pytest.raises(InputError, match=message):
                make(bank=bank).fit(X, Y)
        with pytest.raises(InputError, match="device='gpu' is not a device"):
            make(device="gpu").fit(X, Y)

    def test_an_unknown_parameter_is_a_type_error(self, make: Any) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            make(nonsense=1)

    def test_questions_before_fit_are_refused(self, make: Any, tmp_path: Path) -> None:
        clf = make()
        for ask in (clf.predict, clf.predict_proba, lambda _: clf.explain(), lambda _: clf.save(tmp_path / "a")):
            with pytest.raises(NotFittedError, match="call fit first"):
                ask(Q)

    # ---- scikit-learn's tools ---------------------------------------------------------------------------------------

    def test_clones_and_pickles_answer_the_same(self, make: Any, tmp_path: Path) -> None:
        clf = make().fit(X, Y)
        joblib.dump(clf, tmp_path / "clf.joblib")
        again = joblib.load(tmp_path / "clf.joblib")
        np.testing.assert_array_equal(again.predict_proba(Q), clf.predict_proba(Q))
        np.testing.assert_array_equal(clone(clf).fit(X, Y).predict_proba(Q), clf.predict_proba(Q))
        assert again.explain() == clf.explain()

    def test_grid_search_tunes_what_it_was_given(self, make: Any) -> None:
        grid = GridSearchCV(make(), self.grid, cv=2, error_score="raise").fit(X, Y)
        assert set(grid.best_params_) == set(self.grid)
        assert grid.best_score_ > 0.7
        assert cross_val_score(make_pipeline(Gaussianizer(beta=1.0), make()), X, Y, cv=2).mean() > 0.7

    # ---- examples that come later -----------------------------------------------------------------------------------

    def test_partial_fit_is_a_fit_on_all_rows(self, make: Any) -> None:
        order = np.random.default_rng(1).permutation(len(X))
        stream = make()
        for part in np.array_split(order, 3):
            stream.partial_fit(X[part], Y[part], classes=NAMES)
        whole = make().fit(X[order], Y[order])
        np.testing.assert_array_equal(stream.predict_proba(Q), whole.predict_proba(Q))

    def test_one_class_waits_for_a_second(self, make: Any, tmp_path: Path) -> None:
        stream = make().partial_fit(X[:2], Y[:2], classes=NAMES).partial_fit(X[2:3], Y[2:3])
        for ask in (stream.predict, stream.predict_proba, lambda _: stream.save(tmp_path / "a")):
            with pytest.raises(NotFittedError, match="not fitted yet; call partial_fit with rows of a second class"):
                ask(Q)
        stream.partial_fit(X[3:], Y[3:])
        np.testing.assert_array_equal(stream.predict_proba(Q), make().fit(X, Y).predict_proba(Q))
        for classes in (None, ["ant"]):  # no other class will come
            with pytest.raises(InputError, match="one class only"):
                make().partial_fit(X[:1], ["ant"], classes=classes)

    def test_add_examples_and_add_class_are_a_fit_on_all_rows(self, make: Any) -> None:
        first = Y != "dog"
        clf = make().fit(X[first][:-1], Y[first][:-1])
        clf.add_examples(X[first][-1:], Y[first][-1:]).add_class(X[~first], "dog")
        np.testing.assert_array_equal(clf.predict_proba(Q), make().fit(X, Y).predict_proba(Q))

    def test_bad_later_examples_are_refused_and_change_nothing(self, make: Any) -> None:
        clf = make().fit(X, Y)
        for add, message in (
            (lambda: clf.add_class(X[:1], Y[0]), "there is a class 'ant' already"),
            (lambda: clf.add_examples(X[:1], ["emu"]), "there is no class 'emu'"),
            (lambda: clf.partial_fit(X[:1], [3]), "labels of one type"),
            (lambda: clf.add_examples(X[:2], ["ant"]), "one label per row"),
            (lambda: clf.add_examples(X[:1, :2], ["ant"]), "features"),
            (lambda: clf.partial_fit(X[:1], ["emu"], classes=["ant"]), "'emu', which is not among"),
        ):
            with pytest.raises(ValueError, match=message):
                add()
        assert clf.support_[0].shape == X.shape
        assert clf.classes_.tolist() == NAMES.tolist()


class BankContract(ClassifierContract):
    """Holds for every classifier with base classes."""

    def test_bank_as_path_or_rows_gives_the_same(self, make: Any, bank: BaseBank, tmp_path: Path) -> None:
        expected = make().fit(X, Y).decision_function(Q)
        path = bank.save(tmp_path / "bank.safetensors")
        for given in (path, str(path), (WORLD.x, WORLD.y)):
            got = make(bank=given).fit(X, Y).decision_function(Q)
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        BaseBank().fit(WORLD.x[:60], WORLD.y[:60]).save(path)  # a new file under the same name is read again
        assert not np.allclose(make(bank=path).fit(X, Y).decision_function(Q), expected)

    def test_base_rows_and_classes_in_another_order_give_the_same(self, make: Any) -> None:
        order = np.random.default_rng(0).permutation(len(WORLD.y))
        found = make(bank=(WORLD.x[order], WORLD.y[order])).fit(X, Y).predict_proba(Q)
        np.testing.assert_allclose(found, make().fit(X, Y).predict_proba(Q), atol=1e-5)

    def test_clones_share_what_is_derived_from_the_bank(self, make: Any) -> None:
        clf = make(bank=WORLD.bank()).fit(X, Y)
        derived = [(key, id(value)) for key, value in clf.bank.memo.items()]
        assert derived
        for _ in range(2):
            clone(clf.fit(X, Y)).fit(X, Y).predict(Q)
        assert clone(clf).bank is clf.bank
        assert [(key, id(value)) for key, value in clf.bank.memo.items()] == derived

    def test_a_bank_that_grew_is_used_as_it_is(self, make: Any) -> None:
        grown, more = WORLD.bank(), make_world(9, signed=True)
        clf = make(bank=grown).fit(X, Y)
        before = clf.decision_function(Q)
        explained = clf.explain()
        grown.partial_fit(more.x, [f"more {c}" for c in more.y])
        assert clf.explain() == explained
        whole = BaseBank().fit(np.concatenate([WORLD.x, more.x]), [*WORLD.y, *(f"more {c}" for c in more.y)])
        after = clf.fit(X, Y).decision_function(Q)
        assert np.abs(after - before).max() > 1e-3
        np.testing.assert_allclose(after, make(bank=whole).fit(X, Y).decision_function(Q), atol=1e-3)

    def test_a_pickle_holds_no_base_rows(self, make: Any, tmp_path: Path) -> None:
        rows = np.random.default_rng(0).normal(size=(6000, 12)).astype(np.float32)
        path = BaseBank().fit(rows, np.arange(6000) % 10).save(tmp_path / "bank.safetensors")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewcalWarning)  # the classes are all alike
            clf = make(bank=path).fit(X, Y)
        assert len(pickle.dumps(clf)) < rows.nbytes / 5

    def test_explain_shares_add_up_to_one(self, make: Any) -> None:
        clf = make().fit(X, Y)
        found = clf.explain()
        assert [c.label for c in found.classes] == NAMES.tolist()
        for c in found.classes:
            assert c.shots == 3
            assert c.shares == sorted(c.shares, reverse=True)
            assert sum(c.shares) + c.own_share == pytest.approx(1, abs=1e-5)
            assert c.moved >= 0
        assert json.loads(json.dumps(found.to_dict()))["classes"][0]["label"] == "ant"
        frame = found.to_frame()
        assert frame.groupby("label")["share"].sum().to_numpy() == pytest.approx(
            [1 - c.own_share for c in found.classes], abs=1e-5
        )
        assert "ant (3): itself" in str(found)
        assert "<td>ant</td>" in found._repr_html_()

    @pytest.mark.filterwarnings("ignore::fewcal.errors.FewcalWarning", "error::UserWarning")
    def test_hundreds_of_classes_of_one_row_each(self, make: Any) -> None:
        world = make_world(5, tasks=1, ways=300, shots=1, queries=1, dim=24, spread=0.1)
        clf = make(bank=world.bank()).fit(world.support[0], world.labels[0])
        assert clf.predict_proba(world.query[0]).shape == (300, 300)
        assert clf.score(world.query[0], world.query_labels[0]) > 0.8
        assert "more classes" in str(clf.explain())


class TestFewShotClassifier(BankContract):
    cls = FewShotClassifier
    grid: ClassVar = {"sharpness": np.array([1.0, 2.0]), "scatter": [1, 10.0], "ridge": ["auto", 1.0]}

    def test_parameters_are_those_of_hgdc_with_their_defaults(self) -> None:
        own = {k: v.default for k, v in signature(FewShotClassifier).parameters.items() if k not in ("bank", "device")}
        assert own == HGDC().settings
        assert len(signature(FewShotClassifier).parameters) <= 10

    def test_a_parameter_of_gdc_is_a_type_error(self, bank: BaseBank) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'k'"):
            FewShotClassifier(bank, k=4)  # type: ignore[call-arg]

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"ridge": "none"}, "ridge='none' is out of range; use a number ≥ 1e-06 .or 'auto'"),
            ({"ridge": 0.0}, "ridge=0.0 is out of range"),
            ({"kurtosis": 0.5}, "kurtosis=0.5 is out of range; use a number ≥ 1"),
            ({"classes": -1}, "classes=-1 is out of range; use a number ≥ 0"),
            ({"sharpness": np.nan}, "sharpness=nan is out of range"),
            ({"scatter": True}, "scatter=True"),
        ],
    )
    def test_a_value_out_of_range_is_refused(self, bank: BaseBank, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message):
            FewShotClassifier(bank, **settings).fit(X, Y)

    def test_negative_rows_beside_a_bank_without_any_are_refused(self) -> None:
        world = make_world(1, tasks=1, ways=2, shots=1)
        heavy = [np.maximum(rows, 0) ** 6 for rows in world.base]
        bank = BaseBank().fit(np.concatenate(heavy), world.y)
        clf = FewShotClassifier(bank).fit(world.support[0], world.labels[0])
        assert clf.prior_ is not None
        assert clf.prior_.transform.beta < 1
        with pytest.raises(InputError, match="X has negative features"):
            clf.predict(-world.query[0])

    # ---- calibration ------------------------------------------------------------------------------------------------

    def test_set_temperature_divides_scores(self, bank: BaseBank) -> None:
        clf = FewShotClassifier(bank).fit(X, Y)
        before = clf.decision_function(Q)
        assert clf.set_temperature(4.0).temperature_ == 4.0
        np.testing.assert_allclose(clf.decision_function(Q), before / 4, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(clf.set_temperature(1.0).decision_function(Q), before, rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize("temperature", [0.0, -1.0, np.inf, np.nan])
    def test_a_temperature_that_is_no_positive_number_is_refused(self, bank: BaseBank, temperature: float) -> None:
        with pytest.raises(InputError, match="must be a positive number"):
            FewShotClassifier(bank).fit(X, Y).set_temperature(temperature)

    @pytest.mark.parametrize("with_bank", [True, False])
    @pytest.mark.parametrize("shots", [1, 4])
    def test_calibrate_makes_confidence_the_accuracy(self, with_bank: bool, shots: int) -> None:
        world = make_world(3, signed=True, classes=30, ways=60, tasks=1, shots=shots, queries=25, spread=0.9)
        x, y, query, truth = world.support[0], world.labels[0], world.query[0], world.query_labels[0]
        held, confidence, right = truth >= 30, [], []
        for first in range(0, 30, 5):
            of = lambda labels, first=first: (labels >= first) & (labels < first + 5)  # noqa: E731
            clf = FewShotClassifier(world.bank() if with_bank else None).fit(x[of(y)], y[of(y)])
            answers = clf.predict(query)
            clf.calibrate(query[held], truth[held])
            assert (clf.predict(query) == answers).all()
            p = clf.predict_proba(query[of(truth)])
            confidence.append(p.max(axis=1).mean())
            right.append((clf.classes_[p.argmax(axis=1)] == truth[of(truth)]).mean())
        assert np.mean(confidence) == pytest.approx(np.mean(right), abs=0.08)

    @pytest.mark.parametrize(
        ("rows", "y", "message"),
        [
            (Q[:8], TRUTH[:8], "y has one class only"),
            (Q, TRUTH[:-1], "X has 32 rows and y 31 labels"),
            (X, Y, "calibration needs two validation classes with more than 3 rows; add rows"),
            (Q[:, :5], TRUTH, "X has 5 features"),
        ],
        ids=["one class", "labels", "few rows", "features"],
    )
    def test_calibrate_refuses_rows_without_tasks(
        self, bank: BaseBank, rows: np.ndarray, y: np.ndarray, message: str
    ) -> None:
        clf = FewShotClassifier(bank).fit(X, Y)
        with pytest.raises(ValueError, match=message):
            clf.calibrate(rows, y)
        assert clf.temperature_ == 1.0

    # ---- notes ------------------------------------------------------------------------------------------------------

    def test_shuffled_labels_warn_and_give_the_support_only_answers(self) -> None:
        world = make_world(4, signed=True, classes=20)
        order = np.random.default_rng(0).permutation(len(world.y))
        with pytest.warns(FewcalWarning, match="do not differ beyond chance and are not used"):
            clf = FewShotClassifier((world.x, world.y[order])).fit(X, Y)
        np.testing.assert_allclose(clf.predict_proba(Q), FewShotClassifier().fit(X, Y).predict_proba(Q), atol=1e-5)
        assert "do not differ beyond chance" in str(clf.explain())

    def test_notes_name_few_base_classes_and_single_examples(self, bank: BaseBank) -> None:
        one = FewShotClassifier(bank, classes=1e6).fit(X[::3], Y[::3]).explain()
        assert any("fewer than three examples" in note for note in one.notes)
        three = FewShotClassifier(bank).fit(X, Y).explain()
        assert not any("fewer than three" in note for note in three.notes)

    def test_a_task_of_another_domain_has_a_note(self, bank: BaseBank) -> None:
        near, far = (FewShotClassifier(bank).fit(rows, Y).explain() for rows in (X, X + 30))
        assert far.offset > max(near.offset, 0.5)
        assert "outside of the domain" in str(far)


class TestSupportOnly(ClassifierContract):
    cls = FewShotClassifier
    with_bank = False
    grid: ClassVar = {"scatter": [1, 10.0]}

    def test_one_shot_is_the_largest_cosine_around_the_centre(self) -> None:
        first = [0, 3, 6, 9]
        unit, query = (reference.unit_rows(rows.astype(np.float64)) for rows in (X[first], Q))
        centre = reference.task_offset(unit)
        nearest = ((query - centre) @ reference.unit_rows(unit - centre).T).argmax(axis=1)
        assert (FewShotClassifier().fit(X[first], Y[first]).predict(Q) == Y[first][nearest]).all()

    def test_many_shots_are_calibrated(self) -> None:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(2000, 3)) + 0.7 * np.repeat([[1], [-1]], 1000, axis=0)
        y = np.repeat([1, 0], 1000)
        p = FewShotClassifier().fit(x[::2], y[::2]).predict_proba(x[1::2])[:, 1]
        confident = p > 0.9
        assert abs(y[1::2][confident].mean() - p[confident].mean()) < 0.05

    def test_explain_names_what_is_missing(self) -> None:
        clf = FewShotClassifier().fit(X, Y)
        assert "No base classes were given" in str(clf.explain())
        assert clf.explain().to_frame().empty
        assert clf.prior_ is None

    def test_identical_rows_of_a_class(self) -> None:
        clf = FewShotClassifier().fit([[0.0, 1], [0, 1], [2, 3], [2, 3]], [0, 0, 1, 1])
        assert clf.predict([[0.0, 1.1], [2, 2.9]]).tolist() == [0, 1]
        assert np.isfinite(clf.predict_proba([[0.0, 1.1]])).all()


class TestGDCClassifier(BankContract):
    cls = GDCClassifier
    settings: ClassVar = CLOSED
    grid: ClassVar = {"k": np.arange(1, 4), "m": [0.5, 2.0], "beta": [0.5, 1.0]}

    def test_parameters_are_those_of_gdc(self) -> None:
        own = [p for p in signature(GDCClassifier).parameters if p not in ("bank", "preset", "device", "random_state")]
        assert own == [f.name for f in fields(GDCParams)]

    def test_a_parameter_of_another_model_is_a_type_error(self, bank: BaseBank) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'whiten'"):
            GDCClassifier(bank, whiten=2)  # type: ignore[call-arg]

    def test_a_preset_of_the_paper_is_the_reference(self, world: SmallData) -> None:
        X, y, query = world.support[0], world.labels[0], world.query[0]
        clf = GDCClassifier(world.bank(), "paper/cub/1shot", head="closed_form").fit(X, y)
        expected = reference.one_task(clf.params_.as_dict(), world.base, X, y, query)
        found, want = (s - s.mean(axis=1, keepdims=True) for s in (clf.decision_function(query), expected["scores"]))
        np.testing.assert_allclose(found, want, rtol=0, atol=1e-3 * np.abs(want).max())
        # The head of the preset is trained on drawn points: what it is trained for is the same.
        drawn = GDCClassifier(world.bank(), "paper/cub/1shot", n=5).fit(X, y).explain()
        weights = expected["weights"] / (1 + expected["weights"].sum(axis=1, keepdims=True))
        for c, one in enumerate(drawn.classes):
            shares = np.zeros(len(world.base))
            for row in np.flatnonzero(y == c):
                shares[expected["index"][row]] += weights[row] / (y == c).sum()
            by_name = dict(zip(one.bases, one.shares, strict=True))
            got = [by_name.get(f"class {i}", 0.0) for i in range(len(shares))]
            np.testing.assert_allclose(got, shares, rtol=5e-3, atol=1e-7)

    @pytest.mark.parametrize("head", [KNeighborsClassifier(3), LinearSVC(), LogisticRegression()])
    def test_a_classifier_of_scikit_learn_is_a_head(self, bank: BaseBank, head: Any) -> None:
        clf = GDCClassifier(bank, **{**CLOSED, "head": head, "n": 30}).fit(X, Y)
        assert clf.score(Q, TRUTH) > 0.8
        if isinstance(head, KNeighborsClassifier):
            assert clf.set_params(head__n_neighbors=1).head.n_neighbors == 1

    def test_the_seed_decides_what_is_drawn(self, bank: BaseBank) -> None:
        def scores(state: Any) -> np.ndarray:
            drawn = {**CLOSED, "head": "lbfgs", "n": 20, "random_state": state}
            return GDCClassifier(bank, **drawn).fit(X, Y).decision_function(Q)

        assert (scores(0) == scores(0)).all()
        assert (scores(0) != scores(1)).any()
        assert (scores(None) != scores(None)).any()
        assert (scores(np.random.RandomState(0)) == scores(np.random.RandomState(0))).all()

    def test_k_of_a_preset_is_limited_and_a_given_one_refused(self, bank: BaseBank) -> None:
        with pytest.warns(FewcalWarning, match="the preset has k=10 base classes and the bank 9; k=9 is used"):
            clf = GDCClassifier(bank, "paper/dogs/1shot", head="lbfgs", n=10, alpha2_ratio=0).fit(X, Y)
        assert clf.params_.k == 9
        with pytest.raises(InputError, match="k=10 must be an integer from 1 to the number of base classes, 9"):
            GDCClassifier(bank, k=10).fit(X, Y)

    def test_without_a_bank_classes_of_two_rows_are_base_classes(self) -> None:
        settings = {**CLOSED, "k": 2}
        keep = np.r_[0:9, 9]  # the fourth class has one row
        found = GDCClassifier(**settings).fit(X[keep], Y[keep]).decision_function(Q)
        own = BaseBank().fit(X[:9], Y[:9])
        np.testing.assert_allclose(
            found, GDCClassifier(own, **settings).fit(X[keep], Y[keep]).decision_function(Q), atol=1e-5
        )
        with pytest.raises(InputError, match="no class has two rows, so that there are no base classes; give a bank"):
            GDCClassifier().fit(X[::3], Y[::3])

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"k": 0}, "k=0 is out of range"),
            ({"k": 2.5}, "k=2.5 must be a whole number"),
            ({"m": -1.0}, "m=-1.0 is out of range; use a number ≥ 0"),
            ({"alpha2_ratio": float("nan")}, "alpha2_ratio=nan is out of range"),
            ({"kind": "tukey", "beta": 0.5}, "kind='tukey' with negative base features"),
            ({"preset": "papr"}, "preset 'papr' is unknown; did you mean 'paper'"),
            ({"preset": 3}, "preset=3 is not a preset; use a name, a preset file or GDCParams"),
            ({"head": "svm"}, "head='svm' is unknown; use one of closed_form, lbfgs, sgd"),
            ({"head": 3}, "head=3 is neither a name nor a classifier"),
        ],
    )
    def test_a_bad_parameter_is_refused(self, bank: BaseBank, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError, match=message) as caught:
            GDCClassifier(bank, **settings).fit(X, Y)
        assert "\n" not in str(caught.value)

    def test_explain_by_hand(self) -> None:
        bank = BaseBank().fit(np.array([[0.0, 0], [2, 0], [9, 0], [11, 0]]), ["near", "near", "far", "far"])
        plain = GDCParams(beta=1.0, k=2, m=1.0, alpha1=1.0, alpha2_ratio=0.0, head="closed_form")
        a, b = GDCClassifier(bank, plain).fit([[0.0, 0.0], [10.0, 0.0]], ["a", "b"]).explain().classes
        total = 1 + 1 / 2 + 1 / 101
        assert a.bases == ["near", "far"]
        assert a.shares == pytest.approx([0.5 / total, 1 / 101 / total])
        assert a.own_share == pytest.approx(1 / total)
        assert a.moved == pytest.approx((0.5 * 1 + 10 / 101) / total / 9)  # base classes lie 9 apart
        assert b.bases == ["far", "near"]


# ---- all together ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("y", [np.array([3, -1, 3]), np.array(["b", "abc", "b"]), np.array([True, False, True])])
def test_classes_of_plain_labels_are_those_of_numpy(y: np.ndarray) -> None:
    classes, codes = class_codes(y)
    expected, positions = np.unique(y, return_inverse=True)
    assert classes.dtype == expected.dtype
    assert (classes.tolist(), codes.tolist()) == (expected.tolist(), positions.tolist())


@pytest.mark.parametrize("make", [FewShotClassifier, lambda bank: GDCClassifier(bank, n=20)], ids=["hgdc", "gdc"])
@pytest.mark.filterwarnings("ignore")
def test_numbers_at_the_edges_are_answered_or_refused(relu_world: SmallData, make: Any) -> None:
    x, y, query = relu_world.support[0], relu_world.labels[0], relu_world.query[0]
    for scale in (1e-30, 1e-10, 1e10, 1e14):
        bank = BaseBank().fit(relu_world.x.astype(np.float64) * scale, relu_world.y)
        assert np.isfinite(make(bank).fit(x * scale, y).predict_proba(query * scale)).all()
    for scale in (1e16, 1e25, 1e200):
        with pytest.raises(InputError, match=r"do not fit single precision|beyond what float32 holds"):
            BaseBank().fit(relu_world.x.astype(np.float64) * scale, relu_world.y)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("make", [FewShotClassifier, lambda bank, **kw: GDCClassifier(bank, **CLOSED, **kw)])
def test_a_fit_on_another_device_answers_the_same(bank: BaseBank, make: Any) -> None:
    found = make(bank, device="cuda").fit(X, Y).predict_proba(Q)
    np.testing.assert_allclose(found, make(bank).fit(X, Y).predict_proba(Q), atol=1e-4)
