"""BaseBank: building in any order and in chunks, precision, spaces, files."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from fewcal.bank import BaseBank, Moments
from fewcal.bank.io import FORMAT_VERSION, fingerprint
from fewcal.calibrate import Calibrator
from fewcal.errors import FewcalWarning, FileFormatError, InputError
from fewcal.gaussianize import Gaussianization, fit_gaussianization
from limits import largest_file
from small_worlds import SmallData, make_world


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


# ---- building in chunks ---------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 39), max_size=6, unique=True), st.booleans())
def test_chunks_and_merges_equal_one_fit(seed: int, cuts: list[int], keep_rows: bool) -> None:
    x, y = toy(seed)
    whole = BaseBank(keep_rows).fit(x, y)
    edges = [0, *sorted(cuts), 40]
    chunks = [(x[i:j], y[i:j]) for i, j in itertools.pairwise(edges)]
    grown = BaseBank(keep_rows)
    for cx, cy in chunks:
        grown.partial_fit(cx, cy)
    merged = BaseBank(keep_rows).partial_fit(*chunks[0])
    for cx, cy in chunks[1:]:
        merged = merged.merge(BaseBank(keep_rows).partial_fit(cx, cy))
    for bank in (grown, merged):
        assert bank.classes == whole.classes
        assert_same(bank, whole, rows=keep_rows)


def test_merge_is_associative_and_changes_neither_side() -> None:
    x, y = toy(3)
    parts = [BaseBank().partial_fit(x[i::3], y[i::3]) for i in range(3)]
    before = [p.counts.tolist() for p in parts]
    for a, b, c in itertools.permutations(parts):
        merged = a.merge(b).merge(c)
        assert_same(merged, a.merge(b.merge(c)))
        assert_same(merged, BaseBank().fit(x, y), rows=False)
    assert [p.counts.tolist() for p in parts] == before


@pytest.mark.parametrize("keep_rows", [True, False])
def test_copy_and_original_grow_apart(keep_rows: bool) -> None:
    x, y = toy()
    bank = BaseBank(keep_rows).fit(x, y)
    twin = copy.copy(bank)
    assert twin.pooled_eigen() is bank.pooled_eigen()  # what was derived is shared
    stale = twin.fingerprint, twin.pooled_eigen()[0]
    twin.partial_fit(x[:8] + 3, [*y[:4], "new", "new", "newer", "newer"])
    assert (len(bank), bank.n_rows, len(twin), twin.n_rows) == (4, 40, 6, 48)
    assert twin.fingerprint != stale[0]
    assert not torch.equal(twin.pooled_eigen()[0], stale[1])
    assert_same(bank, BaseBank(keep_rows).fit(x, y), rows=keep_rows)
    assert_same(twin.fit(x, y), bank, rows=keep_rows)  # fit forgets what was there


def test_moments_from_tensors_checks_shapes() -> None:
    m = BaseBank().fit(*toy()).moments
    again = Moments.from_tensors(m.tensors(), 4)
    assert all(torch.equal(a, b) for a, b in zip(m.tensors().values(), again.tensors().values(), strict=True))
    with pytest.raises(ValueError, match=r"counts has shape \(4,\), expected \(5,\)"):
        Moments.from_tensors(m.tensors(), 5)
    assert m.degrees_of_freedom == 36


# ---- precision and order --------------------------------------------------------------------------------------


def test_common_offset_in_double_precision_changes_nothing() -> None:
    x, y = (v.astype(np.float64) if isinstance(v, np.ndarray) else v for v in toy())
    near, far = BaseBank().fit(x, y), BaseBank()
    for i in range(0, 40, 7):
        far.partial_fit(x[i : i + 7] + 1e8, y[i : i + 7])
    assert near.shift is None
    assert far.shift is not None
    torch.testing.assert_close(far.scatter, near.scatter, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(far.means.double() + far.shift - 1e8, near.means.double(), rtol=0, atol=1e-5)
    spaces = [bank.transformed(center=True, l2=True) for bank in (near, far)]
    torch.testing.assert_close(spaces[0].means, spaces[1].means, rtol=0, atol=1e-5)
    first, second = (s.transform for s in spaces)
    assert first is not None
    assert second is not None
    torch.testing.assert_close(second(torch.from_numpy(x + 1e8)), first(torch.from_numpy(x)).float(), rtol=0, atol=1e-5)
    other = BaseBank().fit(x[::2] + 2e8, y[::2])
    merged, expected = far.merge(other), BaseBank().fit(np.concatenate([x, x[::2] + 1e8]), [*y, *y[::2]])
    torch.testing.assert_close(merged.scatter, expected.scatter, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("dtype", "offset"), [(np.float32, 1e7), (np.float64, 1e15)])
def test_lost_precision_is_warned_of(dtype: type, offset: float) -> None:
    x, y = toy()
    with pytest.warns(FewcalWarning, match="base X has a mean .* has lost precision; subtract the mean"):
        BaseBank().fit((x.astype(np.float64) + offset).astype(dtype), y)


def test_order_depends_on_values_alone() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 4, (60, 8)).astype(np.float32), np.arange(60) % 3  # with many equal sums
    bank, turned, columns = BaseBank().fit(x, y), rng.permutation(60), rng.permutation(8)
    other = BaseBank().fit(x[turned][:, columns], y[turned])
    classes, rows = bank.order()
    classes_other, rows_other = other.order()
    assert [bank.classes[c] for c in classes] == [other.classes[c] for c in classes_other]
    for c, d in zip(classes, classes_other, strict=True):
        assert torch.equal(bank.rows(c)[rows[c]][:, columns], other.rows(d)[rows_other[d]])
    assert bank.power_choice().kurtosis == pytest.approx(other.power_choice().kurtosis)


def test_eigen_of_few_rows_is_that_of_the_covariance() -> None:
    rng = np.random.default_rng(0)
    bank = BaseBank().fit(rng.normal(size=(12, 30)), np.arange(12) % 3)
    values, vectors = bank.pooled_eigen()
    torch.testing.assert_close((vectors * values) @ vectors.T, bank.pooled_covariance(), rtol=0, atol=1e-5)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(30), rtol=0, atol=1e-5)
    assert (values[:21] < 1e-6).all()
    assert (values.diff() > -1e-6).all()


def test_merge_of_disjoint_classes() -> None:
    x, y = toy(1)
    half = [i for i, v in enumerate(y) if v in ("c0", "c1")]
    rest = [i for i in range(40) if i not in half]
    merged = BaseBank().fit(x[half], [y[i] for i in half]).merge(BaseBank().fit(x[rest], [y[i] for i in rest]))
    assert_same(merged, BaseBank().fit(x, y))


def test_reused_buffer_does_not_change_the_bank() -> None:
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


@pytest.mark.parametrize("label", ["text", 3, -1, True, 2.5, ("a", 1), (("x",), b"raw"), b"bytes"])
def test_hashable_labels_are_kept_and_saved(label: object, tmp_path: Path) -> None:
    y = [label, "other"] * 4
    bank = BaseBank().fit(np.random.default_rng(0).random((8, 2)), y)
    assert bank.classes == [label, "other"]
    again = BaseBank.load(bank.save(tmp_path / "bank.safetensors"))
    assert again.classes == [label, "other"]
    assert type(again.classes[0]) is type(label)


def test_label_without_a_text_form_is_refused_on_saving(tmp_path: Path) -> None:
    bank = BaseBank().fit(np.random.default_rng(0).random((4, 2)), [frozenset("a"), "b"] * 2)
    with pytest.raises(InputError, match=r"frozenset.*cannot be saved; use str, int or tuple"):
        bank.save(tmp_path / "bank")
    assert not list(tmp_path.iterdir())


# ---- storage --------------------------------------------------------------------------------------------------


def test_float16_rows_are_kept_in_half_the_size(relu_world: SmallData, tmp_path: Path) -> None:
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
def test_transformed_is_the_bank_of_transformed_rows(world: SmallData, space: dict) -> None:
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


def test_bank_without_rows_has_one_space(relu_world: SmallData) -> None:
    bank = relu_world.bank(keep_rows=False)
    identity = bank.transformed(beta=1.0).transform
    assert identity is not None
    x = torch.randn(2, bank.dim)
    assert torch.equal(identity(x), x)
    for space in ({"beta": 0.5}, {"spread": 4.0}):
        with pytest.raises(InputError, match="kept no rows, so no transform"):
            bank.transformed(**space)
    with pytest.raises(InputError, match=r"kept no rows; it has no class covariances.*'pooled'"):
        bank.class_factors()
    with pytest.raises(InputError, match="kept no rows; the joint covariance pairs rows"):
        bank.paired_rows()
    with pytest.raises(InputError, match="kept no rows; build it with keep_rows=True"):
        bank.rows(0)
    assert bank.power_choice().beta == 1


@pytest.mark.parametrize("space", [{"beta": 1.0, "l2": True}, {"beta": 0.5}, {"beta": 0.5, "l2": True, "kind": "none"}])
def test_another_space_than_the_own_is_refused(relu_world: SmallData, space: dict) -> None:
    built = relu_world.bank(transform=fit_gaussianization(torch.from_numpy(relu_world.x), 0.5, l2=True))
    with pytest.raises(InputError, match=r"another space.*beta=0.5.*l2=True.*parameters need.*rebuild"):
        built.transformed(**space)


def test_power_that_overflows_is_refused() -> None:
    x = np.random.default_rng(0).random((8, 3)).astype(np.float32) * 1e6
    with pytest.raises(InputError, match="beta=9 makes the base features overflow"):
        BaseBank().fit(x, [0, 1] * 4).transformed(beta=9.0)


# ---- files ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda w: w.bank(), "rows kept as float32, raw"),
        (lambda w: w.bank(dtype="float16"), "rows kept as float16, raw"),
        (lambda w: w.bank(keep_rows=False), "moments only, raw"),
        (lambda w: w.bank().transformed(beta=0.5, center=True, l2=True), "rows kept as float32, transformed"),
        (lambda w: BaseBank().fit(w.x.astype(np.float64) + 1e8, w.y), "rows kept as float32, raw"),
    ],
    ids=["rows", "rows float16", "moments", "transform", "shift"],
)
def test_loaded_bank_is_the_saved_one(
    relu_world: SmallData, make: Callable[[SmallData], BaseBank], text: str, tmp_path: Path
) -> None:
    bank = make(relu_world)
    bank.source = "a synthetic world"
    again = BaseBank.load(bank.save(tmp_path / "new" / "bank.safetensors"))
    assert text in repr(bank)
    assert repr(again) == repr(bank)
    for name in ("classes", "keep_rows", "dtype", "source"):
        assert getattr(again, name) == getattr(bank, name)
    for name, tensor in bank.moments.tensors().items():
        assert torch.equal(getattr(again, name), tensor)
    assert again.fingerprint == bank.fingerprint == fingerprint(again)
    assert (again.shift is None) == (bank.shift is None)
    if bank.keep_rows:
        assert all(torch.equal(again.rows(i), bank.rows(i)) for i in range(len(bank)))
    x = torch.from_numpy(relu_world.support[0])
    assert (again.transform is None) == (bank.transform is None)
    if bank.transform is not None and again.transform is not None:
        # Memory-mapped tensors may lie at other addresses, for which some processors sum in another order.
        torch.testing.assert_close(again.transform(x), bank.transform(x), rtol=1e-5, atol=1e-6)
        x = bank.transform(x)
    found, expected = (Calibrator(b, k=3).calibrate(x).mean for b in (again, bank))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_parts_can_be_saved_and_merged_and_grown_over_themselves(tmp_path: Path) -> None:
    x, y = toy()
    paths = [BaseBank().partial_fit(x[i : i + 4], y[i : i + 4]).save(tmp_path / str(i)) for i in range(0, 36, 4)]
    merged = BaseBank.load(paths[0])
    for path in paths[1:]:
        merged = merged.merge(BaseBank.load(path))
    merged.save(paths[0])
    BaseBank.load(paths[0]).partial_fit(x[36:], y[36:]).save(paths[0])
    assert_same(BaseBank.load(paths[0]).check(), BaseBank().fit(x, y))
    assert paths[0].stat().st_mode & 0o077 == paths[1].stat().st_mode & 0o077


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_loaded_rows_are_memory_mapped(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("exists", [False, True])
def test_interrupted_save_leaves_nothing_under_the_name(
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


@pytest.mark.parametrize(
    "content",
    [b"PK\x03\x04 a zip", b"\x80\x04 a pickle", b"text\n" * 50, b"\xff" * 64, 0, 7, 100, 0.5, 0.99],
)
def test_foreign_and_truncated_files_are_refused(tmp_path: Path, content: bytes | float) -> None:
    path = BaseBank().fit(*toy()).save(tmp_path / "bank")
    whole = path.read_bytes()
    if not isinstance(content, bytes):
        content = whole[: content if isinstance(content, int) else int(content * len(whole))]
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="not a readable safetensors file") as error:
        BaseBank.load(path)
    one_line(error, str(path))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    safetensors.torch.save_file({"layer.weight": torch.zeros(2, 2)}, str(path))
    with pytest.raises(FileFormatError, match="not a fewcal bank"):
        BaseBank.load(path)
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InputError, match="no bank at"):
            BaseBank.load(path)


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
        (lambda m, t: m.update(keep_rows="two"), "damaged"),
        (lambda m, t: m.update(keep_rows=False), "damaged"),
        (lambda m, t: m.update(row_sums=m["row_sums"][1:]), "damaged"),
        (lambda m, t: m.update(transform={"kind": "tukey"}), "damaged"),
        (lambda m, t: m.update(transform=[1]), "damaged"),
        (lambda m, t: t.pop("means"), "damaged"),
        (lambda m, t: t.pop("rows"), "damaged"),
        (lambda m, t: t.update(rows=t["rows"][1:].clone()), "damaged"),
        (lambda m, t: t.update(rows=t["rows"][:, 1:].clone()), "damaged"),
        (lambda m, t: t.update(means=t["means"][:, 1:].clone()), "damaged"),
        (lambda m, t: t.update(counts=t["counts"].float()), "damaged"),
        (lambda m, t: t.update(within_scatter=t["within_scatter"][1:].clone()), "damaged"),
        (lambda m, t: t.update(scatter=t["scatter"][0].clone()), "damaged"),
        (lambda m, t: t.update(means=torch.full_like(t["means"], torch.inf)), "means has NaN or infinity"),
        (lambda m, t: t.update(counts=torch.zeros_like(t["counts"])), "a class has no rows"),
    ],
)
def test_files_whose_parts_do_not_fit_are_refused(tmp_path: Path, change: object, words: str) -> None:
    x, y = toy()
    path = BaseBank().fit(x, y).save(tmp_path / "bank")
    rewrite(path, change)
    with pytest.raises(FileFormatError) as error:
        BaseBank.load(path)
    one_line(error, str(path), words)


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
        (np.random.default_rng(0).random((20, 2)), list(range(20)), r"^20 base class\(es\) .{20,100}, …;"),
        (np.zeros((4, 10_001), np.float32), [0, 0, 1, 1], "10001 features are too many .* by PCA"),
    ],
)
def test_bad_base_data_are_refused(x: np.ndarray, y: list, words: str) -> None:
    with pytest.raises(InputError, match=words):
        BaseBank().fit(x, y)


def test_bad_settings_and_partners_are_refused() -> None:
    x, y = toy()
    with pytest.raises(InputError, match="dtype='float64' must be"):
        BaseBank(dtype="float64")
    with pytest.raises(InputError, match="keep_rows must be a bool, got 3"):
        BaseBank(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the bank is empty; fit it"):
        BaseBank().check()
    bank = BaseBank().fit(x, y)
    with pytest.raises(InputError, match="base X has 3 features, but the bank has 5"):
        bank.partial_fit(np.zeros((2, 3)), [0, 0])
    assert bank.n_rows == 40
    with pytest.raises(InputError, match="keep_rows True and False"):
        bank.merge(BaseBank(False).fit(x, y))
    with pytest.raises(InputError, match="5 and 4 features"):
        bank.merge(BaseBank().fit(x[:, :4], y))
    powers = [BaseBank(transform=Gaussianization("tukey", beta)).fit(x, y) for beta in (0.5, 0.4)]
    for a, b in (powers, (powers[0], bank)):
        with pytest.raises(InputError, match="different transforms"):
            a.merge(b)


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


def test_pickles_hold_every_row_once() -> None:
    """Classes are views of one block: pickled one by one, each would bring all of it."""
    x = np.random.default_rng(0).random((600, 16), dtype=np.float32)
    bank = BaseBank().fit(x, np.repeat(np.arange(20), 30))
    shipped = pickle.dumps(bank)
    assert len(shipped) < 1.5 * x.nbytes
    again = pickle.loads(shipped)
    assert again.fingerprint == bank.fingerprint
    assert torch.equal(again.class_factors(), bank.class_factors())
    assert again.partial_fit(x[:2], [0, 20]).n_rows == 602


def test_mapped_bank_is_the_same() -> None:
    bank = BaseBank().fit(*toy())
    assert bank.to("cpu") is bank
    assert_same(bank.mapped(lambda t: t.clone()), bank)


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


def test_space_of_moments_is_that_of_the_rows() -> None:
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


# ---- damaged files --------------------------------------------------------------------------------------------------


def flipped(path: Path, name: str | None, place: int = 0) -> None:
    """Change a byte of a tensor, or of the header where `name` is None."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    begin = 8 + size + header[name]["data_offsets"][0] if name else data.index(b"class 3")
    data[begin + place] ^= 0x40 if name else 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["means", "scatter", "within_scatter", "counts", "transform.mean", None])
def test_damage_to_a_bank_is_found_when_it_is_loaded(relu_world: SmallData, tmp_path: Path, name: str | None) -> None:
    path = relu_world.bank(transform=fit_gaussianization(torch.from_numpy(relu_world.x), center=True)).save(
        tmp_path / "bank.safetensors"
    )
    flipped(path, name)
    with pytest.raises(FileFormatError, match=r"bank\.safetensors is damaged: .* is not what was written"):
        BaseBank.load(path)


def test_damage_to_rows_is_found_when_they_are_used(relu_world: SmallData, tmp_path: Path) -> None:
    path = relu_world.bank().save(tmp_path / "bank.safetensors")
    flipped(path, "rows")
    bank = BaseBank.load(path)  # no row has been read yet
    bank.rows(1)
    for _ in range(2):  # and again: once found, it stays damaged
        with pytest.raises(FileFormatError, match="rows of its class number 0 are not what was written"):
            bank.rows(0)
    with pytest.raises(FileFormatError, match="rows of its class number 0"):
        BaseBank.load(path).save(tmp_path / "copy.safetensors")


def test_full_disk_is_one_line(relu_world: SmallData, tmp_path: Path) -> None:
    bank = relu_world.bank()
    with largest_file(100), pytest.raises(InputError, match=r"cannot write .*bank\.safetensors: .*make room"):
        bank.save(tmp_path / "bank.safetensors")
    assert list(tmp_path.iterdir()) == []
