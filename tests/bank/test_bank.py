"""BaseBank: building in any order and in any pieces, compression, spaces, whitening, files."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from conftest import SmallData, make_world
from fewcal.bank import BaseBank, Moments
from fewcal.bank.io import FORMAT_VERSION, fingerprint
from fewcal.calibrate import Calibrator
from fewcal.errors import FileFormatError, InputError
from fewcal.gaussianize import Gaussianization, fit_gaussianization
from limits import largest_file


def toy(seed: int = 0, n: int = 40, d: int = 5, classes: int = 4) -> tuple[np.ndarray, list[str]]:
    """Rows and labels with every class present at least twice, in random order."""
    rng = np.random.default_rng(seed)
    y = np.concatenate([np.arange(classes), np.arange(classes), rng.integers(0, classes, n - 2 * classes)])
    rng.shuffle(y)
    return (rng.random((n, d)) + y[:, None]).astype(np.float32), [f"c{v}" for v in y]


def assert_same(a: BaseBank, b: BaseBank, *, rows: bool = True, tol: float = 1e-5) -> None:
    """Equal up to the order of classes."""
    assert set(a.classes) == set(b.classes)
    assert len(a) == len(b)
    at = [b.classes.index(c) for c in a.classes]
    assert a.counts.tolist() == b.counts[at].tolist()
    torch.testing.assert_close(a.means, b.means[at], rtol=tol, atol=tol)
    torch.testing.assert_close(a.within_scatter, b.within_scatter[at], rtol=tol, atol=tol)
    torch.testing.assert_close(a.scatter, b.scatter, rtol=tol, atol=tol * float(a.scatter.abs().max()))
    if rows:
        for i, j in enumerate(at):
            assert torch.equal(a.rows(i), b.rows(j))


# ---- moments --------------------------------------------------------------------------------------------------


def test_moments_are_those_of_the_rows(world: SmallData) -> None:
    bank = world.bank()
    assert bank.classes == [f"class {i}" for i in range(len(world.base))]
    assert bank.counts.tolist() == [len(r) for r in world.base]
    assert (len(bank), bank.dim, bank.n_rows) == (len(world.base), world.base[0].shape[1], len(world.x))
    for i, rows in enumerate(world.base):
        assert np.array_equal(bank.rows(i).numpy(), rows)
        np.testing.assert_allclose(bank.means[i], rows.mean(axis=0, dtype=np.float64), rtol=1e-5, atol=1e-6)
        assert float(bank.within_scatter[i]) == pytest.approx(
            rows.var(axis=0, dtype=np.float64).sum() * len(rows), rel=1e-5
        )
    pooled = reference.pooled_covariance([r.astype(np.float64) for r in world.base])
    np.testing.assert_allclose(bank.pooled_covariance(), pooled, atol=1e-5 * pooled.max())
    covariances = np.array([reference.covariance(r.astype(np.float64)) for r in world.base])
    np.testing.assert_allclose(bank.class_covariances(), covariances, atol=1e-5 * covariances.max())
    factor = bank.pooled_factor()
    np.testing.assert_allclose(factor.T @ factor, pooled, atol=1e-5 * pooled.max())
    assert bank.explained.tolist() == [1.0] * len(bank)


def test_moments_far_from_the_origin_keep_their_precision() -> None:
    x, y = toy()
    near, far = BaseBank().fit(x, y), BaseBank()
    for i in range(0, 40, 7):
        far.partial_fit(x[i : i + 7] + 1000, y[i : i + 7])
    torch.testing.assert_close(far.scatter, near.scatter, rtol=1e-2, atol=1e-2)


def test_paired_rows_are_cut_to_the_smallest_class_or_less(world: SmallData) -> None:
    bank = world.bank()
    smallest = min(len(r) for r in world.base)
    for size in (0, 2, smallest - 1, smallest):
        cut = size or smallest
        paired = bank.paired_rows(size)
        assert paired.shape == (len(bank), cut, bank.dim)
        for i, rows in enumerate(world.base):
            expected = (rows[:cut] - rows[:cut].mean(axis=0, dtype=np.float64)) / np.sqrt(cut - 1)
            np.testing.assert_allclose(paired[i], expected, atol=1e-5)
    for size in (1, smallest + 1):
        with pytest.raises(InputError, match=rf"common_size={size}: the smallest base class has {smallest} rows"):
            bank.paired_rows(size)


def test_repr_says_what_is_kept(relu_world: SmallData) -> None:
    assert repr(BaseBank()) == "BaseBank(empty)"
    assert "rows kept as float32, raw" in repr(relu_world.bank())
    assert "rank 3" in repr(relu_world.bank(rank=3))
    assert "moments only" in repr(relu_world.bank(rank=0))
    assert "transformed" in repr(relu_world.bank().transformed(beta=0.5))


# ---- building in pieces ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 39), max_size=6, unique=True), st.sampled_from([None, 0, 5]))
def test_any_chunks_equal_one_fit(seed: int, cuts: list[int], rank: int | None) -> None:
    x, y = toy(seed)
    whole = BaseBank(rank).fit(x, y)
    edges = [0, *sorted(cuts), 40]
    chunks = [(x[i:j], y[i:j]) for i, j in itertools.pairwise(edges)]
    grown = BaseBank(rank)
    for cx, cy in chunks:
        grown.partial_fit(cx, cy)
    merged = BaseBank(rank).partial_fit(*chunks[0])
    for cx, cy in chunks[1:]:
        merged = merged.merge(BaseBank(rank).partial_fit(cx, cy))
    for bank in (grown, merged):
        assert bank.classes == whole.classes
        assert_same(bank, whole, rows=rank is None)
        if rank == 5:  # all directions of a five-dimensional covariance, so nothing is lost on the way
            scale = float(whole.class_covariances().abs().max())
            torch.testing.assert_close(
                bank.class_covariances(), whole.class_covariances(), rtol=1e-4, atol=1e-4 * scale
            )


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_merge_in_any_order(order: tuple[int, ...]) -> None:
    x, y = toy(3)
    parts = [BaseBank().partial_fit(x[i::3], y[i::3]) for i in range(3)]
    before = [p.counts.tolist() for p in parts]
    merged = parts[order[0]].merge(parts[order[1]]).merge(parts[order[2]])
    other = parts[order[0]].merge(parts[order[1]].merge(parts[order[2]]))
    assert_same(merged, other)
    assert_same(merged, BaseBank().fit(x, y), rows=False)
    assert [p.counts.tolist() for p in parts] == before  # merging changes neither side


def test_merge_of_disjoint_classes() -> None:
    x, y = toy(1)
    half = [i for i, v in enumerate(y) if v in ("c0", "c1")]
    rest = [i for i in range(40) if i not in half]
    merged = BaseBank().fit(x[half], [y[i] for i in half]).merge(BaseBank().fit(x[rest], [y[i] for i in rest]))
    assert_same(merged, BaseBank().fit(x, y))


def test_a_covariance_without_room_is_refused() -> None:
    with pytest.raises(InputError, match=r"the covariance of 1000000 features takes 4e\+03 GB, .* by PCA"):
        BaseBank().fit(np.zeros((4, 1_000_000), dtype=np.float32), [0, 0, 1, 1])


def test_a_reused_buffer_does_not_change_the_bank() -> None:
    x, y = np.random.default_rng(0).random((8, 3), dtype=np.float32), ["a"] * 4 + ["b"] * 4
    expected = BaseBank().fit(x.copy(), y)
    buffer = x.copy()
    bank = BaseBank().partial_fit(buffer, y)
    buffer[:] = 7
    assert_same(bank, expected)
    tensor = torch.from_numpy(x.copy())
    bank = BaseBank().fit(tensor, y)
    tensor.zero_()
    assert_same(bank, expected)


def test_fit_forgets() -> None:
    x, y = toy()
    bank = BaseBank().fit(x + 5, [f"old {v}" for v in y])
    bank.means.sum()
    bank.pooled_eigen()
    assert_same(bank.fit(x, y), BaseBank().fit(x, y))
    assert torch.equal(bank.pooled_eigen()[0], BaseBank().fit(x, y).pooled_eigen()[0])


def test_partial_fit_refreshes_what_was_derived() -> None:
    x, y = toy()
    bank = BaseBank().fit(x[:30], y[:30])
    stale = bank.fingerprint, bank.pooled_eigen()[0], bank.transformed(beta=0.5).n_rows
    bank.partial_fit(x[30:], y[30:])
    assert bank.fingerprint != stale[0]
    assert not torch.equal(bank.pooled_eigen()[0], stale[1])
    assert (stale[2], bank.transformed(beta=0.5).n_rows) == (30, 40)


@pytest.mark.parametrize("label", ["text", 3, -1, True, 2.5, None, ("a", 1), (("x",), b"raw"), b"bytes"])
def test_any_hashable_label(label: object, tmp_path: Path) -> None:
    y = [label, "other"] * 4
    bank = BaseBank().fit(np.random.default_rng(0).random((8, 2)), y)
    assert bank.classes == [label, "other"]
    again = BaseBank.load(bank.save(tmp_path / "bank.safetensors"))
    assert again.classes == [label, "other"]
    assert type(again.classes[0]) is type(label)


def test_labels_that_are_numpy_scalars_can_be_saved(tmp_path: Path) -> None:
    y = [np.int64(4), (np.int64(1), np.float32(0.5))] * 3
    bank = BaseBank().fit(np.random.default_rng(0).random((6, 2)), y)
    assert BaseBank.load(bank.save(tmp_path / "bank")).classes == [4, (1, 0.5)]


def test_a_label_without_a_text_form_is_refused_on_saving(tmp_path: Path) -> None:
    bank = BaseBank().fit(np.random.default_rng(0).random((4, 2)), [frozenset("a"), "b"] * 2)
    with pytest.raises(InputError, match=r"frozenset.*cannot be saved; use str, int or tuple"):
        bank.save(tmp_path / "bank")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("rank", [None, 0, 3])
def test_a_copy_and_its_original_grow_apart(rank: int | None) -> None:
    x, y = toy()
    bank = BaseBank(rank).fit(x, y)
    twin = copy.copy(bank)
    assert twin.pooled_eigen() is bank.pooled_eigen()  # what was derived is shared
    twin.partial_fit(x[:8] + 3, [*y[:4], "new", "new", "newer", "newer"])
    assert (len(bank), bank.n_rows, len(twin), twin.n_rows) == (4, 40, 6, 48)
    same = BaseBank(rank).fit(x, y)
    assert_same(bank, same, rows=rank is None)
    if rank != 0:
        assert torch.equal(bank.class_factors(), same.class_factors())
    if rank is None:
        assert [len(bank.rows(i)) for i in range(4)] == bank.counts.tolist()


def test_moments_know_their_own_shapes() -> None:
    m = BaseBank().fit(*toy()).moments
    again = Moments.from_tensors(m.tensors(), 4)
    assert all(torch.equal(a, b) for a, b in zip(m.tensors().values(), again.tensors().values(), strict=True))
    assert "spread" in m.tensors()  # as files written before have it
    with pytest.raises(ValueError, match=r"counts has shape \(4,\), expected \(5,\)"):
        Moments.from_tensors(m.tensors(), 5)
    assert {t.dtype for t in m.mapped(lambda t: t.double()).tensors().values()} == {torch.float64}
    assert m.degrees_of_freedom == 36


def test_a_detached_bank_leaves_the_rows_behind() -> None:
    x = np.random.default_rng(0).random((4000, 4), dtype=np.float32)
    bank = BaseBank().fit(x, np.arange(4000) % 8).transformed(l2=True, whiten=1.0)
    assert len(pickle.dumps(bank)) > x.nbytes > 4 * len(pickle.dumps(bank.detached()))
    assert bank.detached().unwhitened is None
    assert bank.detached() is bank.detached()
    assert torch.equal(bank.detached().means, bank.means)
    assert bank.unwhitened is not None
    raw = bank.unwhitened
    assert raw.detached() is raw


# ---- storage and compression ----------------------------------------------------------------------------------


def test_float16_storage(relu_world: SmallData, tmp_path: Path) -> None:
    exact = relu_world.bank()
    for bank in (
        relu_world.bank(dtype="float16"),
        BaseBank().fit(relu_world.x.astype(np.float16), relu_world.y),
        BaseBank().fit(torch.from_numpy(relu_world.x).half(), relu_world.y),
    ):
        assert bank.rows(0).dtype == torch.float16
        assert bank.means.dtype == torch.float32
        torch.testing.assert_close(bank.means, exact.means, rtol=0, atol=2e-3)
        again = BaseBank.load(bank.save(tmp_path / "half"))
        assert again.rows(0).dtype == torch.float16
        assert torch.equal(again.rows(3), bank.rows(3))
    half, full = relu_world.bank(dtype="float16"), relu_world.bank()
    assert half.save(tmp_path / "h").stat().st_size < 0.75 * full.save(tmp_path / "f").stat().st_size
    widened = BaseBank(dtype="float32").fit(relu_world.x.astype(np.float16), relu_world.y)
    assert widened.rows(0).dtype == torch.float32


@pytest.mark.parametrize("rank", [1, 3, 8])
def test_low_rank_is_the_best_of_its_rank(world: SmallData, rank: int) -> None:
    bank = world.bank(rank=rank)
    got = bank.class_covariances().double().numpy()
    for i, rows in enumerate(world.base):
        sigma = reference.covariance(rows.astype(np.float64))
        values, vectors = np.linalg.eigh(sigma)
        kept = values[-rank:]
        best = vectors[:, -rank:] @ np.diag(kept) @ vectors[:, -rank:].T
        np.testing.assert_allclose(got[i], best, atol=2e-4 * values[-1])
        assert float(bank.explained[i]) == pytest.approx(kept.sum() / values.sum(), rel=1e-4)
    assert bank.explained.max() <= 1
    with pytest.raises(InputError, match="kept no rows"):
        bank.rows(0)
    with pytest.raises(InputError, match="joint covariance pairs rows"):
        bank.paired_rows()


def test_enough_rank_is_exact(world: SmallData) -> None:
    bank, exact = world.bank(rank=64), world.bank()
    assert bank.explained.tolist() == pytest.approx([1.0] * len(bank), rel=1e-5)
    scale = float(exact.class_covariances().abs().max())
    torch.testing.assert_close(bank.class_covariances(), exact.class_covariances(), rtol=0, atol=1e-5 * scale)


def test_moments_only(relu_world: SmallData) -> None:
    bank = relu_world.bank(rank=0)
    assert bank.explained.tolist() == [0.0] * len(bank)
    with pytest.raises(InputError, match=r"no class covariances \(rank=0\).*'pooled'"):
        bank.class_factors()


# ---- spaces ---------------------------------------------------------------------------------------------------

SPACES = [
    {"beta": 0.5},
    {"beta": 0.5, "center": True},
    {"beta": 1.0, "center": True, "l2": True},
    {"beta": 0.0, "l2": True},
    {"beta": 0.7, "kind": "yeo-johnson"},
    {"kind": "none", "l2": True},
]


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_bank_seen_through_a_transform(world: SmallData, space: dict) -> None:
    raw = world.bank()
    seen = raw.transformed(**space)
    g = fit_gaussianization(
        torch.from_numpy(world.x), space.get("beta", 1.0), *(space.get(f, v) for f, v in (("kind", "auto"),)),
        center=space.get("center", False), l2=space.get("l2", False),
    )  # fmt: skip
    built = BaseBank(transform=g).fit(world.x, world.y)
    assert_same(seen, built, rows=False)
    torch.testing.assert_close(seen.rows(1), g(raw.rows(1)))
    assert raw.transformed(**space) is seen  # derived once
    assert seen.transformed(**space) is seen
    assert built.transformed(**space) is built


def test_another_space_than_the_banks_is_refused(relu_world: SmallData) -> None:
    built = relu_world.bank(transform=fit_gaussianization(torch.from_numpy(relu_world.x), 0.5, l2=True))
    with pytest.raises(InputError, match=r"another space.*beta=0.5.*l2=True.*ask for.*beta=1.0.*rebuild"):
        built.transformed(beta=1.0, l2=True)
    with pytest.raises(InputError, match="another space"):
        built.transformed(beta=0.5)
    with pytest.raises(InputError, match="another space"):
        built.transformed(beta=0.5, l2=True, kind="yeo-johnson")


def test_a_bank_without_rows_stays_where_it_is(relu_world: SmallData) -> None:
    bank = relu_world.bank(rank=0)
    identity = bank.transformed(beta=1.0).transform
    assert identity is not None
    x = torch.randn(2, bank.dim)
    assert torch.equal(identity(x), x)
    with pytest.raises(InputError, match="kept no rows, so no transform"):
        bank.transformed(beta=0.5)
    with pytest.raises(InputError, match="kept no rows, so no transform"):
        bank.transformed(max_spread=4.0)


@pytest.mark.parametrize("shrink", [0.1, 1.0, 3.0])
def test_whitening_whitens(world: SmallData, shrink: float) -> None:
    bank = world.bank()
    w = bank.whitening(shrink).double()
    pooled = bank.pooled_covariance().double()
    d = bank.dim
    shrunk = pooled + shrink * pooled.trace() / d * torch.eye(d)
    torch.testing.assert_close(w.T @ shrunk @ w, torch.eye(d).double(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("rank", [None, 0, 4])
def test_the_whitened_bank(world: SmallData, rank: int | None) -> None:
    bank = world.bank(rank=rank)
    white = bank.whitened(2.0)
    assert white.is_whitened
    assert not bank.is_whitened
    rows = [r.astype(np.float64) for r in world.base]
    w = reference.whitening(rows, 2.0)
    means = reference.unit_rows(np.array([r.mean(axis=0) for r in rows]) @ w)
    # The rotation is free; lengths and angles are not.
    np.testing.assert_allclose(white.means @ white.means.T, means @ means.T, atol=1e-4)
    variance = reference.whitened_variance(rows, w)
    np.testing.assert_allclose(white.pooled_covariance(), variance * np.eye(bank.dim), rtol=1e-4, atol=1e-12)
    assert white.transform is not None
    torch.testing.assert_close(white.transform(bank.means), white.means)


def test_whitening_is_derived_once_per_strength(relu_world: SmallData) -> None:
    bank = relu_world.bank()
    one = bank.transformed(center=True, l2=True, whiten=1.0)
    assert bank.transformed(center=True, l2=True, whiten=1.0) is one
    assert bank.transformed(center=True, l2=True, whiten=2.0) is not one
    assert one.transform is not None
    assert one.transform.settings()["whitened"]
    with pytest.raises(InputError, match=r"whiten=-1.0 must be ≥ 0"):
        bank.transformed(whiten=-1.0)


# ---- files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda w: w.bank(),
        lambda w: w.bank(dtype="float16"),
        lambda w: w.bank(rank=3),
        lambda w: w.bank(rank=3, dtype="float16"),
        lambda w: w.bank(rank=0),
        lambda w: w.bank().transformed(beta=0.5, center=True, l2=True),
        lambda w: w.bank().transformed(beta=0.5, center=True, l2=True, whiten=2.0),
    ],
    ids=["rows", "rows float16", "rank", "rank float16", "moments", "transform", "whitened"],
)
def test_round_trip(relu_world: SmallData, make: object, tmp_path: Path) -> None:
    bank: BaseBank = make(relu_world)  # type: ignore[operator]
    bank.source = "a synthetic world"
    path = bank.save(tmp_path / "new" / "bank.safetensors")
    again = BaseBank.load(path)
    assert (again.classes, again.rank, again.dtype, again.source) == (
        bank.classes,
        bank.rank,
        bank.dtype,
        "a synthetic world",
    )
    for name in ("counts", "means", "scatter", "within_scatter"):
        assert torch.equal(getattr(again, name), getattr(bank, name))
    assert again.fingerprint == bank.fingerprint == fingerprint(again.parts)
    if bank.rank is None:
        assert all(torch.equal(again.rows(i), bank.rows(i)) for i in range(len(bank)))
    elif bank.rank:
        torch.testing.assert_close(again.class_factors(), bank.class_factors(), rtol=2e-3, atol=2e-3)
    x = torch.from_numpy(relu_world.support[0])
    if bank.transform is None:
        assert again.transform is None
    else:
        assert again.transform is not None
        # Memory-mapped tensors may lie at other addresses, for which some processors sum in another order.
        torch.testing.assert_close(again.transform(x), bank.transform(x), rtol=1e-5, atol=1e-6)
        x = bank.transform(x)
    found, expected = (Calibrator(b, k=3).calibrate(x).mean for b in (again, bank))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_loaded_rows_are_memorymapped(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((2000, 64), dtype=np.float32)
    path = BaseBank().fit(x, np.arange(2000) % 4).save(tmp_path / "mapped.safetensors")

    def mapped() -> bool:
        return "mapped.safetensors" in Path("/proc/self/maps").read_text()

    assert not mapped()
    bank = BaseBank.load(path)
    assert mapped()
    maps = [line for line in Path("/proc/self/maps").read_text().splitlines() if "mapped.safetensors" in line]
    begin, end = (int(v, 16) for v in maps[0].split()[0].split("-"))
    assert begin <= bank.rows(0).data_ptr() < end
    del bank
    assert not mapped()


def test_a_loaded_bank_can_grow_and_be_saved_over_itself(tmp_path: Path) -> None:
    x, y = toy()
    path = BaseBank().fit(x[:30], y[:30]).save(tmp_path / "bank")
    bank = BaseBank.load(path).partial_fit(x[30:], y[30:])
    bank.save(path)
    assert_same(BaseBank.load(path), BaseBank().fit(x, y))


def test_a_part_with_a_single_row_can_be_saved_and_merged_later(tmp_path: Path) -> None:
    x, y = toy()
    paths = [BaseBank().partial_fit(x[i : i + 4], y[i : i + 4]).save(tmp_path / str(i)) for i in range(0, 40, 4)]
    merged = BaseBank.load(paths[0])
    for path in paths[1:]:
        merged = merged.merge(BaseBank.load(path))
    assert_same(merged.check(), BaseBank().fit(x, y))


@pytest.mark.parametrize("exists", [False, True])
def test_a_write_that_dies_leaves_nothing_under_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    x, y = toy()
    target = tmp_path / "bank.safetensors"
    if exists:
        BaseBank().fit(x, y).save(target)
    before = target.read_bytes() if exists else None

    def half(tensors: object, path: str, metadata: object) -> None:
        Path(path).write_bytes(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensors.torch, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        BaseBank().fit(x + 1, y).save(target)
    assert [p.name for p in tmp_path.iterdir()] == (["bank.safetensors"] if exists else [])
    assert before is None or target.read_bytes() == before


def one_line(error: pytest.ExceptionInfo[BaseException], *words: str) -> None:
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize("keep", [0, 7, 100, 0.5, 0.99])
def test_truncated_files(tmp_path: Path, keep: float) -> None:
    x, y = toy()
    path = BaseBank().fit(x, y).save(tmp_path / "bank")
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    with pytest.raises(FileFormatError) as error:
        BaseBank.load(path)
    one_line(error, str(path), "not a readable safetensors file")


@pytest.mark.parametrize(
    "content", [b"PK\x03\x04 a zip", b"\x80\x04 a pickle", b"text\n" * 50, b"{}" * 9, b"\xff" * 64]
)
def test_foreign_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bank"
    path.write_bytes(content)
    with pytest.raises(FileFormatError) as error:
        BaseBank.load(path)
    one_line(error, str(path))


def rewrite(path: Path, change: object) -> None:
    """Change the metadata or the tensors of a saved bank."""
    with safetensors.safe_open(str(path), framework="pt") as f:
        meta = json.loads(f.metadata()["fewcal"])
        tensors = {k: f.get_tensor(k).clone() for k in f.keys()}  # noqa: SIM118
    del meta["checksums"]  # a file can be consistent and wrong
    change(meta, tensors)  # type: ignore[operator]
    safetensors.torch.save_file(tensors, str(path), metadata={"fewcal": json.dumps(meta)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m, t: m.update(version=FORMAT_VERSION + 1), f"bank format {FORMAT_VERSION + 1}"),
        (lambda m, t: m.update(version="new"), "damaged"),
        (lambda m, t: m.pop("version"), "damaged"),
        (lambda m, t: m.update(format="something else"), "not a fewcal bank"),
        (lambda m, t: m.pop("classes"), "damaged"),
        (lambda m, t: m.update(classes=m["classes"][1:]), "damaged"),
        (lambda m, t: m.update(classes=5), "damaged"),
        (lambda m, t: m.update(rank="two"), "damaged"),
        (lambda m, t: m.update(rank=2), "damaged"),
        (lambda m, t: m.update(transform={"kind": "tukey"}), "damaged"),
        (lambda m, t: m.update(transform=[1]), "damaged"),
        (lambda m, t: t.pop("means"), "damaged"),
        (lambda m, t: t.pop("rows"), "damaged"),
        (lambda m, t: t.update(rows=t["rows"][1:].clone()), "damaged"),
        (lambda m, t: t.update(rows=t["rows"][:, 1:].clone()), "damaged"),
        (lambda m, t: t.update(means=t["means"][:, 1:].clone()), "damaged"),
        (lambda m, t: t.update(counts=t["counts"].float()), "damaged"),
        (lambda m, t: t.update(spread=t["spread"][1:].clone()), "damaged"),
        (lambda m, t: t.update(scatter=t["scatter"][0].clone()), "damaged"),
    ],
)
def test_files_whose_parts_do_not_fit(tmp_path: Path, change: object, words: str) -> None:
    x, y = toy()
    path = BaseBank().fit(x, y).save(tmp_path / "bank")
    rewrite(path, change)
    with pytest.raises(FileFormatError) as error:
        BaseBank.load(path)
    one_line(error, str(path), words)


def test_other_safetensors_files(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file({"layer.weight": torch.zeros(2, 2)}, str(path))
    with pytest.raises(FileFormatError, match="not a fewcal bank"):
        BaseBank.load(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InputError, match="no bank at"):
            BaseBank.load(path)


# ---- bad input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [
        (np.zeros((0, 3)), [], "no rows"),
        (np.zeros((3, 2)), [0, 1], "2 labels for 3 rows"),
        (np.array([[1.0, np.nan]] * 2), [0, 0], "base X has NaN in row 0"),
        (np.array([[1.0, 0.0], [np.inf, 1.0]]), [0, 0], "base X has infinity in row 1"),
        (np.array([["a", "b"]] * 2), [0, 0], "not numbers"),
        (np.array([[{}, 1]], dtype=object), [0], "not numbers"),
        (np.zeros(4), [0] * 4, "expected 2-D"),
        (np.random.default_rng(0).random((3, 2)), ["one", "two", "two"], "single row: 'one'; a base class needs"),
    ],
)
def test_bad_base_data(x: np.ndarray, y: list, words: str) -> None:
    with pytest.raises(InputError, match=words):
        BaseBank().fit(x, y)


def test_wrong_dimension_in_a_later_chunk() -> None:
    bank = BaseBank().fit(*toy())
    with pytest.raises(InputError, match="base X has 3 features, but the bank has 5"):
        bank.partial_fit(np.zeros((2, 3)), [0, 0])
    assert bank.n_rows == 40


@pytest.mark.parametrize("rank", [-1, 1.5, True, "two"])
def test_bad_rank(rank: object) -> None:
    with pytest.raises(InputError, match=r"rank=.*must be None"):
        BaseBank(rank)  # type: ignore[arg-type]


def test_other_refusals() -> None:
    with pytest.raises(InputError, match="dtype='float64' must be"):
        BaseBank(dtype="float64")
    with pytest.raises(InputError, match="the bank is empty; fit it"):
        BaseBank().check()
    x, y = toy()
    with pytest.raises(InputError, match="rank None and 2"):
        BaseBank().fit(x, y).merge(BaseBank(2).fit(x, y))
    with pytest.raises(InputError, match="5 and 4 features"):
        BaseBank().fit(x, y).merge(BaseBank().fit(x[:, :4], y))
    with pytest.raises(InputError, match="different transforms"):
        BaseBank(transform=Gaussianization("tukey", 0.5)).fit(x, y).merge(
            BaseBank(transform=Gaussianization("tukey", 0.4)).fit(x, y)
        )
    with pytest.raises(InputError, match="different transforms"):
        BaseBank(transform=Gaussianization("tukey", 0.5)).fit(x, y).merge(BaseBank().fit(x, y))


def test_many_thin_classes_are_listed_shortly() -> None:
    with pytest.raises(InputError, match=r"20 base class\(es\) with a single row: .*, …;") as error:
        BaseBank().fit(np.random.default_rng(0).random((20, 2)), list(range(20)))
    assert len(str(error.value)) < 200


# ---- shipping -------------------------------------------------------------------------------------------------


def test_pickles_leave_derived_data_behind() -> None:
    world = make_world(5)
    bank = world.bank()
    bare = len(pickle.dumps(bank))
    bank.transformed(beta=0.5)
    bank.class_covariances()
    bank.pooled_eigen()
    assert len(bank.memo)
    shipped = pickle.dumps(bank)
    assert len(shipped) == bare
    again = pickle.loads(shipped)
    assert not len(again.memo)
    assert_same(again, bank)


@pytest.mark.parametrize("rank", [None, 50])
def test_pickles_hold_every_row_once(rank: int | None) -> None:
    """Classes are views of one block: pickled one by one, each would bring all of it."""
    x = np.random.default_rng(0).random((600, 16), dtype=np.float32)
    bank = BaseBank(rank).fit(x, np.repeat(np.arange(20), 30))
    shipped = pickle.dumps(bank)
    assert len(shipped) < 1.5 * x.nbytes
    again = pickle.loads(shipped)
    assert again.fingerprint == bank.fingerprint
    assert torch.equal(again.class_factors(), bank.class_factors())
    assert again.partial_fit(x[:2], [0, 20]).n_rows == 602


def test_fingerprints_tell_banks_apart() -> None:
    x, y = toy()
    one = BaseBank().fit(x, y)
    assert one.fingerprint == BaseBank().fit(x.copy(), list(y)).fingerprint
    others = [
        BaseBank().fit(x + 0.01, y),
        BaseBank().fit(x, [f"{v}!" for v in y]),
        BaseBank().fit(x[:-1], y[:-1]),
        one.transformed(beta=1.0),
    ]
    assert len({one.fingerprint, *(b.fingerprint for b in others)}) == 5


def test_moving_to_the_same_device_is_free() -> None:
    bank = BaseBank().fit(*toy())
    assert bank.to("cpu") is bank
    moved = bank.mapped(lambda t: t.clone())
    assert_same(moved, bank)
    white = bank.whitened(1.0)
    moved = white.mapped(lambda t: t.clone())
    assert_same(moved, white, rows=False)
    assert moved.unwhitened is not None
    assert_same(moved.unwhitened, bank)


def test_whitening_without_shrinkage_needs_enough_rows() -> None:
    x = np.random.default_rng(0).standard_normal((12, 20))
    with pytest.raises(
        InputError, match="whiten=0 needs an invertible within-class covariance, and 12 base rows of 20"
    ):
        BaseBank().fit(x, [0, 1, 2] * 4).whitened(0.0)


def test_a_power_that_overflows_is_refused() -> None:
    x = np.random.default_rng(0).random((8, 3)).astype(np.float32) * 1e6
    with pytest.raises(InputError, match="beta=9 makes the base features overflow"):
        BaseBank().fit(x, [0, 1] * 4).transformed(beta=9.0)


def test_a_saved_bank_can_be_read_by_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        path = BaseBank().fit(np.eye(4), [0, 0, 1, 1]).save(tmp_path / "bank.safetensors")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_space_of_moments_alone_is_that_of_the_rows() -> None:
    bank = make_world(3).bank()
    small = bank.transformed(beta=0.5, center=True, l2=True, moments=True)
    whole = bank.transformed(beta=0.5, center=True, l2=True)
    assert whole.has_rows
    assert not small.has_rows
    assert small.nbytes < whole.nbytes
    for name in ("means", "scatter", "within_scatter", "counts"):
        torch.testing.assert_close(getattr(small, name), getattr(whole, name))
    # Where rows are there already, nothing is derived again.
    assert bank.transformed(beta=0.5, center=True, l2=True, moments=True) is whole


def test_classes_without_any_variation_cannot_be_whitened() -> None:
    rows = np.repeat(np.eye(4, dtype=np.float32), 3, axis=0)
    bank = BaseBank().fit(rows, np.repeat(np.arange(4), 3))
    with pytest.raises(InputError, match="identical"):
        bank.whitened(1.0)


# ---- damaged files --------------------------------------------------------------------------------------------------


def flipped(path: Path, name: str | None, place: int = 0) -> None:
    """Change a byte of a tensor, or of the header where `name` is None."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    begin = 8 + size + header[name]["data_offsets"][0] if name else data.index(b"class 3")
    data[begin + place] ^= 0x40 if name else 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["means", "scatter", "spread", "counts", "transform.mean", None])
def test_damage_to_a_bank_is_found_when_it_is_loaded(relu_world: SmallData, tmp_path: Path, name: str | None) -> None:
    path = relu_world.bank(transform=fit_gaussianization(torch.from_numpy(relu_world.x), center=True)).save(
        tmp_path / "bank.safetensors"
    )
    flipped(path, name)
    with pytest.raises(FileFormatError, match=r"bank\.safetensors is damaged: .* is not what was written"):
        BaseBank.load(path)


def test_damage_to_a_tensor_and_to_the_name_of_its_checksum_is_found(relu_world: SmallData, tmp_path: Path) -> None:
    path = relu_world.bank().save(tmp_path / "bank.safetensors")
    flipped(path, "means")
    path.write_bytes(path.read_bytes().replace(b"tensor means", b"tensor meanz"))
    with pytest.raises(FileFormatError, match=r"bank\.safetensors is damaged: its checksums are of other tensors"):
        BaseBank.load(path)


def test_damage_to_rows_is_found_when_they_are_used(relu_world: SmallData, tmp_path: Path) -> None:
    path = relu_world.bank(rank=None).save(tmp_path / "bank.safetensors")
    flipped(path, "rows")
    bank = BaseBank.load(path)  # no row has been read yet
    bank.rows(1)
    for _ in range(2):  # and again: once found, it stays damaged
        with pytest.raises(FileFormatError, match="rows of its class number 0 are not what was written"):
            bank.rows(0)
    with pytest.raises(FileFormatError, match="rows of its class number 0"):
        BaseBank.load(path).save(tmp_path / "copy.safetensors")


def test_banks_without_checksums_are_read_if_they_are_finite(relu_world: SmallData, tmp_path: Path) -> None:
    """As earlier versions wrote them."""
    path = relu_world.bank(rank=None).save(tmp_path / "bank.safetensors")
    with safetensors.safe_open(str(path), "pt") as f:
        meta = json.loads(f.metadata()["fewcal"])
        tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118
    del meta["row_sums"], meta["checksums"]

    def written(**changes: torch.Tensor) -> Path:
        safetensors.torch.save_file(tensors | changes, path, {"fewcal": json.dumps(meta)})
        return path

    assert torch.equal(BaseBank.load(written()).rows(2), torch.from_numpy(relu_world.base[2]))
    bad = tensors["rows"].clone()
    bad[0, 0] = torch.nan
    with pytest.raises(FileFormatError, match="class number 0"):
        BaseBank.load(written(rows=bad)).rows(0)
    for name in ("means", "scatter", "spread"):
        with pytest.raises(FileFormatError, match=f"{name} has NaN or infinity"):
            BaseBank.load(written(**{name: torch.full_like(tensors[name], torch.inf)}))
    with pytest.raises(FileFormatError, match="a class has no rows"):
        BaseBank.load(written(counts=torch.zeros_like(tensors["counts"])))


def test_a_full_disk_is_one_line(relu_world: SmallData, tmp_path: Path) -> None:
    bank = relu_world.bank()
    with largest_file(100), pytest.raises(InputError, match=r"cannot write .*bank\.safetensors: .*make room"):
        bank.save(tmp_path / "bank.safetensors")
    assert list(tmp_path.iterdir()) == []
