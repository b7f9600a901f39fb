"""Heads against scikit-learn, a plain torch loop, and dense float64 discriminant analysis."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

import reference
from fewcal import ops
from fewcal._utils.randomness import TaskRandom
from fewcal.calibrate import Calibrator
from fewcal.covariance import COVARIANCES, CalibratedCovariance, ShrunkCovariance, shares, shrink_covariance
from fewcal.episodes import EpisodeSpec, sample_episodes
from fewcal.errors import FewcalWarning, InputError
from fewcal.features.synthetic import make_features
from fewcal.heads import closed_form_head, lbfgs_head, sgd_head
from fewcal.heads.closed_form import conjugate_gradients
from fewcal.heads.lbfgs import InverseHessian, Preconditioner
from fewcal.heads.linear import LinearHead, class_means, nearest_mean_head
from fewcal.heads.sgd import shuffles
from small_worlds import SmallData, make_world


def points(
    seed: int = 0, tasks: int = 4, rows: int = 60, d: int = 6, ways: int = 3, gap: float = 1.0, size: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping Gaussian classes, `(T, M, D)` and `(T, M)`."""
    rng = np.random.default_rng(seed)
    y = np.tile(np.arange(rows) % ways, (tasks, 1))
    means = gap * rng.normal(size=(tasks, ways, d))
    x = size * (np.take_along_axis(means, y[..., None], axis=1) + rng.normal(size=(tasks, rows, d)))
    return torch.from_numpy(x).float(), torch.from_numpy(y)


# ---- linear -----------------------------------------------------------------------------------------------------


def test_class_means_and_logits() -> None:
    x, y = points(ways=4)
    means = class_means(x, y, 4)
    for t, c in itertools.product(range(4), range(4)):
        torch.testing.assert_close(means[t, c], x[t][y[t] == c].mean(dim=0))
    assert not class_means(x, y, 5)[:, 4].any()  # a class without rows
    head = LinearHead(torch.randn(4, 3, 6), torch.randn(4, 3))
    torch.testing.assert_close(head.logits(x)[1, 2], head.weight[1] @ x[1, 2] + head.bias[1])


def test_nearest_mean_scores_are_distances() -> None:
    x, y = points()
    means = class_means(x, y, 3)
    logits = nearest_mean_head(means, 2.0).logits(x)
    squared = torch.cdist(x, means).square()
    torch.testing.assert_close(logits.log_softmax(-1), (-squared / 4).log_softmax(-1), rtol=1e-3, atol=1e-4)


# ---- L-BFGS -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("C", [0.01, 1.0, 100.0, float("inf")])
@pytest.mark.parametrize("ways", [2, 4])
def test_lbfgs_is_scikit_learns_logistic_regression(C: float, ways: int) -> None:
    x, y = points(1, rows=80, ways=ways)
    head = lbfgs_head(x, y, ways, C=C, max_iter=2000, tol=1e-6)
    for t in range(len(x)):
        theirs = LogisticRegression(C=C, tol=1e-8, max_iter=10_000).fit(x[t].double().numpy(), y[t].numpy())
        got = torch.softmax(head.logits(x)[t], dim=-1).numpy()
        if ways == 2:
            # Two classes: theirs has one weight vector, ours two that share the penalty; compare what is comparable.
            expected = reference_two_classes(x[t], y[t], C)
            np.testing.assert_allclose(got[:, 1], expected, atol=2e-3)
            continue
        np.testing.assert_allclose(got, theirs.predict_proba(x[t].double().numpy()), atol=2e-3)
        if np.isfinite(C):
            np.testing.assert_allclose(head.weight[t], theirs.coef_, atol=5e-3 * np.abs(theirs.coef_).max())
            spread = head.bias[t] - head.bias[t].mean()
            np.testing.assert_allclose(spread, theirs.intercept_ - theirs.intercept_.mean(), atol=5e-3)


def test_lbfgs_reaches_a_strict_tolerance() -> None:
    """Where slopes are below the rounding of the loss, a line search that follows them makes steps of no length."""
    x, y = points(1, rows=80, ways=4)
    head = lbfgs_head(x, y, 4, C=0.01, max_iter=100, tol=1e-6)
    residual = torch.softmax(x.double() @ head.weight.double().mT + head.bias.double()[:, None], dim=-1)
    residual -= torch.nn.functional.one_hot(y, 4)
    gradient = residual.mT @ x.double() / 80 + head.weight.double() / (0.01 * 80)
    assert gradient.abs().max() < 1e-5


def reference_two_classes(x: torch.Tensor, y: torch.Tensor, C: float) -> np.ndarray:
    """Softmax regression with two weight vectors ±v/2: the penalty is ‖v‖²/4, so C doubles in the binary form."""
    theirs = LogisticRegression(C=2 * C, tol=1e-8, max_iter=10_000).fit(x.double().numpy(), y.numpy())
    probabilities: np.ndarray = theirs.predict_proba(x.double().numpy())[:, 1]
    return probabilities


def test_lbfgs_stops_where_the_gradient_vanishes() -> None:
    x, y = points(2)
    head = lbfgs_head(x, y, 3, C=1.0, max_iter=1000, tol=1e-4)
    p = torch.softmax(head.logits(x), dim=-1) - torch.nn.functional.one_hot(y, 3)
    grad = p.mT @ x / x.shape[1] + head.weight / x.shape[1]
    assert grad.abs().max() < 2e-4


def test_a_task_that_finds_no_step_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # Among these is one whose gradient stays above the tolerance, while rounding hides every step from it.
    novel = make_features(base=6, val=5, novel=5, rows=20, dim=16).novel
    episodes = sample_episodes(novel.require_labels(), EpisodeSpec(3, 1, 5), range(600))
    x = torch.from_numpy(novel.float32())[torch.from_numpy(episodes.support.reshape(600, -1))]
    searches = []
    search = ops.line_search
    monkeypatch.setattr(ops, "line_search", lambda *given: (searches.append(1), search(*given))[1])
    head = lbfgs_head(x, torch.arange(3).expand(600, -1), 3, max_iter=1000)
    assert len(searches) < 200
    assert bool((head.logits(x).argmax(dim=-1) == torch.arange(3)).all())


def test_a_metric_leads_lbfgs_to_the_same_minimum() -> None:
    x, y = points(2, rows=90)
    x = x * torch.tensor([5.0, 1.0, 1.0, 0.2, 0.1, 0.1])
    metric = torch.diag(1 / (x.reshape(-1, 6).var(dim=0) + 0.1))
    plain, led = (lbfgs_head(x, y, 3, max_iter=1000, tol=1e-6, metric=m) for m in (None, metric))
    torch.testing.assert_close(led.weight, plain.weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(led.bias, plain.bias, rtol=1e-3, atol=1e-3)


def test_lbfgs_weak_penalty_on_separable_data_is_finite_and_right() -> None:
    x, y = points(3, gap=8.0)
    for C in (1e4, float("inf")):
        head = lbfgs_head(x, y, 3, C=C, max_iter=300)
        assert torch.isfinite(head.weight).all()
        assert (head.logits(x).argmax(-1) == y).all()


@pytest.mark.parametrize("C", [1.0, 1e6])
@pytest.mark.parametrize("size", [0.3, 1.0, 50.0, 300.0])
def test_lbfgs_finds_the_minimum_at_any_scale(size: float, C: float) -> None:
    """On large features the first steps saturate the softmax; the line search must come back from there."""
    x, y = points(4, size=size)
    head = lbfgs_head(x, y, 3, C=C, max_iter=1000)
    loss = torch.nn.functional.cross_entropy(head.logits(x).transpose(1, 2), y, reduction="none").mean(dim=1)
    for t in range(len(x)):
        rows, target = x[t].double().numpy() / size, y[t].numpy()  # well scaled for the other side
        theirs = LogisticRegression(C=C * size**2, max_iter=5000).fit(rows, target).predict_proba(rows)
        assert loss[t] < -np.log(theirs[np.arange(len(rows)), target]).mean() + 0.01


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_lbfgs_does_not_depend_on_the_batch(batch: int) -> None:
    """Tasks of very different difficulty: some are done long before others and leave the batch."""
    x = torch.cat([points(s, tasks=1, gap=g)[0] for s, g in enumerate([0.0, 0.3, 1.0, 3.0, 10.0])])
    y = points(0, tasks=5)[1]
    whole = lbfgs_head(x, y, 3, C=1.0).logits(x)
    parts = [
        lbfgs_head(x[i : i + batch], y[i : i + batch], 3, C=1.0).logits(x[i : i + batch]) for i in range(0, 5, batch)
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-3, atol=1e-3)
    assert torch.equal(torch.cat(parts).argmax(-1), whole.argmax(-1))


def test_inverse_hessian_times_gradient_is_the_two_loop_recursion() -> None:
    """Against the recursion as books print it, in float64, with a pair of no curvature among the others."""
    random = torch.Generator().manual_seed(0)
    precondition = Preconditioner(torch.tensor([0.3, 0.9]).view(2, 1, 1))
    exact = [Preconditioner(torch.tensor([[[0.3]]]).double()), Preconditioner(torch.tensor([[[0.9]]]).double())]
    hessian, pairs = InverseHessian(torch.zeros(2, 3, 5), memory=3), []
    for i in range(6):
        grad, step, noise = (torch.randn(2, 3, 5, generator=random) for _ in range(3))
        product = hessian.times(grad, precondition(grad))
        for t in range(2):
            q, alphas = grad[t].double(), []
            good = [(s[t].double(), y[t].double()) for s, y in pairs[-3:] if float((s[t] * y[t]).sum()) > 1e-12]
            for s, y in reversed(good):
                alphas.append((s * q).sum() / (s * y).sum())
                q = q - alphas[-1] * y
            r = exact[t](q[None])[0]
            if good and float((pairs[-1][0][t] * pairs[-1][1][t]).sum()) > 1e-12:
                s, y = good[-1]
                r = r * (s * y).sum() / (y * exact[t](y[None])[0]).sum()
            for (s, y), alpha in zip(good, reversed(alphas), strict=True):
                r = r + (alpha - (y * r).sum() / (s * y).sum()) * s
            torch.testing.assert_close(product[t].double(), r, rtol=1e-3, atol=1e-4)
        change = step + 0.3 * noise if i != 2 else -step
        pairs.append((step, change))
        hessian.add(step, change, precondition(change))


def test_minimise_on_an_uphill_direction_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = points(2)
    monkeypatch.setattr(InverseHessian, "times", lambda self, grad, pushed: -grad)
    assert (lbfgs_head(x, y, 3, C=0.1, max_iter=1000).logits(x).argmax(-1) == y).float().mean() > 0.6


@pytest.mark.parametrize("C", [0, -1.0, float("nan")])
def test_lbfgs_bad_C(C: float) -> None:
    with pytest.raises(InputError, match=r"C=.* must be > 0"):
        lbfgs_head(*points(), 3, C=C)


# ---- SGD --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "batch_size"), [(50, 1024), (50, 16), (48, 16)])
def test_sgd_is_a_plain_torch_loop(rows: int, batch_size: int) -> None:
    """Same initial weights and shuffles, drawn from the task's stream in the documented order."""
    x, y = points(5, tasks=2, rows=rows)
    tasks, epochs = [3, 8], 30
    head = sgd_head(x, y, 3, TaskRandom(1, tasks), batch_size=batch_size, epochs=epochs)
    for t in range(2):
        random = TaskRandom(1, [tasks[t]])
        start = (random.uniform(3, 7)[0] * 2 - 1) / 6**0.5
        model = torch.nn.Linear(6, 3)
        with torch.no_grad():
            model.weight.copy_(start[:, :6])
            model.bias.copy_(start[:, 6])
        optimiser = torch.optim.SGD(model.parameters(), lr=0.08)
        for order in torch.cat(list(shuffles(random, rows, epochs)), dim=1)[0]:
            for begin in range(0, rows, batch_size):
                at = order[begin : begin + batch_size]
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(model(x[t][at]), y[t][at]).backward()
                optimiser.step()
        torch.testing.assert_close(head.weight[t], model.weight.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(head.bias[t], model.bias.detach(), rtol=1e-4, atol=1e-5)


def test_shuffles_are_an_order_of_its_own_for_every_epoch() -> None:
    orders = torch.cat(list(shuffles(TaskRandom(0, [3, 4]), 30, 11)), dim=1)
    assert torch.equal(orders.sort(dim=-1).values, torch.arange(30).expand(2, 11, 30))
    assert len({tuple(order) for order in orders.flatten(0, 1).tolist()}) == 22
    assert torch.equal(orders[1:], torch.cat(list(shuffles(TaskRandom(0, [4]), 30, 11)), dim=1))


@pytest.mark.parametrize("batch", [1, 3])
def test_sgd_does_not_depend_on_the_batch(batch: int) -> None:
    x, y = points(7, tasks=5)
    tasks = [4, 0, 7, 2, 9]
    whole = sgd_head(x, y, 3, TaskRandom(0, tasks), batch_size=16, epochs=20).logits(x)
    parts = []
    for at in (slice(i, i + batch) for i in range(0, 5, batch)):
        head = sgd_head(x[at], y[at], 3, TaskRandom(0, tasks[at]), batch_size=16, epochs=20)
        parts.append(head.logits(x[at]))
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.cat(parts).argmax(-1), whole.argmax(-1))


@pytest.mark.parametrize("size", [80.0, 400.0])
def test_sgd_says_when_it_diverged(size: float) -> None:
    """Also where the loss is highest in the first epoch and swings about a high value ever after."""
    x, y = points(8, rows=200, size=size, gap=0.5, d=20)
    with pytest.warns(FewcalWarning, match=r"SGD diverged: .*lr=0\.08.*l2=True") as caught:
        head = sgd_head(x, y, 3, TaskRandom(0, range(4)), epochs=50, batch_size=64)
    with pytest.warns(FewcalWarning) as again:
        sgd_head(x[:2], y[:2], 3, TaskRandom(0, range(2)), epochs=50, batch_size=64)
    [one], [two] = caught, again
    assert str(one.message) == str(two.message)  # the same for every batch of a run, so that it is shown once
    loss = torch.nn.functional.cross_entropy(head.logits(x).transpose(1, 2), y)
    assert loss > np.log(3)


@pytest.mark.parametrize("gap", [0.0, 1.0, 3.0])
def test_sgd_says_nothing_on_unit_norm_features(gap: float) -> None:
    x, y = points(9, rows=40, gap=gap)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head = sgd_head(torch.nn.functional.normalize(x, dim=-1), y, 3, TaskRandom(0, range(4)))
    assert torch.isfinite(head.weight).all()


@pytest.mark.parametrize("bad", [{"lr": 0}, {"epochs": 0}, {"batch_size": 0}, {"lr": float("nan")}])
def test_sgd_bad_settings(bad: dict) -> None:
    with pytest.raises(InputError, match="all must be positive"):
        sgd_head(*points(tasks=1), 3, TaskRandom(0), **bad)


# ---- closed form ------------------------------------------------------------------------------------------------


def calibrated(
    world: SmallData, mode: str, alpha1: float, ratio: float = 0.1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, ShrunkCovariance]:
    """Calibrated means, labels, queries and covariances of a world's tasks."""
    support, labels, query = world.tensors
    bank = world.bank()
    found = Calibrator(bank, k=4, m=0.5).calibrate(support)
    covariance = CalibratedCovariance(bank, mode, found.index, shares(found))
    return found.mean, labels, query, shrink_covariance(covariance, alpha1, ratio)


def dense_scores(
    mean: torch.Tensor, labels: torch.Tensor, query: torch.Tensor, shrunk: ShrunkCovariance, ways: int
) -> np.ndarray:
    sigma = shrunk.gaussian(mean).dense().double().numpy().mean(axis=1)
    means = class_means(mean.double(), labels, ways).numpy()
    scores = [reference.lda_scores(means[t], sigma[t], query[t].double().numpy()) for t in range(len(mean))]
    return np.array(scores)


def centred(scores: np.ndarray) -> np.ndarray:
    out: np.ndarray = scores - scores.mean(axis=-1, keepdims=True)
    return out


@pytest.mark.parametrize("alpha1", [1e-3, 0.1, 1.0, 1e4])
@pytest.mark.parametrize("mode", COVARIANCES)
def test_the_closed_form_is_discriminant_analysis(world: SmallData, mode: str, alpha1: float) -> None:
    mean, labels, query, shrunk = calibrated(world, mode, alpha1)
    logits = closed_form_head(mean, labels, world.ways, shrunk).logits(query).double().numpy()
    expected = dense_scores(mean, labels, query, shrunk, world.ways)
    got, want = centred(logits), centred(expected)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * np.abs(want).max())
    probabilities = torch.softmax(torch.from_numpy(logits), dim=-1)
    torch.testing.assert_close(probabilities.sum(dim=-1), torch.ones(query.shape[:2], dtype=torch.float64))


@pytest.mark.parametrize("mode", COVARIANCES)
def test_the_closed_form_does_not_depend_on_the_batch(world: SmallData, mode: str) -> None:
    support, labels, query = world.tensors
    bank = world.bank()

    def scores(at: slice) -> torch.Tensor:
        found = Calibrator(bank, k=4, m=0.5).calibrate(support[at])
        covariance = CalibratedCovariance(bank, mode, found.index, shares(found))
        head = closed_form_head(found.mean, labels[at], world.ways, shrink_covariance(covariance, 0.1, 0.1))
        return head.logits(query[at])

    whole = scores(slice(None))
    parts = torch.cat([scores(slice(i, i + 1)) for i in range(len(support))])
    torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-3 * float(whole.abs().max()))
    assert torch.equal(parts.argmax(-1), whole.argmax(-1))


def test_samples_tend_to_the_closed_form() -> None:
    """Discriminant analysis on ever more samples of a 1-shot task: the coefficients approach at the rate 1/√n."""
    world = make_world(3, shots=1, tasks=1, dim=6, ways=3)
    mean, labels, query, shrunk = calibrated(world, "joint", 2.0)
    want = torch.softmax(closed_form_head(mean, labels, 3, shrunk).logits(query)[0], dim=-1).numpy()
    gaps = []
    for n in (100, 3_000, 100_000):
        x = shrunk.gaussian(mean).sample(n, TaskRandom(0))[0]
        lda = LinearDiscriminantAnalysis(solver="lsqr").fit(x.reshape(-1, 6).numpy(), np.repeat(labels[0].numpy(), n))
        gaps.append(np.abs(lda.predict_proba(query[0].numpy()) - want).max())
    assert gaps[2] < gaps[1] < gaps[0]
    assert gaps[2] < 0.02


def test_the_closed_form_refuses_what_has_no_inverse(relu_world: SmallData) -> None:
    mean, labels, _, shrunk = calibrated(relu_world, "joint", 0.0)
    with pytest.raises(InputError, match="needs an invertible covariance; use alpha1 > 0"):
        closed_form_head(mean, labels, 3, shrunk)
    eigen = shrink_covariance(shrunk.covariance, 1.0, 1.0, psd="eigen")
    with pytest.raises(InputError, match="use psd='clip' with head='closed_form'"):
        closed_form_head(mean, labels, 3, eigen)
    constant = shrink_covariance(shrunk.covariance, 0.0, 0.0, constant=0.2)
    with pytest.raises(InputError, match="DC has none: use head='lbfgs'"):
        closed_form_head(mean, labels, 3, constant)
    clipped = ShrunkCovariance(shrunk.covariance, torch.zeros(3, 6), torch.ones(3, 6))  # b at its upper bound
    with pytest.raises(InputError, match="a smaller alpha2_ratio"):
        closed_form_head(mean, labels, 3, clipped)


def test_conjugate_gradients_solve_and_skip_what_is_solved() -> None:
    g = torch.Generator().manual_seed(0)
    root = torch.randn(2, 8, 8, generator=g, dtype=torch.float64)
    a = root @ root.mT + 0.1 * torch.eye(8, dtype=torch.float64)
    v = torch.randn(2, 3, 8, generator=g, dtype=torch.float64)
    v[1, 2] = 0
    x = conjugate_gradients(lambda u: u @ a, lambda u: u / 5, v, tolerance=1e-10)
    torch.testing.assert_close(x, torch.linalg.solve(a, v.mT).mT, rtol=1e-6, atol=1e-6)
    assert not x[1, 2].any()


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_lbfgs_learns_from_one_feature_and_from_points_on_the_all_ones_line(shift: float) -> None:
    along = torch.tensor([[-2.0, -1.0, 1.0, 2.0]]) + shift
    labels = torch.tensor([[0, 0, 1, 1]])
    for x in (along[..., None], along[..., None].expand(1, 4, 5).contiguous()):
        assert torch.equal(lbfgs_head(x, labels, 2, C=100.0).logits(x).argmax(-1), labels)
