"""Pictures as people have them: turned, grey, transparent, animated, huge, tiny, damaged."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fewcal.errors import FileFormatError, InputError
from fewcal.features import load_split
from fewcal.features.sources import pictures
from fewcal.features.sources.items import decoded
from fewcal.features.sources.kinds import kind_of
from fewcal.features.sources.pictures import (
    MAX_PIXELS,
    check_size,
    decode,
    decode_fitted,
    encoded,
    find_pictures,
    write_pack,
)
from fewcal.features.sources.recordings import read_recording
from fewcal.features.sources.texts import find_texts

RED, BLUE = (200, 30, 40), (20, 40, 210)


def as_bytes(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def halves(width: int = 40, height: int = 20) -> Image.Image:
    """Red on the left, blue on the right."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (width // 2, 0, width, height))
    return image


def put(path: Path, image: Image.Image | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or halves()).save(path)
    return path


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF"])
def test_formats_give_the_same_picture(kind: str) -> None:
    got = decode(as_bytes(halves(), kind))
    assert got.shape == (20, 40, 3)
    assert got.dtype == np.uint8
    assert np.abs(got[:, :16].astype(int) - RED).max() < 30
    assert np.abs(got[:, 24:].astype(int) - BLUE).max() < 30


@pytest.mark.parametrize(
    ("orientation", "corner"), [(1, "left"), (3, "right"), (6, "top"), (8, "bottom")]
)  # where red ends up
def test_exif_rotation_is_applied(orientation: int, corner: str) -> None:
    image = halves()
    exif = image.getexif()
    exif[0x0112] = orientation
    got = decode(as_bytes(image, "JPEG", exif=exif)).astype(int)
    assert got.shape[:2] == ((20, 40) if orientation in (1, 3) else (40, 20))
    edge = {"left": got[:, :8], "right": got[:, -8:], "top": got[:8], "bottom": got[-8:]}[corner]
    assert np.abs(edge - RED).max() < 40


def test_grey_palette_cmyk_and_deep_pictures_become_rgb() -> None:
    ramp = np.linspace(0, 255, 64, dtype=np.uint8).reshape(8, 8)
    grey = decode(as_bytes(Image.fromarray(ramp)))
    assert (grey == ramp[..., None]).all()
    deep = Image.fromarray(ramp.astype(np.uint16) * 257)
    assert np.abs(decode(as_bytes(deep)).astype(int) - ramp[..., None]).max() <= 1
    assert (decode(as_bytes(halves().quantize(4)))[0, 0] == RED).all()
    cmyk = decode(as_bytes(halves().convert("CMYK"), "JPEG"))
    assert np.abs(cmyk[:, :16].astype(int) - RED).max() < 40
    assert (decode(as_bytes(Image.new("1", (3, 3), 1))) == 255).all()
    shares = Image.fromarray(np.full((4, 4), 0.5, np.float32))
    assert np.abs(decode(as_bytes(shares, "TIFF")).astype(int) - 127).max() <= 1


def test_what_is_transparent_becomes_white() -> None:
    image = Image.new("RGBA", (4, 4), (*RED, 0))
    image.putpixel((0, 0), (*RED, 255))
    got = decode(as_bytes(image))
    assert tuple(got[0, 0]) == RED
    assert (got[1:] == 255).all()
    palette = Image.new("P", (2, 2), 0)
    palette.putpalette([*RED, *BLUE])
    assert (decode(as_bytes(palette, transparency=0)) == 255).all()
    assert (decode(as_bytes(Image.new("LA", (2, 2), (0, 0)))) == 255).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), c) for c in (RED, BLUE, BLUE)]
    data = as_bytes(frames[0], kind, save_all=True, append_images=frames[1:])
    assert np.abs(decode(data).astype(int) - RED).max() < 12


def test_a_big_jpeg_is_decoded_small_and_alike() -> None:
    big = halves(1600, 1200)
    data = as_bytes(big, "JPEG")
    small = decode(data, min_side=200)
    assert 200 <= min(small.shape[:2]) < 400
    assert decode(data).shape == (1200, 1600, 3)
    a, b = decode_fitted(small, 64).astype(int), decode_fitted(decode(data), 64).astype(int)
    assert np.abs(a - b).mean() < 2


def test_twenty_megapixels_pass_and_a_bomb_does_not() -> None:
    assert min(decode(as_bytes(Image.new("L", (5200, 4000)), "JPEG"), min_side=256).shape[:2]) >= 256
    huge = as_bytes(Image.new("1", (20000, 20000)))  # a few kilobytes that claim 400 million pixels
    assert MAX_PIXELS < 20000 * 20000
    assert len(huge) < 100_000
    with pytest.raises(InputError, match="cannot be read as a picture"):
        decode(huge)


def test_a_picture_takes_its_share_of_the_memory_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A PNG of 0.7 MB used to take 3.5 GB."""
    opaque, transparent = (as_bytes(Image.new(mode, (3000, 2500))) for mode in ("1", "LA"))  # 7.5 million pixels
    assert len(transparent) < 100_000

    def left(megabytes: int | None) -> None:
        monkeypatch.setattr(pictures, "available_memory", lambda: megabytes and megabytes * 10**6)

    left(16 * 100)  # the opaque one takes up to 90 MB, the transparent one up to 150
    assert decode_fitted(opaque, 8).shape == (8, 8, 3)
    with pytest.raises(InputError, match=r"big.png cannot .*3000×2500 pixels take 0.1 GB, more than 1/16 of"):
        decode_fitted(transparent, 8, name="big.png")
    left(16 * 80)
    with pytest.raises(InputError, match="make it smaller"):
        decode(opaque)
    jpeg = Image.new("L", (6000, 5000))  # decoded at an eighth of its size, but a progressive one is held whole
    assert decode_fitted(as_bytes(jpeg, "JPEG"), 64).shape == (64, 64, 3)
    with pytest.raises(InputError, match="make it smaller"):
        decode_fitted(as_bytes(jpeg, "JPEG", progressive=True), 64)
    left(1)
    assert decode(as_bytes(halves())).shape == (20, 40, 3), "small ones always pass"
    left(None)
    assert decode_fitted(transparent, 8).shape == (8, 8, 3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
@pytest.mark.parametrize("crop", [None, 0.875])
def test_decoding_and_fitting_in_one_is_the_same(kind: str, mode: str, crop: float | None) -> None:
    if (kind, mode) in {("JPEG", "P"), ("JPEG", "RGBA")}:
        mode = "CMYK"
    image = halves(90, 61).convert(mode)
    exif = image.getexif()
    exif[0x0112] = 6
    data = as_bytes(image, kind, exif=exif)
    assert np.array_equal(decode_fitted(data, 12, crop), decode_fitted(decode(data, 24), 12, crop))
    assert np.array_equal(decode_fitted(data, None), decode(data))


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 40), st.sampled_from([None, 1.0, 0.875]))
@settings(max_examples=40, deadline=None)
def test_any_size_fits_a_square(height: int, width: int, size: int, crop: float | None) -> None:
    picture = np.full((height, width, 3), 77, np.uint8)
    got = decode_fitted(picture, size, crop)
    assert got.shape == (size, size, 3)
    assert np.abs(got.astype(int) - 77).max() <= 1


def test_the_middle_is_cut_out_and_a_square_of_the_right_size_is_kept() -> None:
    wide = np.concatenate([np.zeros((10, 10, 3)), np.full((10, 10, 3), 255), np.zeros((10, 10, 3))], 1).astype(np.uint8)
    assert decode_fitted(wide, 10)[5, 5, 0] == 255
    assert decode_fitted(wide, 10, crop=0.5).min() > 200
    assert decode_fitted(wide, 9, crop=None)[5, 0, 0] < 60
    square = halves(8, 8)
    assert (decode_fitted(np.asarray(square), 8) == np.asarray(square)).all()


@given(st.binary(max_size=200), st.integers(0, 600))
@settings(max_examples=60, deadline=None)
def test_damaged_pictures_end_in_one_line(noise: bytes, cut: int) -> None:
    whole = as_bytes(halves(), "JPEG")
    for data in (noise, whole[:cut], whole[:cut] + noise + whole[cut + len(noise) :]):
        try:
            got = decode(data, name="x.jpg")
        except InputError as error:
            message = str(error)
        else:
            assert got.ndim == 3
            continue
        assert message.startswith("x.jpg cannot be read as a picture")
        assert "\n" not in message


def test_errors_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "empty.png").touch()
    for name, match in [
        ("nothing.png", r"nothing.png does not exist"),
        ("text.png", r"text.png cannot be read as a picture \(not a picture"),
        ("empty.png", r"empty.png cannot be read as a picture \(the file is empty"),
    ]:
        with pytest.raises(InputError, match=match):
            decode(tmp_path / name)


@pytest.mark.parametrize(
    "body",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
        b"\xd7\xcd\xc6\x9a\x00\x00" + bytes(30) + b"\x01\x00\t\x00" + bytes(40),
        b"%PDF-1.4\n1 0 obj\n<<>>\nendobj\n",
        b"\x01\x00\x00\x00" + bytes(36) + b" EMF" + bytes(60),
    ],
)
def test_formats_that_run_programs_are_not_tried(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.init()  # all plugins are loaded, and may be tried where Pillow chooses
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: pytest.fail("a program was started"))
    with pytest.raises(InputError, match=r"cannot be read as a picture \(not a picture, or of an unknown format\)"):
        decode(body)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_pipes_are_not_listed_and_not_opened(tmp_path: Path) -> None:
    """One that nobody writes to would block its reader for good."""
    put(tmp_path / "photos" / "cat" / "a.png")
    for name in ("photos/cat/pipe.png", "texts.csv", "texts.txt", "pack.npz", "one.png", "sound.wav"):
        os.mkfifo(tmp_path / name)
    assert find_pictures(tmp_path / "photos").names == ["cat/a.png"]
    (tmp_path / "list.csv").write_text("path,label\none.png,a\n")
    pipe, listed = tmp_path / "one.png", find_pictures(tmp_path / "list.csv")
    for read in (
        lambda: decode(pipe),
        lambda: check_size(pipe, "one.png"),
        lambda: listed.load(0),
        lambda: find_pictures(pipe, labelled=False),
        lambda: find_pictures(tmp_path / "pack.npz"),
        lambda: find_texts(tmp_path / "texts.txt", labelled=False),
        lambda: kind_of(tmp_path / "texts.csv"),
        lambda: load_split(tmp_path / "pack.npz"),
        lambda: read_recording(tmp_path / "sound.wav", 8000),
    ):
        with pytest.raises((InputError, FileFormatError), match="is no regular file"):
            read()


def test_pixels_that_decoding_holds_come_from_the_header() -> None:
    big = as_bytes(Image.new("L", (1600, 1200)), "JPEG")
    assert check_size(as_bytes(halves()), "a.png", 800) == 800
    assert check_size(big, "a.jpg") == 1600 * 1200
    assert check_size(big, "a.jpg", min_side=200) == 400 * 300, "a quarter of its sides"
    assert check_size(as_bytes(halves(1600, 1200), "JPEG", progressive=True), "a.jpg", min_side=200) == 1600 * 1200
    with pytest.raises(InputError, match=r"a\.png has 40×20 pixels; the limit is 799"):
        check_size(as_bytes(halves()), "a.png", 799)


def test_heic_is_read_by_its_plugin_or_refused_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40)
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    for read in (lambda: decode(heic), lambda: check_size(heic, "a.heic", 100)):
        with pytest.raises(InputError, match="HEIC takes the package pillow-heif"):
            read()

    def register() -> None:
        Image.register_open("HEIF", lambda file, name: halves(), lambda prefix: prefix[4:8] == b"ftyp")

    monkeypatch.setitem(sys.modules, "pillow_heif", SimpleNamespace(register_heif_opener=register))
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    monkeypatch.setattr(Image, "ID", list(Image.ID))
    assert np.array_equal(decode(heic), np.asarray(halves()))


def test_thumbnails_are_small_jpegs() -> None:
    data = encoded(np.asarray(halves(400, 200)), longest=100)
    assert data.startswith(b"\xff\xd8")
    assert decode(data).shape == (50, 100, 3)


# ---- sources --------------------------------------------------------------------------------------------------------


def test_a_folder_for_each_class(tmp_path: Path) -> None:
    for name in ("кошка/1.png", "кошка/deeper/2.JPG", "狗/a.webp", "ñandú/a.png"):
        put(tmp_path / name)
    (tmp_path / ".hidden").mkdir()
    put(tmp_path / ".hidden" / "x.png")
    put(tmp_path / "狗" / "._a.png")
    put(tmp_path / "__MACOSX" / "x.png")
    (tmp_path / "狗" / "notes.txt").write_text("not a picture")
    (tmp_path / "狗" / "Thumbs.db").write_bytes(b"")
    found = find_pictures(tmp_path)
    assert found.names == ["ñandú/a.png", "кошка/1.png", "кошка/deeper/2.JPG", "狗/a.webp"]
    assert found.labels == ["ñandú", "кошка", "кошка", "狗"]
    assert found.load(0).shape == (20, 40, 3)
    assert found.classes == sorted(set(found.labels))
    assert found.arrays(16).shape == (4, 16, 16, 3)
    assert found.take([3, 0]).names == ["狗/a.webp", "ñandú/a.png"]
    assert found.fingerprint() == find_pictures(tmp_path).fingerprint() != found.take([0]).fingerprint()


def test_loose_pictures_for_queries(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    put(tmp_path / "sub" / "b.png")
    assert find_pictures(tmp_path, labelled=False).names == ["a.png", "sub/b.png"]
    assert find_pictures(tmp_path, labelled=False).labels is None
    assert find_pictures(tmp_path / "a.png", labelled=False).names == ["a.png"]
    put(tmp_path / "all" / "cat" / "b.png")
    assert find_pictures(tmp_path / "all", labelled=False).labels == ["cat"]


def test_folders_that_are_no_source(tmp_path: Path) -> None:
    def refused(folder: Path, match: str, labelled: bool = True) -> None:
        with pytest.raises(InputError, match=match):
            find_pictures(folder, labelled)

    refused(tmp_path / "no", "does not exist")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", "holds no pictures")
    refused(tmp_path / "empty", "holds no pictures", labelled=False)
    put(tmp_path / "loose" / "a.png")
    refused(tmp_path / "loose", "a.png in no class folder; put the pictures of each class")
    put(tmp_path / "loose" / "cat" / "a.png")
    put(tmp_path / "loose" / "b.png")
    refused(tmp_path / "loose", "a.png and 1 more in no class folder; move them")
    put(tmp_path / "gap" / "cat" / "a.png")
    (tmp_path / "gap" / "dog").mkdir()
    refused(tmp_path / "gap", "'dog' holds no pictures")
    put(tmp_path / "nested" / "photos" / "cat" / "a.png")
    put(tmp_path / "nested" / "photos" / "dog" / "a.png")
    refused(tmp_path / "nested", "one class folder only, 'photos', with folders in it; give .*photos")
    (tmp_path / "a.pdf").write_bytes(b"x")
    refused(tmp_path / "a.pdf", "no source of pictures")
    refused(put(tmp_path / "one.png"), "no source of pictures")


def test_lists(tmp_path: Path) -> None:
    put(tmp_path / "pics" / "a.png")
    put(tmp_path / "pics" / "b.png")
    file = tmp_path / "list.csv"
    file.write_text("\ufeffPath,Label,split\npics/a.png,cat,base\npics/b.png,dog,novel\n", encoding="utf-8")
    found = find_pictures(file)
    assert (found.labels, found.splits) == (["cat", "dog"], ["base", "novel"])
    assert found.load(1).shape == (20, 40, 3)
    for text, match in [
        ("path\na.png\n", "no column 'label'"),
        ("path,label\na.png\n", "row 2 has 1 fields"),
        ("path,label\na.png,\n", "row 2 has no label"),
        ("path,label\n", "no rows"),
        ("", "is empty"),
    ]:
        file.write_text(text)
        with pytest.raises((InputError, FileFormatError), match=match):
            find_pictures(file)
    file.write_bytes(b"path,label\n\xff\xfe,x\n")
    with pytest.raises(FileFormatError, match="not UTF-8"):
        find_pictures(file)
    file.write_text("path,label\nx.png,\n")
    assert find_pictures(file, labelled=False).labels is None


def test_packs(tmp_path: Path) -> None:
    data = [as_bytes(halves(), "WEBP"), as_bytes(Image.new("RGB", (5, 5), BLUE)), as_bytes(halves(), "JPEG")]
    write_pack(tmp_path / "p.npz", data, ["b", "a", "b"], ["x", "y", "z"])
    found = find_pictures(tmp_path / "p.npz")
    assert found.names == ["b/x", "a/y", "b/z"]
    assert found.label_codes().tolist() == [1, 0, 1]
    assert found.take([1]).load(0).shape == (5, 5, 3)
    with np.load(tmp_path / "p.npz") as file:
        arrays = dict(file)

    def broken(match: str, **changes: object) -> None:
        np.savez(tmp_path / "q.npz", **{k: v for k, v in (arrays | changes).items() if v is not None})
        with pytest.raises(FileFormatError, match=match):
            find_pictures(tmp_path / "q.npz")

    broken("no array 'offsets'", offsets=None)
    broken("offsets do not fit", offsets=arrays["offsets"][::-1])
    broken("do not fit its 3 pictures", labels=np.array([0, 1, 9]))
    (tmp_path / "q.npz").write_bytes(b"no zip")
    with pytest.raises(FileFormatError, match="cannot be read as npz"):
        find_pictures(tmp_path / "q.npz")
    np.savez(tmp_path / "plain.npz", data=arrays["data"], offsets=arrays["offsets"])
    assert find_pictures(tmp_path / "plain.npz").names[0] == "picture 0"


def test_all_bad_pictures_are_named_at_once(tmp_path: Path) -> None:
    put(tmp_path / "cat" / "good.png")
    for i in range(7):
        (tmp_path / "cat" / f"bad{i}.png").write_bytes(b"x")
    with pytest.raises(InputError, match=r"7 of 8 cannot be used.*bad0.*bad4.*and 2 more"):
        find_pictures(tmp_path).arrays(8)


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_keep_the_order_and_hand_errors_over(workers: int) -> None:
    def load(i: int) -> int:
        if i % 5 == 3:
            raise InputError(f"bad {i}")
        return i

    got = list(decoded(range(50), load, workers, ahead=4))
    assert [g for g in got if isinstance(g, int)] == [i for i in range(50) if i % 5 != 3]
    assert [str(g) for g in got if isinstance(g, InputError)] == [f"bad {i}" for i in range(50) if i % 5 == 3]
    stream = decoded(range(1000), load, workers, ahead=4)
    assert next(stream) == 0
    stream.close()
    with pytest.raises(InputError, match="workers"):
        next(decoded([1], load, 0))


def test_links_in_a_circle_give_every_picture_once(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        put(tmp_path / "photos" / name / "a.png")
    (tmp_path / "photos" / "cat" / "up").symlink_to(tmp_path / "photos")
    (tmp_path / "photos" / "cat" / "here").symlink_to(tmp_path / "photos" / "cat")
    (tmp_path / "photos" / "again").symlink_to(tmp_path / "photos")
    (tmp_path / "photos" / "broken").symlink_to(tmp_path / "photos" / "broken")
    found = find_pictures(tmp_path / "photos")
    assert (found.names, found.labels) == (["cat/a.png", "dog/a.png"], ["cat", "dog"])
    assert find_pictures(tmp_path / "photos", labelled=False).names == ["cat/a.png", "dog/a.png"]


def test_links_to_folders_elsewhere_are_followed(tmp_path: Path) -> None:
    put(tmp_path / "store" / "a.png")
    put(tmp_path / "photos" / "dog" / "b.png")
    (tmp_path / "photos" / "cat").symlink_to(tmp_path / "store")
    (tmp_path / "photos" / "dog" / "more").symlink_to(tmp_path / "store")
    assert find_pictures(tmp_path / "photos").names == ["cat/a.png", "dog/b.png", "dog/more/a.png"]
