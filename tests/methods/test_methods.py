"""Methods one by one: DC against its script, GDC with unequal shots and any head, baselines by their definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from sklearn.svm import SVC, LinearSVC

import reference
from fewcal._utils.randomness import TaskRandom
from fewcal.calibrate import Calibrator
from fewcal.covariance import CalibratedCovariance, shares, shrink_covariance
from fewcal.errors import InputError
from fewcal.heads.calibrated import augment, points_per_support
from fewcal.heads.linear import LinearHead
from fewcal.methods import TaskBatch, make_method
from methods.test_contracts import PLAIN, accuracy, run
from small_worlds import SmallData, make_world

# ---- DC ---------------------------------------------------------------------------------------------------------


def test_dc_moments_are_those_of_its_script(relu_world: SmallData) -> None:
    """Tukey-transformed support, raw base rows."""
    method = make_method("dc", k=2, alpha=0.21)
    method.prepare(relu_world.bank())
    x = method.transform(torch.from_numpy(relu_world.support[0]))
    np.testing.assert_allclose(x, np.sqrt(relu_world.support[0]), rtol=1e-5)
    bank = relu_world.bank()
    found = Calibrator(bank, k=2, metric="euclidean", equal=True).calibrate(x[None])
    covariance = CalibratedCovariance(bank, "independent", found.index, shares(found, "average"))
    sigma = shrink_covariance(covariance, 0.0, 0.0, constant=0.21).gaussian(found.mean).dense()
    for s, row in enumerate(x.double().numpy()):
        mean, expected = reference.dc_moments(row, [r.astype(np.float64) for r in relu_world.base], 2, 0.21)
        np.testing.assert_allclose(found.mean[0, s], mean, atol=1e-5)
        np.testing.assert_allclose(sigma[0, s], expected, atol=1e-5)


@pytest.mark.parametrize("shots", [1, 5])
def test_dc_trains_on_samples_with_those_moments(
    relu_world: SmallData, shots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n/K points for each support point, with the mean and covariance of the script, then logistic regression."""
    world = make_world(1, shots=shots, tasks=1)
    n = 20_000
    seen: dict[str, Any] = {}

    def record(x: torch.Tensor, y: torch.Tensor, n_classes: int, **settings: Any) -> LinearHead:
        seen.update(x=x, y=y, **settings)
        return LinearHead(torch.zeros(1, n_classes, x.shape[-1]), torch.zeros(1, n_classes))

    monkeypatch.setattr("fewcal.methods.dc.lbfgs_head", record)
    run(make_method("dc", n=n), world)
    s, each = 3 * shots, n // shots
    assert seen["x"].shape[1] == s + s * each
    assert seen["C"] == 1.0
    assert torch.equal(seen["y"][0, s:], torch.from_numpy(world.labels[0]).repeat_interleave(each))
    support = np.sqrt(world.support[0].astype(np.float64))
    np.testing.assert_allclose(seen["x"][0, :s], support, atol=1e-5)
    mean, sigma = reference.dc_moments(support[0], [r.astype(np.float64) for r in world.base], 2, 0.21)
    drawn = seen["x"][0, s : s + each].double().numpy()
    deviation = np.sqrt(np.diag(sigma))
    assert (np.abs(drawn.mean(axis=0) - mean) < 5 * deviation / np.sqrt(each)).all()
    error = 5 * np.sqrt((np.outer(deviation, deviation) ** 2 + sigma**2) / each)
    assert (np.abs(np.cov(drawn, rowvar=False) - sigma) < error).all()


def test_dc_cannot_have_more_neighbours_than_there_are(relu_world: SmallData) -> None:
    with pytest.raises(InputError, match="k=100"):
        run(make_method("dc", k=100), relu_world)


# ---- GDC --------------------------------------------------------------------------------------------------------


def test_counts_per_point_and_per_class() -> None:
    labels = torch.tensor([[0, 0, 0, 1, 2, 2]])
    assert points_per_support(labels, 750, "point").tolist() == [[750] * 6]
    assert points_per_support(labels, 750, "class").tolist() == [[250, 250, 250, 750, 375, 375]]
    assert points_per_support(labels, 2, "class").tolist() == [[1, 1, 1, 2, 1, 1]]  # never none


@pytest.mark.parametrize("n_per", ["point", "class"])
@pytest.mark.parametrize("shots", [(2, 2, 2), (1, 2, 3)])
def test_augmented_sets(relu_world: SmallData, n_per: str, shots: tuple[int, ...]) -> None:
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(shots))[None]
    support = torch.from_numpy(relu_world.support[:1, : labels.shape[1]])
    bank = relu_world.bank()
    found = Calibrator(bank, k=3).calibrate(support)
    shrunk = shrink_covariance(CalibratedCovariance(bank, "joint", found.index, shares(found)), 1e-6, 0.0)
    x, y = augment(TaskBatch(support, labels, 3, TaskRandom(0)), found.mean, shrunk, 60, n_per)
    s = labels.shape[1]
    assert torch.equal(x[:, :s], support)
    assert torch.equal(y[:, :s], labels)
    counts = torch.bincount(y[0, s:], minlength=3).tolist()
    assert counts == ([60 * k for k in shots] if n_per == "point" else [60, 60, 60])
    begin = s
    for i, each in enumerate(points_per_support(labels, 60, n_per)[0]):
        block = x[0, begin : begin + each]
        assert (y[0, begin : begin + each] == labels[0, i]).all()
        deviation = shrunk.gaussian(found.mean).dense()[0, i].diagonal().sqrt()
        assert ((block.mean(dim=0) - found.mean[0, i]).abs() < 5 * deviation / each**0.5 + 1e-5).all()
        begin += each
    assert begin == x.shape[1]


def test_gdc_heads_of_scikit_learn() -> None:
    world = make_world(10, tasks=2)
    for classifier in (SVC(), LinearSVC(), KNeighborsClassifier(5), SVC(kernel="linear", C=0.1), Voter()):
        logits = run(make_method("gdc", PLAIN, head=classifier), world)
        assert logits.shape == (2, 24, 3)
        assert torch.isfinite(logits).all()
        assert accuracy(logits, world) > 0.6
    proba = torch.softmax(run(make_method("gdc", PLAIN, head=KNeighborsClassifier(5)), world), dim=-1)
    assert set((proba * 5).round().flatten().tolist()) <= {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}


def test_two_classes_and_a_single_decision_value() -> None:
    world = make_world(11, ways=2, tasks=2)
    logits = run(make_method("gdc", PLAIN, head=SVC()), world)
    assert logits.shape == (2, 16, 2)
    torch.testing.assert_close(logits[..., 0], -logits[..., 1])
    assert accuracy(logits, world) > 0.7


class Voter:
    """A classifier with nothing but fit and predict: the nearest mean."""

    def get_params(self, deep: bool = True) -> dict:
        return {}

    def __sklearn_clone__(self) -> Voter:
        return Voter()

    def fit(self, x: np.ndarray, y: np.ndarray) -> Voter:
        self.means = np.stack([x[y == c].mean(axis=0) for c in np.unique(y)])
        return self

    def predict(self, x: np.ndarray) -> np.ndarray:
        answer: np.ndarray = ((x[:, None] - self.means) ** 2).sum(axis=-1).argmin(axis=1)
        return answer


def test_raw_bases_stay_raw(relu_world: SmallData) -> None:
    bank = relu_world.bank()
    method = make_method("gdc", PLAIN, transform_base=False)
    method.prepare(bank)
    assert method.bank is bank  # type: ignore[attr-defined]
    transformed = make_method("gdc", PLAIN)
    transformed.prepare(bank)
    x = torch.from_numpy(relu_world.query[0])
    assert torch.equal(method.transform(x), transformed.transform(x))


def test_negative_queries_where_the_bases_had_none(relu_world: SmallData) -> None:
    for name in ("gdc", "dc", "lr-gauss"):
        method = make_method(name, **({"preset": PLAIN} if name == "gdc" else {})).prepare(relu_world.bank())
        with pytest.raises(InputError, match="query has negative features"):
            method.transform(-torch.ones(1, 12), "query")


def test_gdc_refuses_more_neighbours_than_base_classes(relu_world: SmallData) -> None:
    with pytest.raises(InputError, match="k=10 must be an integer from 1 to the number of base classes, 9"):
        run(make_method("gdc", PLAIN, k=10), relu_world)


# ---- baselines --------------------------------------------------------------------------------------------------


def test_nearest_centroid_is_nearest(relu_world: SmallData) -> None:
    got = run(make_method("ncm"), relu_world).argmax(-1).numpy()
    for t in range(3):
        means = np.stack([relu_world.support[t][relu_world.labels[t] == c].mean(axis=0) for c in range(3)])
        d = ((relu_world.query[t][:, None] - means) ** 2).sum(axis=-1)
        assert np.array_equal(got[t], d.argmin(axis=1))


def test_simpleshot_centres_on_the_base_mean_and_normalises(relu_world: SmallData) -> None:
    method = make_method("simpleshot").prepare(relu_world.bank())
    x = relu_world.query[0].astype(np.float64)
    expected = reference.unit_rows(x - relu_world.x.astype(np.float64).mean(axis=0))
    np.testing.assert_allclose(method.transform(torch.from_numpy(relu_world.query[0])), expected, atol=1e-5)


def test_cosine_ignores_length(relu_world: SmallData) -> None:
    x = torch.from_numpy(relu_world.query[0])
    method = make_method("cosine")
    torch.testing.assert_close(method.transform(x), method.transform(7 * x))
    support, labels, _ = relu_world.tensors
    batch = TaskBatch(method.transform(support[0])[None], labels[:1], 3, TaskRandom(0))
    head = make_method("cosine", steps=0).fit(batch)
    assert isinstance(head, LinearHead)
    torch.testing.assert_close(head.weight.norm(dim=-1), torch.full((1, 3), 10.0))


@pytest.mark.parametrize("name", ["dc", "gdc"])
def test_memory_of_samples_grows_with_the_number_of_classes(name: str, world: SmallData) -> None:
    method = make_method(name, "authors/cub/1shot" if name == "gdc" else None)
    method.prepare(world.bank())
    points = 4 * 12 * 750 * 2
    assert method.task_bytes(50, 50, 12) - method.task_bytes(50, 5, 12) == 45 * points


@pytest.mark.parametrize("dim", [8, 64])
@pytest.mark.parametrize("shots", [(1, 1, 5, 1), (1, 2, 3, 4), (3, 3, 1, 3)])
def test_without_a_bank_no_class_is_preferred_for_its_number_of_examples(dim: int, shots: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    labels, truth = np.repeat(np.arange(4), shots), np.repeat(np.arange(4), 20)
    means = rng.normal(size=(30, 4, dim)) * 1.5 + 2
    support, query = (means[:, at] + rng.normal(size=(30, len(at), dim)) * 1.5 for at in (labels, truth))
    method = make_method("support-only")
    x, q = (method.transform(torch.from_numpy(rows).float()) for rows in (support, query))
    head = method.fit(TaskBatch(x, torch.from_numpy(labels).expand(30, -1), 4, TaskRandom(0)))
    found = head.logits(q).argmax(dim=2).numpy()
    assert np.abs(np.bincount(found.ravel(), minlength=4) / found.size - 0.25).max() < 0.08
    assert (found == truth).mean() > 0.6
