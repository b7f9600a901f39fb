"""Feature files: every format gives the same split, hostile and broken files are refused in one clear line."""

from __future__ import annotations

import collections
import json
import os
import pickle
import resource
import struct
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save_file

from fewcal.errors import FewcalWarning, FileFormatError, InputError
from fewcal.features import FeatureSet, FeatureSplit, load_split
from fewcal.features.describe import features_info
from fewcal.features.io import plk, unpickle

FORMATS = ("npz", "parquet", "safetensors")


def make(
    rows: int = 12, dimension: int = 5, names: str = "abc", seed: int = 0, dtype: type = np.float16
) -> FeatureSplit:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, dimension)).astype(dtype)
    labels = np.arange(rows) % len(names)
    return FeatureSplit.from_arrays(features, labels, [f"class {c}" for c in names])


def write_pickle(path: Path, content: object, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


# Round trips


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_set_comes_back_the_same_from_every_format(tmp_path: Path, format: str, dtype: type) -> None:
    # "cab": the order of the classes is not the sorted one, and must survive.
    before = FeatureSet(make(names="cab", dtype=dtype), None, make(names="xy", seed=1, dtype=dtype))
    before.save(tmp_path, format)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"base.{format}", f"novel.{format}"]
    after = FeatureSet.load(tmp_path)
    assert after.val is None
    for name in ("base", "novel"):
        a, b = before.split(name), after.split(name)
        assert b.features.dtype == dtype
        assert np.array_equal(a.features, b.features)
        assert a.classes == b.classes
        assert b.labels is not None
        assert b.labels.dtype == np.int64
        assert np.array_equal(a.labels, b.labels)
        assert a.fingerprint() == b.fingerprint()


@pytest.mark.parametrize("format", FORMATS)
def test_integer_labels_without_names_stay_integers(tmp_path: Path, format: str) -> None:
    split = FeatureSplit.from_arrays(np.eye(4, dtype=np.float32), [7, 3, 7, 90])
    assert (split.classes, split.named) == (["3", "7", "90"], False)
    split.save(tmp_path / f"x.{format}")
    again = load_split(tmp_path / f"x.{format}")
    assert (again.classes, again.named) == (["3", "7", "90"], False)
    assert again.fingerprint() == split.fingerprint()


@pytest.mark.parametrize("format", FORMATS)
def test_a_query_file_needs_no_labels(tmp_path: Path, format: str) -> None:
    FeatureSplit.from_arrays(np.ones((3, 2), np.float32)).save(tmp_path / f"q.{format}")
    query = load_split(tmp_path / f"q.{format}")
    assert query.labels is None
    assert query.classes == []
    with pytest.raises(InputError, match=r"q\.\w+ has no labels; add"):
        query.require_labels()
    (tmp_path / f"q.{format}").rename(tmp_path / f"base.{format}")
    with pytest.raises(FileFormatError, match=r"base\.\w+ has no labels"):
        FeatureSet.load(tmp_path)


def test_damaged_safetensors_are_refused(tmp_path: Path) -> None:
    """safetensors takes a flipped bit for another number; our checksums do not, whatever it hits."""
    split = make()
    split.save(tmp_path / "x.safetensors")
    split.save(tmp_path / "again.safetensors")
    whole = (tmp_path / "x.safetensors").read_bytes()
    assert (tmp_path / "again.safetensors").read_bytes() == whole  # metadata have one order
    places = [len(whole) - 1, whole.index(b"class a"), whole.index(b'"F16"') + 1]  # a number, a name, the type
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 4
        (tmp_path / "x.safetensors").write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"x\.safetensors"):
            load_split(tmp_path / "x.safetensors")
    # The key of the checksums is hit as well: they are still found.
    (tmp_path / "x.safetensors").write_bytes(whole.replace(b"checksums", b"chacksums").replace(b"class a", b"class d"))
    with pytest.raises(FileFormatError, match="does not hold what was written; get or make it again"):
        load_split(tmp_path / "x.safetensors")


def test_safetensors_of_others_need_no_checksums(tmp_path: Path) -> None:
    arrays = {"features": np.eye(2, dtype=np.float32), "labels": np.array([0, 1])}
    save_file(arrays, tmp_path / "x.safetensors", {"classes": '["a", "b"]', "format": "np"})
    assert load_split(tmp_path / "x.safetensors").classes == ["a", "b"]


@given(
    hnp.arrays(np.float16, st.tuples(st.integers(1, 8), st.integers(1, 4)), elements=st.floats(-8, 8, width=16)),
    st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_the_fingerprint_sees_contents_only(features: np.ndarray, random) -> None:
    names = ["p", "q", "r"]
    labels = np.array([random.randrange(3) for _ in features])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewcalWarning)  # classes without rows
        split = FeatureSplit.from_arrays(features, labels, names)
        turned = FeatureSplit.from_arrays(np.asfortranarray(features, np.float32), 2 - labels, names[::-1])
    assert turned.fingerprint() == split.fingerprint()
    changed = features.copy()
    changed[-1, -1] += 1
    assert FeatureSplit.from_arrays(changed, split.labels, split.classes).fingerprint() != split.fingerprint()


def test_float16_and_float32_are_not_copied() -> None:
    for dtype in (np.float16, np.float32):
        features = np.ones((3, 2), dtype)
        assert FeatureSplit.from_arrays(features, [0, 1, 1]).features is features
    assert FeatureSplit.from_arrays(np.ones((3, 2), np.float64), [0, 1, 1]).features.dtype == np.float32
    assert FeatureSplit.from_arrays(np.ones((3, 2), ">f4"), [0, 1, 1]).features.dtype == np.dtype("=f4")
    single = FeatureSplit.from_arrays(np.ones((3, 2), np.float32), [0, 1, 1])
    assert single.float32() is single.features


# Other people's files


def test_wide_parquet_with_text_labels(tmp_path: Path) -> None:
    table = {f"f{i}": [float(i), i + 0.5, i + 1.0] for i in range(11)}
    pq.write_table(pa.table({"id": [1, 2, 3], **table, "label": ["owl", "emu", "owl"]}), tmp_path / "w.parquet")
    split = load_split(tmp_path / "w.parquet")
    assert split.features[0].tolist() == list(range(11))  # f10 after f9, not after f1
    assert split.classes == ["emu", "owl"]
    assert split.require_labels().tolist() == [1, 0, 1]


def test_list_parquet_of_several_row_groups_and_categories(tmp_path: Path) -> None:
    features = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float64()))
    label = pa.array(["b", "a", "b"]).dictionary_encode()
    pq.write_table(pa.table({"features": features, "label": label}), tmp_path / "l.parquet", row_group_size=2)
    split = load_split(tmp_path / "l.parquet")
    assert split.features.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert split.require_labels().tolist() == [1, 0, 1]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
def test_plk_dictionaries_of_every_pickle_protocol(tmp_path: Path, protocol: int, dtype: str) -> None:
    rng = np.random.default_rng(0)
    content = collections.defaultdict(list)  # what the public feature extractors dump
    for label in (3, 1):
        content[label] = [rng.normal(size=4).astype(dtype) for _ in range(2)]
    split = load_split(write_pickle(tmp_path / "x.plk", content, protocol))
    expected = np.array(content[3] + content[1]).astype("<f2" if dtype == "<f2" else "<f4")
    assert np.array_equal(split.features, expected)
    assert split.classes == ["1", "3"]
    assert split.require_labels().tolist() == [1, 1, 0, 0]


def test_plk_variants(tmp_path: Path) -> None:
    fortran = np.asfortranarray(np.arange(6.0).reshape(3, 2))
    content = {"emu": fortran, "ant": [[7, 8.5]], "owl": (np.array([1, 2], np.uint8),)}
    split = load_split(write_pickle(tmp_path / "x.pkl", content))
    assert split.features.tolist() == [[0, 1], [2, 3], [4, 5], [7, 8.5], [1, 2]]
    assert split.classes == ["emu", "ant", "owl"]
    assert split.require_labels().tolist() == [0, 0, 0, 1, 2]
    scalars = {np.int64(4): [np.zeros(2)], np.int64(5): [[np.float32(1), np.float32(2)]]}
    assert load_split(write_pickle(tmp_path / "y.pkl", scalars)).classes == ["4", "5"]


# npy, torch and HDF5


def save_npy(path: Path, x: np.ndarray, y: np.ndarray, classes: list[str]) -> None:
    for name, array in (("", x), ("_labels", y), ("_classes", np.array(classes))):
        np.save(path / f"base{name}.npy", array)


def save_pt(path: Path, x: np.ndarray, y: np.ndarray, classes: list[str]) -> None:
    torch.save({"features": torch.from_numpy(x), "labels": torch.from_numpy(y), "classes": classes}, path / "base.pt")


def save_hdf5(path: Path, x: np.ndarray, y: np.ndarray, classes: list[str]) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path / "base.h5", "w") as file:
        file["features"], file["labels"], file["classes"] = x, y, classes


@pytest.mark.parametrize("save", [save_npy, save_pt, save_hdf5])
def test_features_of_other_libraries_give_the_same_split(tmp_path: Path, save) -> None:
    split = make(names="cab")
    save(tmp_path, split.features, split.require_labels(), split.classes)
    assert FeatureSet.load(tmp_path).split("base").fingerprint() == split.fingerprint()
    whole = (file := next(tmp_path.glob("base.*"))).read_bytes()
    for content in (whole[: len(whole) // 2], b"not a feature file at all", b""):
        file.write_bytes(content)
        with pytest.raises(FileFormatError, match=rf"{file.name} (is empty|cannot be read as)") as caught:
            load_split(file)
        assert "\n" not in str(caught.value)


def test_npy_pairs_may_be_called_features_and_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "my_features.npy", np.eye(2))
    assert load_split(tmp_path / "my_features.npy").labels is None
    np.save(tmp_path / "my_labels.npy", np.array(["b", "a"]))
    assert load_split(tmp_path / "my_features.npy").classes == ["a", "b"]
    np.save(tmp_path / "my_labels.npy", np.array([{}, {}]))
    with pytest.raises(FileFormatError, match=r"my_labels.npy holds Python objects, which are never loaded"):
        load_split(tmp_path / "my_features.npy")


def test_torch_files_hold_pairs_or_classes_and_no_code(tmp_path: Path) -> None:
    path, x = tmp_path / "x.pt", torch.arange(6.0).view(3, 2)
    for content, classes in [
        (x.bfloat16(), []),
        ((x, torch.tensor([4, 7, 4])), ["4", "7"]),
        ({"owl": x[:1], "emu": [x[1], x[2]]}, ["owl", "emu"]),
        ({5: x[:2], 3: x[2:]}, ["3", "5"]),
    ]:
        torch.save(content, path)
        split = load_split(path)
        assert (split.features.tolist(), split.classes) == (x.tolist(), classes)
    mark = tmp_path / "ran"
    for content, match in [
        (_Calls(os.mkdir, str(mark)), "cannot be read as pt"),
        ({"a": torch.zeros(1).expand(10**6, 10**6)}, r"shape \(1000000, 1000000\) with fewer numbers"),
        ({"a": x[0]}, r"a class of shape \(2,\)"),
        ("text", "holds a str"),
    ]:
        torch.save(content, path)
        with pytest.raises(FileFormatError, match=match):
            load_split(path)
    assert not mark.exists()


def test_hdf5_of_the_public_code_is_cut_at_its_count(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file["all_feats"], file["all_labels"], file["count"] = np.eye(4), np.array([1, 1, 2, 0]), np.array([3])
    assert load_split(path).features.tolist() == np.eye(4)[:3].tolist()
    with h5py.File(path, "w") as file:
        file.create_dataset("features", (10**9, 10**6), "f4", chunks=(1, 10**6))
    with pytest.raises(InputError, match="memory are left; split it"):
        load_split(path)
    (tmp_path / "secret").write_bytes(bytes(32))
    with h5py.File(path, "w") as file:
        file.create_dataset("features", (2, 4), "f4", external=[(str(tmp_path / "secret"), 0, 32)])
    with pytest.raises(FileFormatError, match="no data set with its numbers in this file"):
        load_split(path)
    with h5py.File(path, "w") as file:
        file["features"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "features")
    with pytest.raises(FileFormatError, match=r"no data set 'features' \(it has: nothing\)"):
        load_split(path)


# Hostile pickles


class _Calls:
    def __init__(self, function: object, *args: object, state: object = None) -> None:
        self.reduced = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> tuple:
        return self.reduced


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize(
    "payload",
    [
        lambda mark: _Calls(os.system, f"touch {mark}"),
        lambda mark: _Calls(eval, f"open({mark!r}, 'w')"),
        lambda mark: _Calls(exec, f"open({mark!r}, 'w')"),
        lambda mark: _Calls(getattr, "", "format"),
        lambda mark: _Calls(np.load, mark),
        lambda mark: _Calls(np.fromfile, mark),
        lambda mark: {"a": [_Calls(os.mkdir, mark)]},
    ],
)
def test_a_pickle_that_calls_anything_is_refused_unrun(tmp_path: Path, payload, protocol: int) -> None:
    mark = str(tmp_path / "ran")
    path = write_pickle(tmp_path / "evil.plk", payload(mark), protocol)
    with pytest.raises(FileFormatError, match=r"evil\.plk mentions [\w.]+, which a feature file has no use for"):
        load_split(path)
    assert not Path(mark).exists()


def test_object_arrays_are_refused(tmp_path: Path) -> None:
    for protocol in (2, 4, 5):
        path = write_pickle(tmp_path / "o.plk", {"a": np.array([[1, "x"]], dtype=object)}, protocol)
        with pytest.raises(FileFormatError, match="holds object arrays"):
            load_split(path)
    structured = np.zeros(2, dtype=[("a", "f4")])
    with pytest.raises(FileFormatError, match="dtype"):
        load_split(write_pickle(tmp_path / "s.plk", {"a": structured}))


def _array_pickle(dtype_state: str, code: str, raw: bytes, shape: str = "(1, 1)") -> bytes:
    """A hand-made protocol 0 pickle of {'a': array}, with any dtype state and bytes."""
    opcodes = [
        b"(dS'a'\n",
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR",
        b"(I1\n(" + b"".join(b"I%d\n" % n for n in eval(shape)) + b"t",
        b"cnumpy\ndtype\n(S'" + code.encode() + b"'\nI0\nI1\ntR" + dtype_state.encode() + b"b",
        b"I00\n" + b"C" + bytes([len(raw)]) + raw + b"tbs.",
    ]
    return b"".join(opcodes)


PLAIN_STATE = "(I3\nS'<'\nNNNI-1\nI-1\nI0\nt"


def test_forged_arrays_cannot_pass_bytes_for_objects_or_lie_about_their_size(tmp_path: Path) -> None:
    path = tmp_path / "forged.plk"
    path.write_bytes(_array_pickle(PLAIN_STATE, "f8", struct.pack("<d", 2.5)))
    assert load_split(path).features.tolist() == [[2.5]]  # the hand-made pickle is otherwise sound
    for forged, match in [
        # dtype 'O' with its flags cleared: NumPy itself would take the eight bytes for a pointer.
        (_array_pickle(PLAIN_STATE, "O8", struct.pack("<Q", 0xDEAD)), "object arrays"),
        (_array_pickle(PLAIN_STATE, "f8", b"12345678", "(1000, 1000)"), r"shape \(1000, 1000\) with 8 bytes"),
        (_array_pickle("(I3\nS'<'\nNNS'x'\nI-1\nI-1\nI0\nt", "f8", b"12345678"), "structured dtype"),
    ]:
        path.write_bytes(forged)
        with pytest.raises(FileFormatError, match=match):
            load_split(path)


def test_a_pickle_cannot_set_attributes_of_what_it_may_name(tmp_path: Path) -> None:
    names = ["numpy.ndarray", "numpy.dtype", "collections.defaultdict", "builtins.list", "_codecs.encode"]
    names += ["numpy.core.multiarray._reconstruct", "numpy._core.multiarray.scalar", "numpy.core.numeric._frombuffer"]
    for text in names:
        module, _, name = text.rpartition(".")
        # GLOBAL, then BUILD with the slot state {'harm': 1}.
        (tmp_path / "build.plk").write_bytes(f"c{module}\n{name}\n(N(dS'harm'\nI1\nstb.".encode())
        with pytest.raises(FileFormatError, match="sets the state of something that has none"):
            load_split(tmp_path / "build.plk")


def _long(number: int) -> bytes:
    raw = number.to_bytes(40, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


_SHARED = b"\x80\x02}" + b"]q\x01" + b"(" + b"K\x01" * 1000 + b"e0" + b"]q\x02(" + b"h\x01" * 1000 + b"e0"
BOMBS = {
    "exponential hash": b"\x80\x02}N" + b"2\x86" * 60 + b"K\x01s.",
    "deep tuple": b"\x80\x02}N" + b"\x85" * 10**6 + b"K\x01s.",
    "large memo": b"\x80\x02}r\x00\x00\x00\x0d.",
    "colliding keys": b"\x80\x02}(" + b"".join(_long(i * (2**61 - 1)) + b"]" for i in range(20_000)) + b"u.",
    "shared rows": _SHARED + b"(" + b"".join(b"M" + struct.pack("<H", i) + b"h\x02" for i in range(5000)) + b"u.",
    "rows of nothing": b"\x80\x02}K\x01cnumpy.core.multiarray\n_reconstruct\n(tR(K\x01(\x8a\x05\x00\x00\x00\x00\x01"
    b"K\x00tcnumpy\ndtype\n(U\x02f4tRNU\x00tbs.",
    "promised bytes": b"\x80\x04}\x8e" + b"\xff" * 7 + b"\x00abc.",
    "copied bytes": b"\x80\x02}X\x00\x10\x00\x00"
    + b"a" * 4096
    + b"q\x01U\x06latin1q\x02"
    + b"c_codecs\nencode\nq\x03"
    + b"h\x03h\x01h\x02\x86R" * 10_000
    + b"s.",
    "long list of marks": b"(" * 10**6 + b".",
    "huge integer": b"\x80\x02}I" + b"9" * 10**6 + b"\n]s.",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_pickle_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(plk, "CPU_SECONDS", 1)
    path = tmp_path / "bomb.plk"
    path.write_bytes(BOMBS[name])
    with pytest.raises(FileFormatError, match=r"bomb\.plk") as caught:
        load_split(path)
    assert len(str(caught.value)) < 400


def test_a_reader_of_a_bomb_has_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.plk"
    path.write_bytes(
        b"\x80\x02]("
        + b"X\x00\x00\x10\x00"
        + bytes(1 << 20)
        + b"q\x01c_codecs\nencode\nq\x03"
        + (b"h\x03h\x01U\x06latin1\x86R" * 3000)
        + b"e."
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with pytest.raises(FileFormatError, match="takes more memory or time than vectors of its size"):
        load_split(path)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    assert peak == before or peak < 600 * 1024  # kilobytes, of 3 GB that it asks for


def test_a_damaged_pickle_is_read_or_refused() -> None:
    """In one process with the limits of a reader."""
    code = """
import pickle, random
import numpy as np
from fewcal.features.io.unpickle import Refused, limit, load
rng, counts = random.Random(0), [0, 0]
content = {"a": [np.arange(3.0), [1, 2, 3]], "b": np.ones((2, 3), np.float32)}
limit(0, 60)
for i in range(3000):
    whole = pickle.dumps(content, i % 6)
    place = rng.randrange(len(whole))
    try:
        load(whole[:place] + rng.randbytes(rng.choice((0, 1, 2, 60))) + whole[place + rng.randrange(40):])
    except (Refused, MemoryError):
        counts[0] += 1
    else:
        counts[1] += 1
print(sum(counts), min(counts) > 0)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("3000 True\n", 0), done.stderr


def test_lists_of_numbers_and_dictionaries_of_python_2_are_read() -> None:
    rows = np.random.default_rng(0).normal(size=(7, 30))
    for protocol in range(6):
        features, labels, names = unpickle.load(pickle.dumps({"a": rows.tolist(), "b": (tuple(rows[0]),)}, protocol))
        assert np.array_equal(features, [*rows, rows[0]])
        assert (labels.tolist(), names) == ([0] * 7 + [1], ["a", "b"])
    python2 = b"ccollections\nOrderedDict\n((lp0\n(lp1\nS'a'\na(lp2\n(lp3\nI1\naaaatR."
    features, _, names = unpickle.load(python2)
    assert (features.tolist(), names) == ([[1.0]], ["a"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "holds a list, not a dictionary"),
        ({}, "holds no class"),
        ({1: [np.zeros(2)], "a": [np.zeros(2)]}, "all text or all int"),
        ({"a": [np.zeros(2)], "b": [np.zeros(3)]}, "vectors of 2, 3 dimensions"),
        ({"a": [np.zeros(2), np.zeros(3)]}, "vectors of 2, 3 dimensions"),
        ({"a": [np.zeros((2, 5, 5))]}, r"shape \(2, 5, 5\); flatten"),
        ({"a": np.zeros(3)}, r"it needs \(rows, D\)"),
        ({"a": [["x", "y"]]}, "a vector of numbers is needed"),
        ({"a": 3}, "holds a int; it needs a list of vectors"),
    ],
)
def test_odd_dictionaries_are_refused_with_what_is_odd(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(FileFormatError, match=words):
        load_split(write_pickle(tmp_path / "x.plk", content))


# Broken files


@pytest.mark.parametrize("extension", [*FORMATS, "plk"])
def test_empty_torn_and_foreign_files_are_refused(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"base.{extension}"
    split = make(rows=60, dimension=20)
    if extension == "plk":
        write_pickle(path, {"a": list(split.features)})
    else:
        split.save(path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-7], whole[:3], b"not a feature file at all"):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=rf"base\.{extension} .*\S") as caught:
            load_split(path)
        assert "\n" not in str(caught.value)
        assert any(word in str(caught.value) for word in ("truncated", "no array", "write it again"))
    path.write_bytes(b"")
    with pytest.raises(FileFormatError, match=r"is empty \(0 bytes\)"):
        load_split(path)


def test_files_that_are_absent_or_hold_other_things_are_refused_with_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "d.npz").mkdir()
    np.savez(tmp_path / "a.npz", X=np.zeros((2, 2)))
    np.savez(tmp_path / "b.npz", features=np.array([[1, "x"]], dtype=object))
    save_file({"X": np.zeros((2, 2))}, tmp_path / "a.safetensors")
    pq.write_table(pa.table({"x": [1.0], "y": [2.0]}), tmp_path / "a.parquet")
    for name, match in [
        ("no.npz", "does not exist"),
        ("a.csv", r"unknown extension '.csv'; known are .npz, .parquet, .safetensors"),
        ("d.npz", "is a folder"),
        ("a.npz", r"no array 'features' \(it has: X\)"),
        ("b.npz", "array 'features' holds Python objects"),
        ("a.safetensors", r"no tensor 'features' \(it has: X\)"),
        ("a.parquet", r"no column 'features' .*it has: x, y"),
    ]:
        with pytest.raises(FileFormatError, match=match):
            load_split(tmp_path / name)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"f0": [1.0], "f2": [1.0]}, "no 'f1'; name them f0..f1"),
        ({"f0": ["a"]}, "'f0' is non-numeric"),
        ({"f0": [1.0, None]}, "'f0' has 1 missing"),
        ({"features": [1.0]}, "not a list of numbers"),
        ({"features": [["a"]]}, "non-numeric"),
        ({"features": [[1.0], [1.0, 2.0]]}, "1 to 2 numbers"),
        ({"features": [[1.0, None]]}, "missing values"),
        ({"f0": [1.0, 2.0], "label": ["a", None]}, "'label' has 1 missing"),
    ],
)
def test_parquet_columns_that_cannot_be_features(tmp_path: Path, table: dict, words: str) -> None:
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(FileFormatError, match=words):
        load_split(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("features", "labels", "classes", "words"),
    [
        (np.array([["a", "b"]]), [0], None, "non-numeric"),
        (np.zeros(3), [0, 0, 0], None, r"shape \(3,\); they must be"),
        (np.zeros((0, 4)), [], None, "are empty, 0 rows of 4"),
        (np.zeros((2, 0)), [0, 0], None, "are empty, 2 rows of 0"),
        (np.zeros((2, 2)), [0, 1, 1], None, r"2 rows of features but labels of shape \(3,\)"),
        (np.zeros((2, 2)), [0, 2], ["a", "b"], "label 2 has no name, there are 2 classes"),
        (np.zeros((2, 2)), [-1, 0], ["a", "b"], "label -1 has no name"),
        (np.zeros((2, 2)), [0, 1], ["a", "a"], "'a' occurs twice"),
        (np.zeros((2, 2)), ["a", "c"], ["a", "b"], "label 'c' is not among"),
        (np.zeros((2, 2)), [0.5, 1.0], None, "labels are float64"),
        (np.array([[1.0], [1e300]]), [0, 1], None, r"1 of 2 rows .* first is row 1 \(infinite\)"),
    ],
)
def test_arrays_that_cannot_be_a_split(features, labels, classes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        FeatureSplit.from_arrays(features, labels, classes, source="x.npz")


def test_rows_that_are_not_finite_are_counted(tmp_path: Path) -> None:
    features = np.zeros((10_000, 3), np.float16)
    features[[5000, 7000, 9999], 1] = [np.nan, np.inf, -np.inf]
    np.savez(tmp_path / "base.npz", features=features, labels=np.zeros(10_000, int))
    with pytest.raises(InputError, match=r"base\.npz: 3 of 10000 rows .* the first is row 5000 \(NaN\); drop"):
        FeatureSet.load(tmp_path)


def test_a_class_without_rows_is_left_out_with_a_warning() -> None:
    with pytest.warns(FewcalWarning, match="class 'b' without any row"):
        split = FeatureSplit.from_arrays(np.zeros((2, 2)), [0, 2], ["a", "b", "c"])
    assert split.classes == ["a", "c"]
    assert split.require_labels().tolist() == [0, 1]


# Folders


def test_a_missing_split_lists_what_is_there(tmp_path: Path) -> None:
    for name in ("full", "twice", "empty"):
        (tmp_path / name).mkdir()
        if name != "empty":
            make().save(tmp_path / name / "base.npz")
    (tmp_path / "full" / "notes.txt").write_text("x")
    make().save(tmp_path / "twice" / "base.parquet")
    for place, splits, match in [
        ("empty", None, r"none of base, val and novel \(it holds: nothing\)"),
        ("full", ["base", "novel"], r"has no novel split \(it holds: base.npz, notes.txt\)"),
        ("full", ["test"], "unknown split 'test'; the splits are base, val, novel"),
        ("full/base.npz", None, "is a file, not a folder"),
        ("nowhere", None, "does not exist"),
        ("twice", None, "holds both base.npz and base.parquet; keep one"),
    ]:
        with pytest.raises(InputError, match=match):
            FeatureSet.load(tmp_path / place, splits)
    with pytest.raises(InputError, match="no split 'val'; this feature set has base"):
        FeatureSet.load(tmp_path / "full").split("val")


def test_only_the_wanted_splits_are_read(tmp_path: Path) -> None:
    make().save(tmp_path / "base.npz")
    (tmp_path / "val.npz").write_bytes(b"broken")
    assert list(FeatureSet.load(tmp_path, splits=["base"]).splits()) == ["base"]


def test_mixed_dimensions_and_leaks_are_refused() -> None:
    numbered = [FeatureSplit.from_arrays(np.zeros((2, 2)), labels) for labels in ([0, 1], [1, 2], [5, 6])]
    for base, novel, match in [
        (make(), make(names="xyz", dimension=6), r"base has 5 dimensions .* and novel 6"),
        (make(), make(names="bcd"), r"2 classes are in both base .* and novel .*: class b, class c; remove"),
        (numbered[0], numbered[1], "1 classes are in both"),
    ]:
        with pytest.raises(InputError, match=match):
            FeatureSet(base, None, novel)
    assert FeatureSet(numbered[0], None, numbered[2]).dimension == 2


def test_splits_that_number_their_own_classes_pass_with_a_warning() -> None:
    a, b = (FeatureSplit.from_arrays(np.zeros((n, 2)), np.arange(n)) for n in (3, 2))
    with pytest.warns(FewcalWarning, match="both number their classes from 0"):
        FeatureSet(a, None, b)


def test_a_save_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make().save(tmp_path / "base.npz")
    before = (tmp_path / "base.npz").read_bytes()

    def full(file, **_: object) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(InputError, match=r"cannot write .*base.npz: No space left on device; choose"):
        make(seed=1).save(tmp_path / "base.npz")
    assert (tmp_path / "base.npz").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["base.npz"]


def test_pickles_are_never_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose npz, parquet, safetensors"):
        FeatureSet(make()).save(tmp_path, "plk")
    with pytest.raises(InputError, match=r"cannot be written as '\.pkl'"):
        make().save(tmp_path / "x.pkl")
    make().save(tmp_path / "base.npz")
    with pytest.raises(InputError, match=r"already holds base\.npz"):
        FeatureSet(make()).save(tmp_path, "parquet")


# info


def test_info_has_the_facts() -> None:
    base = FeatureSplit.from_arrays(
        np.array([[0, 3, 4], [0, 3, 4], [0, 0, 1], [0, 0, 1], [0, 0, 2]], np.float16), [0, 1, 0, 0, 1], ["a", "b"]
    )
    novel = FeatureSplit.from_arrays(np.array([[0, 3, 4], [-1, 0, 0]], np.float32), ["b", "c"])
    info = json.loads(json.dumps(features_info(FeatureSet(base, None, novel, allow_leaks=True))))
    facts = info["splits"]["base"]
    assert (facts["classes"], facts["rows"], facts["dimension"], facts["dtype"]) == (2, 5, 3, "float16")
    assert facts["rows_per_class"] == {"min": 2, "median": 2.5, "max": 3}
    assert (facts["sign"], info["splits"]["novel"]["sign"]) == (">= 0", "signed")
    assert facts["zeros"] == pytest.approx(8 / 15)
    assert facts["constant_columns"] == 1
    assert (facts["duplicate_rows"], facts["conflicting_duplicates"]) == (2, 1)
    assert facts["scale"]["mean_row_norm"] == pytest.approx((5 + 5 + 1 + 1 + 2) / 5)
    # Means: a = (0, 1, 2), b = (0, 1.5, 3); distance of each row to the other class's mean.
    means = np.array([[0, 1.5, 3], [0, 1, 2], [0, 1.5, 3], [0, 1.5, 3], [0, 1, 2]])
    expected = np.median(np.linalg.norm(base.features.astype(float) - means, axis=1))
    assert facts["scale"]["nearest_other_class_mean"] == pytest.approx(expected, rel=1e-5)
    assert facts["scale"]["nearest_base_class_mean"] is None
    to_base = [np.hypot(1.5, 1.0), np.sqrt(1 + 1 + 4)]
    nearest = info["splits"]["novel"]["scale"]["nearest_base_class_mean"]
    assert nearest == pytest.approx(np.mean(to_base), rel=1e-5)
    assert info["across"] == {"base/novel": {"duplicate_rows": 1, "shared_classes": ["b"]}}
    warnings = " ".join(info["warnings"])
    for words in ("1 of 3 columns constant", "2 rows repeating", "class leak, 1 in both (b)", "1 row of novel also in"):
        assert words in warnings


def test_info_warns_of_different_scales_and_of_nothing_else() -> None:
    info = features_info(FeatureSet(make(), make(names="de", seed=1), make(names="xyz", seed=2)))
    assert info["warnings"] == []
    assert list(info["across"]) == ["base/val", "base/novel", "val/novel"]
    far = FeatureSplit.from_arrays(make(seed=3).features * np.float16(10), np.arange(12) % 2, ["x", "y"])
    assert "mean row norms differ" in " ".join(features_info(FeatureSet(make(), None, far))["warnings"])
