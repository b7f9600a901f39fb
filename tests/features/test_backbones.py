"""Backbones: sizes that the literature states, shapes, checkpoints that refuse what they are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fewcal.errors import FileFormatError, InputError
from fewcal.features.backbone_networks import Backbone
from fewcal.features.backbones import BACKBONES, load_checkpoint, make_backbone, save_checkpoint

SMALL = {
    "wrn28-10": {"depth": 10, "width": 1},
    "wrn28-10-p64": {"depth": 10, "width": 1, "projection": 8},
    "resnet12": {"width": 2},
    "conv4": {"channels": 4, "size": 32},
}


def small(name: str) -> Backbone:
    return make_backbone(name, **SMALL[name])


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_take_bytes_and_floats_and_have_signs_of_their_own(name: str) -> None:
    net = small(name).eval()
    pictures = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    features = net(pictures)
    assert features.shape == (8, net.dimension)
    assert bool((features < 0).any()) is (name == "wrn28-10-p64")
    torch.testing.assert_close(features, net(pictures.float() / 255))


@given(st.integers(1, 3), st.integers(1, 6), st.integers(16, 70))
@settings(max_examples=12, deadline=None)
def test_conv4_takes_channels_and_sizes(inside: int, channels: int, size: int) -> None:
    net = make_backbone("conv4", channels=channels, in_channels=inside, size=size)
    assert net(torch.rand(2, inside, size, size)).shape == (2, channels * (size // 16) ** 2)


def test_between_sees_every_border() -> None:
    net, seen = small("resnet12").eval(), []
    pictures = torch.rand(2, 3, 32, 32)

    def look(i: int, x: torch.Tensor) -> torch.Tensor:
        seen.append(i)
        return x

    torch.testing.assert_close(net(pictures, look), net(pictures))
    assert seen == [0, 1, 2, 3, 4]
    assert bool((net(pictures, lambda i, x: x * 0 if i == 4 else x) == 0).all())


@pytest.mark.parametrize(
    ("name", "kw", "message"),
    [
        ("resnet21", {}, "unknown"),
        ("conv4", {"chanels": 3}, "no setting 'chanels'"),
        ("conv4", {"channels": 0}, "above 0"),
        ("conv4", {"channels": True}, "whole number"),
        ("conv4", {"size": 8}, "at least 16"),
        ("wrn28-10", {"depth": 12}, "6n"),
    ],
)
def test_wrong_settings_and_pictures_are_refused(name: str, kw: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_backbone(name, **kw)
    with pytest.raises(InputError, match="takes"):
        small("resnet12")(torch.zeros(2, 1, 32, 32))
    with pytest.raises(InputError, match="at least 16"):
        small("resnet12")(torch.zeros(2, 3, 8, 32))
    with pytest.raises(InputError, match="built for pictures of 32"):
        small("conv4")(torch.zeros(2, 3, 64, 64))


# ---- checkpoints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BACKBONES)
def test_checkpoints_come_back(name: str, tmp_path: Path) -> None:
    net = small(name)
    net(torch.rand(4, 3, 32, 32))  # moves the running statistics
    save_checkpoint(tmp_path / "net.safetensors", net, {"epoch": 3, "classes": ["å", "b"]})
    again, meta = load_checkpoint(tmp_path / "net.safetensors", name)
    assert meta == {"epoch": 3, "classes": ["å", "b"]}
    assert (again.name, again.settings, again.training) == (net.name, net.settings, False)
    pictures = torch.rand(3, 3, 32, 32)
    assert torch.equal(again(pictures), net.eval()(pictures))


def test_half_precision_checkpoints(tmp_path: Path) -> None:
    net = small("resnet12")
    save_checkpoint(tmp_path / "full.safetensors", net)
    save_checkpoint(tmp_path / "half.safetensors", net, dtype=torch.float16)
    half, _ = load_checkpoint(tmp_path / "half.safetensors")
    assert (tmp_path / "half.safetensors").stat().st_size < (tmp_path / "full.safetensors").stat().st_size
    for a, b in zip(half.parameters(), net.parameters(), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def rewrite(path: Path, **changes: object) -> Path:
    """The same weights under another header."""
    from safetensors import safe_open

    with safe_open(str(path), framework="pt") as f:
        header = json.loads(f.metadata()["fewcal"]) | changes
    header.pop("checksums", None)
    save_file(load_file(path), path, {"fewcal": json.dumps(header)})
    return path


def test_other_architectures_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_checkpoint(path, small("conv4"))
    with pytest.raises(InputError, match="holds a conv4, not a resnet12"):
        load_checkpoint(path, "resnet12")
    for changes, match in [
        ({"backbone": "resnet12", "settings": SMALL["resnet12"]}, "not those of a resnet12"),
        ({"backbone": "newnet"}, "not those of a newnet"),
        ({"version": 9}, "checkpoint format 9"),
    ]:
        with pytest.raises(FileFormatError, match=match):
            load_checkpoint(rewrite(path, **changes))


def test_files_that_are_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a checkpoint")
    save_file({"x": torch.zeros(2)}, tmp_path / "other")
    for name, error, match in [
        ("none", InputError, "no checkpoint at"),
        ("text", FileFormatError, "not a readable safetensors file"),
        ("other", FileFormatError, "not a backbone"),
    ]:
        with pytest.raises(error, match=match):
            load_checkpoint(tmp_path / name)
