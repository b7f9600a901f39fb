"""Unlabelled rows, frequencies and names: what they bring in a Gaussian world, and what they must not change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fewcal import BaseBank, FewShotClassifier
from fewcal.errors import FewcalWarning, InputError
from fewcal.estimators import few_shot
from fewcal.hgdc.names import name_scores, plain_name
from fewcal.hgdc.transduction import presence

DIM, BASE, NAMES = 24, 60, ["ant", "bee", "cat", "dog"]


class World:
    """Classes around common centres: names say which, and so do features, less surely."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.centres = 1.2 * self.rng.normal(size=(6, DIM))
        group = np.arange(BASE) % 6
        means = self.centres[group] + self.rng.normal(size=(BASE, DIM))
        self.names = np.array(
            [f"kind {'abcdef'[g]} {chr(97 + i // 26)}{chr(97 + i % 26)}" for i, g in enumerate(group)], object
        )
        x = np.concatenate([self.rows(m, 20) for m in means])
        self.bank = BaseBank().fit(x, np.repeat(self.names, 20))

    def rows(self, mean: np.ndarray, count: int) -> np.ndarray:
        return (mean + 1.6 * self.rng.normal(size=(count, DIM))).astype(np.float32)

    def task(self, queries: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One example of each of four classes; queries, and their classes."""
        means = self.centres[self.rng.choice(6, 4, replace=False)] + self.rng.normal(size=(4, DIM))
        support = np.concatenate([self.rows(m, 1) for m in means])
        rows = np.concatenate([self.rows(m, n) for m, n in zip(means, queries, strict=True)])
        return support, rows, np.repeat(NAMES, queries)


WORLD = World()


def accuracies(queries: list[int], tasks: int = 40) -> tuple[float, float, float, float]:
    """Mean accuracy and mean confidence, one by one and together."""
    out = []
    for _ in range(tasks):
        support, rows, truth = WORLD.task(queries)
        clf = FewShotClassifier(WORLD.bank).fit(support, NAMES)
        values = []
        for p in (clf.predict_proba(rows), clf.predict_proba_together(rows)):
            values += [(clf.classes_[p.argmax(axis=1)] == truth).mean(), p.max(axis=1).mean()]
        out.append(values)
    alone, sure, together, surer = np.mean(out, axis=0)
    return float(alone), float(sure), float(together), float(surer)


@pytest.mark.parametrize("queries", [[20] * 4, [30, 25, 15, 10], [40, 40, 0, 0]])
def test_unlabelled_rows_raise_accuracy_and_leave_confidence_true(queries: list[int]) -> None:
    alone, sure, together, surer = accuracies(queries)
    assert together > alone + 0.02
    assert abs(surer - together) < abs(sure - alone) + 0.06


@given(st.integers(1, 3), st.integers(0, 1000))
@settings(max_examples=10)
def test_one_query_is_answered_as_by_itself(shots: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    support, rows, _ = WORLD.task([1] * 4)
    x = np.repeat(support, shots, axis=0) + 0.1 * rng.normal(size=(4 * shots, DIM))
    clf = FewShotClassifier(WORLD.bank).fit(x, np.repeat(NAMES, shots))
    np.testing.assert_allclose(clf.predict_proba_together(rows[:1]), clf.predict_proba(rows[:1]), atol=1e-4)


def test_order_of_queries_does_not_matter_and_rows_are_answered_without_themselves() -> None:
    support, rows, _ = WORLD.task([10] * 4)
    clf = FewShotClassifier(WORLD.bank).fit(support, NAMES)
    order = np.random.default_rng(0).permutation(len(rows))
    found = clf.predict_proba_together(rows)
    np.testing.assert_allclose(clf.predict_proba_together(rows[order]), found[order], atol=1e-5)
    own = FewShotClassifier(WORLD.bank).fit(support, NAMES, unlabelled=rows).predict_proba(rows)
    assert own.max(axis=1).mean() > found.max(axis=1).mean()


def test_useless_base_classes_leave_unlabelled_rows_without_effect() -> None:
    rng = np.random.default_rng(0)
    bank = BaseBank().fit(rng.normal(size=(400, DIM)), np.arange(400) % 40)
    support, rows, _ = WORLD.task([10] * 4)
    with pytest.warns(FewcalWarning, match="do not differ"):
        clf = FewShotClassifier(bank).fit(support, NAMES)
    np.testing.assert_allclose(clf.predict_proba_together(rows), clf.predict_proba(rows), atol=0.05)
    plain = FewShotClassifier().fit(support, NAMES)
    assert np.array_equal(plain.predict_proba_together(rows), plain.predict_proba(rows))
    with pytest.warns(FewcalWarning, match="unlabelled rows bring nothing without base classes"):
        FewShotClassifier().fit(support, NAMES, unlabelled=rows)


def test_presence_is_low_for_classes_without_rows_and_high_for_others() -> None:
    scores = 8 * torch.nn.functional.one_hot(torch.arange(60) % 2, 4).float()[None]
    z = torch.ones(1, 4)
    for _ in range(4):
        own, z = presence(scores, z)
    assert z[0, :2].min() > 0.99
    assert z[0, 2:].max() < 0.3
    assert own.shape == scores.shape


def test_later_examples_and_files_keep_what_was_at_hand(tmp_path: Path) -> None:
    support, rows, _ = WORLD.task([10] * 4)
    priors = {"ant": 4, "bee": 3, "cat": 2, "dog": 1}
    whole = FewShotClassifier(WORLD.bank).fit(support, NAMES, unlabelled=rows, priors=priors)
    parts = FewShotClassifier(WORLD.bank).fit(support[:3], NAMES[:3], unlabelled=rows, priors=[4, 3, 2])
    parts.add_class(support[3:], "dog")
    assert parts.unlabelled_ is not None
    assert len(parts.unlabelled_) == len(rows)
    loaded = FewShotClassifier.load(whole.save(tmp_path / "a"))
    for predict in ("predict_proba", "predict_proba_together"):
        np.testing.assert_allclose(getattr(loaded, predict)(rows), getattr(whole, predict)(rows), atol=1e-5)


def test_frequencies_are_those_of_bayes_rule() -> None:
    support, rows, _ = WORLD.task([10] * 4)
    plain = FewShotClassifier(WORLD.bank).fit(support, NAMES).predict_proba(rows)
    share = np.array([0.4, 0.3, 0.2, 0.1])
    expected = plain * share / (plain * share).sum(axis=1, keepdims=True)
    found = FewShotClassifier(WORLD.bank).fit(support, NAMES, priors=10 * share).predict_proba(rows)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("priors", "words"),
    [
        ([1, 2], "one frequency for each of 4 classes"),
        ({"ant": 1, "bee": 1, "cat": 1}, "priors lacks the class 'dog'"),
        ({**dict.fromkeys(NAMES, 1), "cow": 1}, "priors has 'cow', which is no class of y"),
        ([1, 1, 1, 0], "must be positive"),
        (["a", "b", "c", "d"], "priors must be numbers"),
    ],
)
def test_bad_frequencies_are_refused(priors: object, words: str) -> None:
    support, _, _ = WORLD.task([1] * 4)
    with pytest.raises(InputError, match=words):
        FewShotClassifier(WORLD.bank).fit(support, NAMES, priors=priors)  # type: ignore[arg-type]


# ---- names ----------------------------------------------------------------------------------------------------------


def test_names_count_where_they_show_near_base_classes_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    support, _, _ = WORLD.task([1] * 4)
    prior = FewShotClassifier(WORLD.bank).fit(support, NAMES).prior_
    assert prior is not None
    scores = name_scores(prior, ["kind a", "kind b", "17"], embed_kinds)
    kind = np.array([name.split()[1] for name in prior.classes])  # type: ignore[union-attr, attr-defined]
    assert scores[0, kind == "a"].min() > scores[0, kind != "a"].max()
    assert scores[2].abs().max() == 0  # a number is no name
    noise = np.random.default_rng(0)
    assert name_scores(prior, ["kind a"], lambda names: noise.normal(size=(len(names), 8))).abs().max() == 0

    monkeypatch.setattr(few_shot, "embed_names", embed_kinds)
    clf = FewShotClassifier(WORLD.bank)
    named = clf.fit(support, NAMES, class_names={"ant": "kind a"}).decision_function(support)
    assert np.abs(named - clf.fit(support, NAMES).decision_function(support)).max() > 1e-3


def embed_kinds(names: object) -> np.ndarray:
    """One direction for each kind; other names are like all."""
    found = [str(n).split() for n in names]  # type: ignore[attr-defined]
    return np.stack([np.eye(6)["abcdef".index(n[1])] if len(n) > 1 else np.ones(6) for n in found])


@pytest.mark.parametrize(
    ("name", "words"), [("004.Groove_billed_Ani", "groove billed ani"), ("n01443537", ""), (17, "")]
)
def test_plain_name_has_words_alone(name: object, words: str) -> None:
    assert plain_name(name) == words  # type: ignore[arg-type]
