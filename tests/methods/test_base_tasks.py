"""How sure one example a class can make, measured on tasks of base classes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fewcal import BaseBank, GDCClassifier
from fewcal.bank.build import OneShotScale
from fewcal.class_prior import fit_class_prior, posterior
from fewcal.heads.discriminant import doubted
from fewcal.methods.base_tasks import one_shot_scale
from fewcal.methods.hierarchical import HierarchicalGDC
from fewcal.presets import get_preset

DIM = 40


def base_rows(apart: float, classes: int = 80, rows: int = 40, tail: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian classes of unit variance whose means scatter by `apart`; with `tail` rows of very unequal noise."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(classes), rows)
    noise = rng.normal(size=(len(labels), DIM))
    if tail:
        noise *= np.where(rng.random((len(labels), 1)) < 0.3, 4.0, 0.5)
    return (apart * rng.normal(size=(classes, DIM))[labels] + noise).astype(np.float32), labels


def prepared(bank: BaseBank) -> HierarchicalGDC:
    method = HierarchicalGDC(get_preset("default"))
    method.prepare(bank)
    return method


def scale(bank: BaseBank) -> OneShotScale:
    found = prepared(bank).one_shot
    assert found is not None
    return found


@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("apart", [0.3, 0.6, 1.0])
def test_the_scale_is_that_of_new_classes_which_no_extractor_saw(apart: float, tail: bool) -> None:
    """γ of tasks of new classes of the same kind, where their confidence is their accuracy, is found from the bank."""
    method = prepared(BaseBank().fit(*base_rows(apart, tail=tail)))
    rng = np.random.default_rng(1)
    new = np.repeat(apart * rng.normal(size=(300, 5, 1, DIM)), 6, axis=2)
    noise = rng.normal(size=new.shape)
    if tail:
        noise *= np.where(rng.random((*new.shape[:3], 1)) < 0.3, 4.0, 0.5)
    rows = method.prior.transform(torch.from_numpy((new + noise).reshape(-1, DIM).astype(np.float32)))
    z = (rows - method.prior.origin).view(300, 5, 6, DIM)
    p = method.params
    found = posterior(method.prior, z[:, :, 0], 1.0, sharpness=p.sharpness, strength=p.strength)
    directions = found.mean * found.precision
    scores = 2 * z[:, :, 1:].flatten(1, 2) @ directions.mT - (directions * found.mean).sum(dim=-1)[:, None]
    right = float((scores.argmax(dim=-1) == torch.arange(5).repeat_interleave(5)).float().mean())
    assert method.one_shot is not None
    answers = doubted(method.one_shot.gamma * scores, shots=1)
    sure = float(torch.softmax(answers, dim=-1).amax(dim=-1).mean())
    assert sure == pytest.approx(right, abs=0.05)


def test_classes_that_are_far_apart_leave_the_guess_as_it_is() -> None:
    far = prepared(BaseBank().fit(*base_rows(4.0)))
    assert far.one_shot is not None
    assert far.one_shot.gamma > 2 * far.confidence


def test_neither_the_order_of_classes_nor_their_names_matter() -> None:
    x, y = base_rows(0.6)
    order = np.argsort(np.random.default_rng(0).permutation(80)[y], kind="stable")
    one, other = scale(BaseBank().fit(x, y)), scale(BaseBank().fit(x[order], [f"class {c}" for c in y[order]]))
    assert other == pytest.approx(one, rel=0.1)  # other classes meet in a task


def test_a_base_class_is_not_its_own_neighbour() -> None:
    space = BaseBank().fit(*base_rows(1.0)).transformed(center=True, l2=True, moments=True)
    prior = fit_class_prior(space, 2.0, 1.0)
    weights = prior.neighbours(prior.means[None, :3], 1.75, torch.tensor([[0, 1, 5]]))[0]
    assert weights[0, 0] == 0
    assert weights[1, 1] == 0
    assert float(weights[2, 2]) == float(weights[2].max())
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(3))


def test_rows_that_made_the_covariance_do_not_pass_for_new_ones() -> None:
    """With few rows and many features whitening knows the rows by heart."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(60), 4)
    x = (0.4 * rng.normal(size=(60, 300))[labels] + rng.normal(size=(240, 300))).astype(np.float32)
    bank = BaseBank().fit(x, labels)
    method = prepared(bank)
    space = bank.transformed(beta=float(method.params.beta), center=True, l2=True, moments=True)
    guess, p = method.confidence, method.params
    weights = {"sharpness": p.sharpness, "strength": p.strength, "say": 1.0}
    naive = one_shot_scale(bank, space, replace(method.prior, leverage=0.0), guess, **weights)
    assert naive is not None
    assert scale(bank).gamma < 0.8 * naive.gamma


def test_banks_with_rows_in_any_form_tell_the_same_and_moments_alone_nothing() -> None:
    x, y = base_rows(0.6)
    raw = BaseBank().fit(x, y)
    space = raw.transformed(center=True, l2=True)
    assert space.has_rows
    torch.testing.assert_close(torch.tensor(scale(space)[:4]), torch.tensor(scale(raw)[:4]), rtol=1e-3, atol=0)
    assert (scale(space).learnt, scale(space).spread) == (0, 0)  # unit rows have lost their length
    assert prepared(BaseBank(0, transform=space.transform).fit(x, y)).one_shot is None


def test_a_saved_classifier_keeps_what_the_rows_told(tmp_path: Path) -> None:
    x, y = base_rows(0.4)
    rng = np.random.default_rng(2)
    examples = rng.normal(size=(5, DIM)).astype(np.float32)
    fitted = GDCClassifier(BaseBank().fit(x, y)).fit(examples, np.arange(5))
    loaded = GDCClassifier.load(fitted.save(tmp_path / "one.fewcal"))
    assert loaded.bank.rank == 0
    assert loaded.bank.parts.one_shot == pytest.approx(scale(BaseBank().fit(x, y)), rel=1e-4)
    np.testing.assert_allclose(loaded.predict_proba(x[:50]), fitted.predict_proba(x[:50]), atol=1e-4)
    grown = loaded.bank.partial_fit(x[:80] + 1, y[:80] + 100)
    assert grown.parts.one_shot is None  # of other classes


@pytest.mark.parametrize(
    "damaged",
    [[1.0], [float("nan"), 1.0], [1.0, -2.0], "no", [3.0, 2.0, 2.0, 0.0], [3.0, 2.0, 2.0, 1.0, 0.0, 0.0, -1.0]],
)
def test_a_damaged_scale_in_a_bank_file_is_told(damaged: object) -> None:
    from fewcal.bank.io import described, restored

    space = BaseBank().fit(*base_rows(0.6)).transformed(center=True, l2=True, moments=True)
    known = OneShotScale(3.0, 2.0, 1.5, 1.0, -2.0, 0.7, 0.1)
    meta, tensors = described(replace(space.parts, one_shot=known), "known")
    assert restored(meta, tensors).one_shot == known
    before = restored({**meta, "one_shot": [3.0, 2.0]}, tensors).one_shot  # as saved before new classes were told apart
    assert before == OneShotScale(3.0, 2.0, 3.0, 2.0)
    with pytest.raises((TypeError, ValueError)):
        restored({**meta, "one_shot": damaged}, tensors)
    without = {k: v for k, v in meta.items() if k != "one_shot"}  # as banks were written before
    assert restored(without, tensors).one_shot is None
