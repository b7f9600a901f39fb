"""When the base classes help, and what `default` does when they do not."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import reference
from conftest import single_shots
from fewcal._utils.randomness import TaskRandom
from fewcal.bank import BaseBank
from fewcal.domain_match import (
    domain_match,
    enough_classes,
    held_out_similarity,
    oas_share,
    reliability,
    task_trust,
    unwhitening,
    whitening_shrinkage,
)
from fewcal.errors import InputError
from fewcal.estimators import GDCClassifier
from fewcal.features.synthetic import make_features
from fewcal.gaussianize import l2_normalise
from fewcal.methods import TaskBatch, make_method
from fewcal.methods.gdc import GDC
from fewcal.params import GDCParams
from fewcal.presets import get_preset


@pytest.fixture(scope="module")
def related() -> tuple[BaseBank, list[np.ndarray], np.ndarray, np.ndarray]:
    """A bank of 72 classes in families, its rows by class, and rows of novel classes of the same families."""
    fs = make_features(base=72, val=0, novel=8, rows=12, dim=20, families=6, relu=False)
    labels = fs.base.require_labels()
    bank = BaseBank().fit(fs.base.features, labels)
    return bank, [fs.base.features[labels == c] for c in range(72)], fs.novel.features, fs.novel.require_labels()


def space_of(bank: BaseBank) -> BaseBank:
    return bank.transformed(beta=1.0, center=True, l2=True)


def tasks(novel: np.ndarray, labels: np.ndarray, shot: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.permutation(np.flatnonzero(labels == c))[: shot + 6] for c in range(5)])
    support, query = rows[:, :shot].ravel(), rows[:, shot:].ravel()
    return (
        torch.from_numpy(novel[support])[None],
        torch.arange(5).repeat_interleave(shot)[None],
        torch.from_numpy(novel[query])[None],
    )


def unit_bases(base: list[np.ndarray]) -> list[np.ndarray]:
    """Rows by class, centred on the base mean and of unit length, in float64."""
    rows = [b.astype(np.float64) for b in base]
    centre = np.concatenate(rows).mean(axis=0)
    return [reference.unit_rows(r - centre) for r in rows]


@pytest.mark.parametrize("shot", [1, 3])
def test_default_is_the_reference_where_bases_help(related, shot: int) -> None:
    bank, base, novel, labels = related
    method = GDC(get_preset("whitened"))
    method.prepare(bank)
    support, y, query = tasks(novel, labels, shot)
    z, q = method.transform(support[0])[None], method.transform(query[0])[None]
    batch = TaskBatch(z, y, 5, TaskRandom(0))
    assert float(method.trust(batch).share) > 0.5  # or the comparison would say nothing
    p = method.params.as_dict() | {"held_out": held_out_similarity(method.bank)}
    expected = reference.one_task(p, base, support[0].numpy(), y[0].numpy(), query[0].numpy())
    found = method.calibration(batch)
    np.testing.assert_allclose(found.weights[0], expected["weights"], rtol=1e-3)
    got = method.fit(batch).logits(q)[0].double().numpy()
    want = expected["scores"]
    got, want = (v - v.mean(axis=1, keepdims=True) for v in (got, want))
    np.testing.assert_allclose(got / np.abs(got).max(), want / np.abs(want).max(), atol=2e-3)


def test_shrinkage_and_reliability_are_the_reference(related) -> None:
    bank, base, _, _ = related
    bases = unit_bases(base)
    assert reliability(space_of(bank)) == pytest.approx(reference.reliability(bases), rel=1e-4)
    for k in (4, 16, 24, 40):
        assert whitening_shrinkage(space_of(bank), k) == pytest.approx(
            reference.whitening_shrinkage(bases, k), rel=1e-3
        )


def test_oas_is_scikit_learns(related) -> None:
    from sklearn.covariance import oas

    x = np.random.default_rng(0).standard_normal((40, 6)) * np.arange(1, 7)
    values = torch.from_numpy(np.linalg.eigvalsh(np.cov(x.T, bias=True)))
    # scikit-learn divides both traces by the dimension and drops the small 2/D terms of the paper it cites.
    _, theirs = oas(x, assume_centered=False)
    assert oas_share(values, len(x)) == pytest.approx(theirs, rel=0.15)
    assert oas_share(torch.ones(5), 10) == 0.99  # nothing but the unit matrix
    assert oas_share(values, 10**9) < 1e-6  # enough rows: trust the covariance


def test_held_out_similarity_is_the_simulated_one(related) -> None:
    bank, base, _, _ = related
    space = space_of(bank)
    white = space.whitened(3.0)
    bases = unit_bases(base)
    w = reference.whitening(bases, 3.0)
    want = reference.held_out_similarity(bases, w, np.random.default_rng(0), draws=200)
    assert held_out_similarity(white) == pytest.approx(want, rel=0.05)
    assert held_out_similarity(white) == held_out_similarity(space.whitened(3.0))


def test_trust_falls_with_distance_from_the_bases(related) -> None:
    bank, _, novel, labels = related
    method = GDC(get_preset("whitened"))
    method.prepare(bank)
    support, _, _ = tasks(novel, labels, 1)
    near = method.transform(support[0])[None]
    # Directions orthogonal to every base mean resemble none of them.
    _, _, vh = torch.linalg.svd(method.bank.means)
    away = l2_normalise(near - 0.98 * near @ vh[:12].T @ vh[:12])
    assert float(task_trust(near, method.bank, 16)) > float(task_trust(away, method.bank, 16))
    opposite = -near
    assert float(task_trust(opposite, method.bank, 4)) <= float(task_trust(near, method.bank, 4))


def test_few_classes_switch_calibration_off(related) -> None:
    _, base, novel, labels = related
    rows = np.concatenate(base[:20])
    few = BaseBank().fit(rows, np.repeat(np.arange(20), 12))
    method = make_method("gdc", "whitened")
    method.prepare(few)
    support, y, _ = tasks(novel, labels, 1)
    z = method.transform(support[0])[None]
    assert enough_classes(20, 16) == 0.0
    assert torch.equal(method.calibration(TaskBatch(z, y, 5, TaskRandom(0))).mean, z)


def test_base_means_of_pure_noise_are_not_reliable() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((80 * 10, 16))
    noise = BaseBank().fit(x, np.repeat(np.arange(80), 10))
    assert reliability(space_of(noise)) < 0.1
    assert whitening_shrinkage(space_of(noise), 16) > 200  # next to no whitening


def test_shuffled_labels_leave_the_plain_classifier(related) -> None:
    """With base classes that mean nothing, `default` answers as SimpleShot does."""
    _, base, novel, labels = related
    rows = np.concatenate(base)
    shuffled = BaseBank().fit(rows, np.random.default_rng(1).permutation(np.repeat(np.arange(72), 12)))
    plain, gdc = make_method("simpleshot"), make_method("gdc", "whitened")
    agree = []
    for seed in range(20):
        support, y, query = tasks(novel, labels, 1, seed)
        answers = []
        for method in (plain, gdc):
            method.prepare(shuffled)
            z, q = method.transform(support[0])[None], method.transform(query[0])[None]
            answers.append(method.fit(TaskBatch(z, y, 5, TaskRandom(seed))).logits(q).argmax(-1))
        agree.append(float((answers[0] == answers[1]).float().mean()))
    assert np.mean(agree) > 0.97


def test_strength_zero_is_whitening_alone(related) -> None:
    bank, _, novel, labels = related
    support, y, _ = tasks(novel, labels, 1)
    method = GDC(get_preset("whitened").with_changes(strength=0.0))
    method.prepare(bank)
    z = method.transform(support[0])[None]
    assert torch.equal(method.calibration(TaskBatch(z, y, 5, TaskRandom(0))).mean, z)


def test_more_shots_move_the_means_less(related) -> None:
    bank, _, novel, labels = related
    method = GDC(get_preset("whitened"))
    method.prepare(bank)
    support, y, _ = tasks(novel, labels, 3)
    z = method.transform(support[0])[None]
    alone, together = (method.calibration(b) for b in (single_shots(z), TaskBatch(z, y, 5, TaskRandom(0))))
    torch.testing.assert_close(together.weights, alone.weights / 3 ** (2 / 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trust": "auto"}, "trust='auto' is judged in the whitened space"),
        ({"query_strength": 0.3}, "query_strength=0.3 goes with whitening"),
        ({"trust": 1.5}, "trust=1.5 is out of range; use a number from 0 to 1 \\(or 'auto'\\)"),
        ({"strength": -1}, "strength=-1 is out of range"),
        ({"distance_scale_of": "metre"}, "distance_scale_of='metre' is unknown; use one of bank, one"),
    ],
)
def test_bad_parameters_are_refused_by_name(changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        GDCParams(**changes)


def test_held_out_similarity_needs_a_whitened_bank(related) -> None:
    with pytest.raises(InputError, match="whitened bank"):
        held_out_similarity(related[0])
    with pytest.raises(InputError, match="trust is judged in a bank that was whitened"):
        task_trust(torch.zeros(1, 1, 20), related[0], 4, torch.ones(1))
    with pytest.raises(InputError, match="only a whitened bank"):
        unwhitening(related[0])


def test_unwhitening_leads_back_to_unit_vectors(related) -> None:
    space = space_of(related[0])
    white = space.whitened(2.0)
    assert space.transform is not None
    assert white.transform is not None
    x = torch.from_numpy(related[2])
    torch.testing.assert_close(
        l2_normalise(white.transform(x) @ unwhitening(white)), space.transform(x), rtol=1e-3, atol=1e-3
    )


def test_out_of_domain_tasks_are_answered_by_the_plain_classifier(related) -> None:
    """Tasks that resemble no base class get SimpleShot's answers; the others of the batch keep their own."""
    bank, _, novel, labels = related
    gdc, plain = make_method("gdc", "whitened"), make_method("simpleshot")
    gdc.prepare(bank)
    plain.prepare(bank)
    centre = bank.transformed(beta=1.0, center=True, l2=True).transform.mean
    support, y, query = tasks(novel, labels, 2)
    support, query = support.repeat(2, 1, 1), query.repeat(2, 1, 1)
    support[1], query[1] = 2 * centre - support[1], 2 * centre - query[1]  # the other side of the sphere
    y = y.repeat(2, 1)

    def answers(method) -> torch.Tensor:
        z, q = (method.transform(x.reshape(-1, 20)).view_as(x) for x in (support, query))
        return method.fit(TaskBatch(z, y, 5, TaskRandom(0, [0, 1]))).logits(q)

    space = gdc.transform(support.reshape(-1, 20)).view_as(support)
    assert (domain_match(space, gdc.bank) > 0).tolist() == [True, False]
    assert torch.equal(answers(gdc)[1].argmax(-1), answers(plain)[1].argmax(-1))
    assert not torch.equal(answers(gdc)[0].argmax(-1), answers(plain)[0].argmax(-1))

    fitted = GDCClassifier(bank, "whitened").fit(support[1].numpy(), y[1].numpy())
    assert "base classes were not used" in str(fitted.explain())
    assert "were not used" not in str(GDCClassifier(bank, "whitened").fit(support[0].numpy(), y[0].numpy()).explain())
