"""Training: augmentation, stages, schedules, exact resume, several processes, bad input."""

from __future__ import annotations

import copy
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch.nn.utils.parametrizations import weight_norm

from fewcal.errors import FewcalWarning, FileFormatError, InputError
from fewcal.features import FeatureSet
from fewcal.features.backbones import load_checkpoint, make_backbone, save_checkpoint
from fewcal.training import PixelSplit, TrainSettings, load_pixels, train
from fewcal.training.augment import (
    augment,
    erase_rectangles,
    jitter_colours,
    random_boxes,
    random_crop_flip,
    rotate,
)
from fewcal.training.distributed import ProcessGroup
from fewcal.training.loop import Training
from fewcal.training.model import Average, CosineClassifier, DropBlock, Dropout, Mixing
from fewcal.training.settings import RECIPES
from fewcal.training.state import BEST, RECORD, STATE, load_state, save_state
from fewcal.training.validate import extract, few_shot_accuracy
from limits import PATIENCE

SIZE = 20
TINY: dict[str, Any] = {
    "backbone": "conv4",
    "backbone_settings": {"channels": 4, "size": 16},
    "size": 16,
    "store": SIZE,
    "epochs": 2,
    "mixup_epochs": 1,
    "batch": 10,
    "tasks": 4,
    "validations": 3,
    "erase": 0.3,
    "test_sizes": (16, SIZE, (16, SIZE)),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(names: str, rows: int = 8, seed: int = 0) -> PixelSplit:
    """Classes that are coloured patterns, with noise on top."""
    g = generator(seed)
    patterns = torch.rand(len(names), 3, 4, 4, generator=g)
    labels = torch.arange(len(names)).repeat_interleave(rows)
    x = torch.nn.functional.interpolate(patterns, (SIZE, SIZE))[labels]
    x = (0.7 * x + 0.3 * torch.rand(x.shape, generator=g)) * 255
    return PixelSplit(x.byte(), labels, list(names))


def small_data(*splits: str) -> dict[str, PixelSplit]:
    made = {"base": pictures("abcd", seed=1), "val": pictures("efg", seed=2), "novel": pictures("hijkl", seed=3)}
    return {name: made[name] for name in splits or made}


def small(**changes: Any) -> TrainSettings:
    return TrainSettings(**(TINY | changes))


# ---- augmentation ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(8, 30), st.integers(8, 30), st.integers(0, 99))
@examples(max_examples=20, deadline=None)
def test_augmented_pictures_are_pictures(batch: int, side: int, size: int, seed: int) -> None:
    pixels = torch.randint(0, 256, (batch, 3, side, side), dtype=torch.uint8, generator=generator(seed))
    x = augment(pixels, size, generator(seed), erase=0.5)
    assert x.shape == (batch, 3, size, size)
    assert 0 <= float(x.min()) <= float(x.max()) <= 1
    assert torch.equal(x, augment(pixels, size, generator(seed), erase=0.5))


def test_boxes_lie_inside_and_have_their_areas() -> None:
    left, top, width, height = random_boxes(torch.zeros(4000, 1), generator(), 0.3)
    assert float(torch.stack([left, top]).min()) >= 0
    assert float((left + width).max()) <= 1 + 1e-6
    assert float((top + height).max()) <= 1 + 1e-6
    area = width * height
    assert 0.29 < float(area.min()) < 0.32
    assert 0.6 < float(area.mean()) < 0.66  # a little below the middle of 0.3..1: long boxes are cut at the border


def test_crops_come_from_within_the_picture() -> None:
    """The ramp's value is its place: crops span what their boxes say, centred where the boxes lie."""
    ramp = ((torch.arange(64) + 0.5) / 64).expand(32, 1, 64, 64)
    left, _, width, _ = random_boxes(ramp, generator(5), 0.3)
    out = random_crop_flip(ramp, 16, generator(5), 0.3)
    torch.testing.assert_close(out.mean((1, 2, 3)), left + width / 2, atol=1e-2, rtol=0)
    torch.testing.assert_close(out.amax((1, 2, 3)), left + width * (1 - 0.5 / 16), atol=2e-2, rtol=0)


def test_half_of_the_pictures_are_mirrored() -> None:
    ramp = torch.linspace(0, 1, 12).expand(600, 1, 12, 12)
    rising = random_crop_flip(ramp, 12, generator(), 0.5).diff(dim=3).mean((1, 2, 3)) > 0
    assert 0.42 < float(rising.float().mean()) < 0.58


def test_jitter_keeps_grey_pictures_grey_and_strength_0_changes_nothing() -> None:
    x = torch.rand(5, 1, 6, 6, generator=generator()).expand(5, 3, 6, 6)
    out = jitter_colours(x, 0.4, generator())
    torch.testing.assert_close(out[:, 0], out[:, 1])
    colours = torch.rand(5, 3, 6, 6, generator=generator())
    torch.testing.assert_close(jitter_colours(colours, 0.0, generator()), colours)


def test_erased_share() -> None:
    x = torch.zeros(2000, 1, 20, 20)
    hit = erase_rectangles(x, 0.3, generator()).amax((1, 2, 3)) > 0
    assert 0.26 < float(hit.float().mean()) < 0.34
    assert torch.equal(erase_rectangles(x, 0.0, generator()), x)


def test_rotation_is_that_of_rot90() -> None:
    x = torch.rand(8, 3, 5, 5)
    turns = torch.tensor([0, 1, 2, 3, 3, 2, 1, 0])
    for out, one, k in zip(rotate(x, turns), x, turns.tolist(), strict=True):
        assert torch.equal(out, torch.rot90(one, k, (1, 2)))


# ---- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norms", [False, True])
def test_cosine_logits_ignore_lengths(norms: bool) -> None:
    head = CosineClassifier(6, 3, 10.0, norms)
    x = torch.rand(4, 6)
    torch.testing.assert_close(head(x), head(7 * x))
    scale = 10.0 if head.norms is None else 10.0 * head.norms
    torch.testing.assert_close(head(head.weight).diagonal(), scale * torch.ones(3))


def test_cosine_with_norms_is_the_weight_norm_of_torch() -> None:
    head, linear = CosineClassifier(6, 3, 2.0, True), weight_norm(torch.nn.Linear(6, 3, bias=False), dim=0)
    assert head.norms is not None
    with torch.no_grad():
        linear.parametrizations.weight.original0.copy_(head.norms[:, None].copy_(torch.rand(3, 1)))  # type: ignore
        linear.parametrizations.weight.original1.copy_(head.weight)  # type: ignore[union-attr]
    x = torch.rand(4, 6)
    torch.testing.assert_close(head(x), 2 * linear(x / x.norm(dim=1, keepdim=True)))


def test_mixing_touches_one_layer_and_the_first_rows() -> None:
    x = torch.rand(5, 2, 3, 3)
    mixing = Mixing(2, 0.25, torch.tensor([1, 2, 0]))
    assert mixing(1, x) is x
    out = mixing(2, x)
    torch.testing.assert_close(out[0], 0.25 * x[0] + 0.75 * x[1])
    assert torch.equal(out[3:], x[3:])


def test_mixing_pictures_is_mixing_at_layer_0() -> None:
    net = make_backbone("conv4", channels=3, size=16).eval()
    x, order = torch.rand(4, 3, 16, 16), torch.tensor([3, 2, 1, 0])
    torch.testing.assert_close(net(x, Mixing(0, 0.3, order)), net(0.3 * x + 0.7 * x[order]))


def test_dropblock_drops_its_share_and_keeps_the_mean() -> None:
    drop = DropBlock(0.1, 4, generator())
    x = torch.ones(64, 16, 11, 11)
    assert drop(2, x) is x
    out = drop(4, x)
    assert 0.05 < float((out == 0).float().mean()) < 0.13
    assert float(out.mean()) == pytest.approx(1, abs=1e-4)


def test_dropout_drops_its_share_in_training_alone() -> None:
    net = make_backbone("wrn28-10", depth=10, width=2)
    dropout = Dropout(net, 0.5)
    dropout.generator = generator()
    x, (first, *others) = torch.ones(8, 32, 20, 20), net.dropout_places()
    assert len(others) == 2  # one block a stage
    (dropped,) = (dropout(first, (x,)),)
    assert 0.45 < float((dropped == 0).float().mean()) < 0.55
    assert float(dropped.mean()) == pytest.approx(1, abs=0.05)
    plain = copy.deepcopy(net)
    for module in plain.modules():
        module._forward_pre_hooks.clear()
    pictures = torch.rand(4, 3, 16, 16)
    assert torch.equal(net.eval()(pictures), plain.eval()(pictures))
    assert not torch.allclose(net.train()(pictures), plain.train()(pictures))


def test_average_follows_the_weights() -> None:
    net = make_backbone("conv4", channels=2, size=16)
    average = Average(net, 0.9)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1.0)
    for step in range(200):
        average.update(net, step)
    for p in average.backbone.parameters():
        torch.testing.assert_close(p, torch.ones_like(p), atol=1e-4, rtol=0)


# ---- schedules ------------------------------------------------------------------------------------------------------


def standing(tmp_path: Path, clock: Any = None, **changes: Any) -> Training:
    extra = {} if clock is None else {"clock": clock}
    return Training(small_data(), small(**changes), tmp_path, ProcessGroup(0, 1, torch.device("cpu")), **extra)


def test_rates_of_both_stages(tmp_path: Path) -> None:
    t = standing(tmp_path, epochs=3, mixup_epochs=1, lr=0.4, mixup_lr=0.1, warmup=0.1)
    assert t.rate_at(0.0375) == pytest.approx(0.2)  # half of the warm-up
    assert t.rate_at(0.375) == pytest.approx(0.2)  # half of a cosine
    assert t.rate_at(0.75) == pytest.approx(0.1)
    assert t.rate_at(1.0) == pytest.approx(0)
    constant = standing(tmp_path, epochs=3, mixup_epochs=1, lr=0.4, schedule="constant")
    assert constant.rate_at(0.7) == 0.4


def test_minutes_lay_the_schedule_over_the_budget(tmp_path: Path) -> None:
    """A clock on which a step takes two seconds and nothing else takes any time."""
    t: list[Training] = []
    now = [0.0]
    training = standing(
        tmp_path, clock=lambda: now[0], minutes=1.0, epochs=1, mixup_epochs=1, validations=1, warmup=0.9
    )
    step = training.train_step

    def timed(rows: torch.Tensor, progress: float) -> None:
        step(rows, progress)
        now[0] += 2.0
        t.append(training)

    training.train_step = timed  # type: ignore[method-assign]
    training.run(1e9)
    assert training.spent() == pytest.approx(60, abs=2.1)
    assert training.lost == 16, "eight steps that were only timed"
    assert training.curve[0]["rate"] < 0.2 * training.settings.lr, "the warm-up is there whatever came before it"
    stages = [row["stage"] for row in training.curve]
    assert stages == sorted(stages)
    assert set(stages) == {1, 2}
    assert training.step == len(t) - 8  # those that were only timed do not count
    assert training.validations[-1]["step"] == training.step


def test_timing_a_step_leaves_no_trace(tmp_path: Path) -> None:
    training = standing(tmp_path)
    before = {k: v.clone() for k, v in training.learner.state_dict().items()}
    assert training.time_step(1, 1) > 0
    assert all(torch.equal(v, before[k]) for k, v in training.learner.state_dict().items())
    assert not training.optimizer.state
    assert float(training.sums.sum()) == 0


# ---- a whole training -----------------------------------------------------------------------------------------------


class Killed(BaseException):
    """What a kill is to the code: not an Exception."""


def test_training_learns_and_writes_all_its_files(tmp_path: Path) -> None:
    settings = small(epochs=12, mixup_epochs=4, lr=0.05, average=0.9)
    lines: list[str] = []
    done: list[int] = []
    record = train(
        small_data(),
        settings,
        tmp_path / "run",
        features=tmp_path / "features",
        tensorboard=True,
        final_tasks=20,
        log=lines.append,
        progress=lambda a, b: done.append(a),
    )
    assert record["curve"][11]["class_loss"] < record["curve"][0]["class_loss"]
    assert [row["stage"] for row in record["curve"]] == [1] * 12 + [2] * 4
    assert record == json.loads((tmp_path / "run" / RECORD).read_text()) | {"validations": record["validations"]}
    assert record["ended"] == "schedule"
    assert len(record["validations"]) == 3
    assert record["final"]["novel"]["5"]["accuracy"] > 0.5
    assert done == sorted(done)
    assert done[-1] == 1000
    assert any("novel 5-shot" in line for line in lines)
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    assert not (tmp_path / "run" / STATE).exists()

    fs = FeatureSet.load(tmp_path / "features")
    assert {name: split.rows for name, split in fs.splits().items()} == {"base": 32, "val": 24, "novel": 40}
    net, meta = load_checkpoint(tmp_path / "run" / BEST, "conv4")
    assert meta["test_size"] in (16, SIZE, [16, SIZE])
    assert len(record["final"]["val"]) == 3
    again = extract(net, small_data()["novel"], meta["test_size"])
    assert fs.novel is not None
    np.testing.assert_allclose(again.features, fs.novel.features, rtol=2e-3, atol=1e-3)
    # A finished training answers at once.
    assert train(small_data(), settings, tmp_path / "run", resume=True)["steps"] == record["steps"]


S2M2: dict[str, Any] = {
    **{"backbone_settings": {"depth": 10, "width": 1}, "size": 16, "store": SIZE, "epochs": 2, "mixup_epochs": 1},
    **{"batch": 10, "tasks": 4},
}


@pytest.mark.parametrize(("at", "recipe"), [(1, "plain"), (4, "plain"), (7, "plain"), (7, "s2m2")])
def test_killed_and_resumed_training_is_as_if_nothing_happened(
    tmp_path: Path, at: int, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(dropblock=0.2, validations=2)
    if recipe == "s2m2":  # with Adam and dropout
        settings = TrainSettings.for_backbone("wrn28-10", "s2m2", **S2M2, validations=2)
    whole = train(small_data(), settings, tmp_path / "whole", final_tasks=5, save_seconds=1e9)

    step = Training.train_step

    def killing(self: Training, rows: torch.Tensor, progress: float) -> None:
        if self.step == at:
            raise Killed
        step(self, rows, progress)

    monkeypatch.setattr(Training, "train_step", killing)
    with pytest.raises(Killed):
        train(small_data(), settings, tmp_path / "cut", final_tasks=5, save_seconds=0)
    monkeypatch.setattr(Training, "train_step", step)
    assert (tmp_path / "cut" / STATE).exists()
    resumed = train(small_data(), settings, tmp_path / "cut", final_tasks=5, resume=True)
    for key in ("curve", "validations", "final", "steps", "best_epoch"):
        assert resumed[key] == whole[key]
    assert (tmp_path / "cut" / BEST).read_bytes() == (tmp_path / "whole" / BEST).read_bytes()


def test_a_process_that_is_really_killed(tmp_path: Path) -> None:
    """SIGKILL in the middle of a step, then --resume, through the command line."""
    code = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}
import torch
torch.set_num_threads(1)
import test_training as t
from fewcal.training.loop import Training
step = Training.train_step
def killing(self, rows, progress):
    if self.step == 5:
        os.kill(os.getpid(), 9)
    step(self, rows, progress)
Training.train_step = killing
t.train(t.small_data(), t.small(), {str(tmp_path / "cut")!r}, final_tasks=5, save_seconds=0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    resumed = train(small_data(), small(), tmp_path / "cut", final_tasks=5, resume=True)
    whole = train(small_data(), small(), tmp_path / "whole", final_tasks=5)
    # Two processes may round convolutions differently; within one, the curves are equal to the last bit (above).
    assert len(resumed["curve"]) == len(whole["curve"])
    for a, b in zip(resumed["curve"], whole["curve"], strict=True):
        assert a == pytest.approx(b, rel=1e-4)


def test_patience_ends_stage_2(tmp_path: Path) -> None:
    settings = small(epochs=1, mixup_epochs=30, mixup_lr=0.0, lr=0.0, average=0.0, validations=31, patience=3)
    record = train(small_data(), settings, tmp_path, final_tasks=5)
    assert record["ended"] == "patience"
    assert record["epochs"] < 20


def test_all_turns_of_a_picture_share_its_class(tmp_path: Path) -> None:
    """Stage 1: all pictures at four angles. Stage 2: all of them to be mixed, then a quarter at four angles."""
    training = standing(tmp_path, turns="all")
    x, labels = torch.rand(8, 3, 6, 6), torch.arange(8)
    for mixed, count in ((0, 8), (8, 2)):
        got, classes, turns, first = training._with_turns(x, labels, torch.zeros(8, dtype=torch.long), mixed)
        assert (len(got), first) == (mixed + 4 * count, mixed)
        assert torch.equal(got[:mixed], x[:mixed])
        for picture, label, turn in zip(got[mixed:], classes[mixed:], turns[mixed:].tolist(), strict=True):
            assert torch.equal(picture, torch.rot90(x[label], turn, (1, 2)))
        assert torch.bincount(4 * classes[mixed:] + turns[mixed:]).tolist() == [1] * (4 * count)


def test_mixup_reaches_the_last_layer_where_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers: dict[bool, set[int]] = {}
    for last in (False, True):
        training = standing(tmp_path, mixup_last=last)
        found = layers.setdefault(last, set())
        monkeypatch.setattr("fewcal.training.loop.Mixing", lambda i, *rest, to=found: (to.add(i), Mixing(i, *rest))[1])
        for training.step in range(40):
            training.train_step(training.order()[:10], 0.99)
    assert layers == {False: {0, 1, 2, 3}, True: {0, 1, 2, 3, 4}}


def test_without_rotation_and_without_validation_classes(tmp_path: Path) -> None:
    with pytest.warns(FewcalWarning, match="no val split"):
        record = train(small_data("base"), small(rotation=0.0, jitter=0.0), tmp_path, final_tasks=5)
    assert record["validations"] == []
    assert record["final"]["val"] == {}
    assert (tmp_path / BEST).exists()


def test_upright_pictures_and_a_linear_classifier(tmp_path: Path) -> None:
    record = train(small_data(), small(upright=1.0, classifier="linear"), tmp_path, final_tasks=5)
    assert record["curve"][-1]["rotation_loss"] < record["curve"][0]["rotation_loss"]  # there is nothing to learn


def test_compiled_stages_give_the_same_features(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each stage is compiled in place; the compiler itself is torch's business."""
    compiled: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compiled.append(self))
    training = standing(tmp_path, compile=True)
    assert compiled == list(training.learner.backbone.stages)


def test_few_classes_make_small_tasks() -> None:
    sets = {
        name: extract(make_backbone("conv4", channels=4, size=16), split, SIZE) for name, split in small_data().items()
    }
    found = few_shot_accuracy(sets, "val", 10)
    assert set(found) == {"1", "5"}
    assert all(0 <= v["accuracy"] <= 1 for v in found.values())


def test_starting_from_a_checkpoint(tmp_path: Path) -> None:
    net = make_backbone("conv4", channels=4, size=16)
    save_checkpoint(tmp_path / "a", net)
    settings = small(lr=0.0, mixup_lr=0.0, average=0.0)
    train(small_data(), settings, tmp_path / "run", final_tasks=5, initial=tmp_path / "a")
    trained, _ = load_checkpoint(tmp_path / "run" / BEST)
    for a, b in zip(trained.parameters(), net.parameters(), strict=True):
        assert torch.equal(a, b)
    save_checkpoint(tmp_path / "other", make_backbone("resnet12", width=2))
    with pytest.raises(InputError, match="holds a resnet12, not a conv4"):
        train(small_data(), settings, tmp_path / "run2", initial=tmp_path / "other")
    save_checkpoint(tmp_path / "wide", make_backbone("conv4", channels=8, size=16))
    with pytest.raises(InputError, match="not with"):
        train(small_data(), settings, tmp_path / "run3", initial=tmp_path / "wide")


# ---- several processes ----------------------------------------------------------------------------------------------

WORKER = """
import sys
sys.path[:0] = {tests!r}
import torch
torch.set_num_threads(1)
import test_training as t
from fewcal.training import loop
kept = []
make = loop.Training.__init__
def remember(self, *a, **k):
    make(self, *a, **k)
    kept.append(self)
loop.Training.__init__ = remember
record = t.train(t.small_data(), t.small(), {out!r}, final_tasks=5)
weights = torch.cat([p.detach().flatten() for p in kept[0].learner.parameters()])
print(kept[0].group.rank, float(weights.double().sum()), float(weights.double().abs().sum()), bool(record))
"""


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    code = WORKER.format(tests=[str(Path(__file__).parent), str(Path(__file__).parents[1])], out=str(tmp_path / "run"))
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | world | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    output = [w.communicate(timeout=PATIENCE) for w in workers]
    assert [w.returncode for w in workers] == [0, 0], output
    first, second = (out.split() for out, _ in output)
    assert first[1:3] == second[1:3]  # the same weights
    assert (first[3], second[3]) == ("True", "False")  # one of them writes
    record = json.loads((tmp_path / "run" / RECORD).read_text())
    assert record["environment"]["processes"] == 2
    assert len(record["curve"]) == 3


# ---- data -----------------------------------------------------------------------------------------------------------


def save_pictures(split: PixelSplit, folder: Path) -> None:
    from PIL import Image

    for i, (pixels, label) in enumerate(zip(split.pixels, split.labels.tolist(), strict=True)):
        (folder / split.classes[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / split.classes[label] / f"{i:03d}.png")


def test_folders_and_packs_are_read(tmp_path: Path) -> None:
    from fewcal.features.sources.pictures import write_pack

    data = small_data()
    save_pictures(data["base"], tmp_path / "base")
    save_pictures(data["val"], tmp_path / "base" / "other")
    files = sorted((tmp_path / "base" / "other").rglob("*.png"))
    write_pack(
        tmp_path / "x_val.npz",
        [f.read_bytes() for f in files],
        [f.parent.name for f in files],
        [f.name for f in files],
    )
    shutil.rmtree(tmp_path / "base" / "other")
    found = load_pixels(tmp_path, SIZE)
    assert list(found) == ["base", "val"]
    for name, split in found.items():
        assert torch.equal(split.pixels, data[name].pixels)
        assert torch.equal(split.labels, data[name].labels)
    grey = load_pixels(tmp_path, SIZE, channels=1)["base"]
    assert grey.pixels.shape == (32, 1, SIZE, SIZE)
    assert len(found["base"].thinned(5)) == 5
    assert found["base"].thinned(99) is found["base"]


def test_lists_are_read(tmp_path: Path) -> None:
    save_pictures(small_data()["base"], tmp_path / "all")
    files = sorted((tmp_path / "all").rglob("*.png"))
    rows = [f"all/{f.parent.name}/{f.name},{f.parent.name},{'val' if f.parent.name == 'd' else 'base'}" for f in files]
    (tmp_path / "list.csv").write_text("path,label,split\n" + "\n".join(rows))
    found = load_pixels(tmp_path / "list.csv", SIZE)
    assert {name: split.classes for name, split in found.items()} == {"base": ["a", "b", "c"], "val": ["d"]}
    (tmp_path / "list.csv").write_text("path,label,split\n" + "\n".join(rows).replace(",val", ",test"))
    with pytest.raises(InputError, match="split 'test' is unknown"):
        load_pixels(tmp_path / "list.csv", SIZE)
    (tmp_path / "bare.csv").write_text("path,label\n" + "\n".join(r.rpartition(",")[0] for r in rows))
    with pytest.raises(InputError, match="a column 'split'"):
        load_pixels(tmp_path / "bare.csv", SIZE)


def test_data_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="does not exist"):
        load_pixels(tmp_path / "none", SIZE)
    save_pictures(pictures("ef"), tmp_path / "val")
    with pytest.raises(InputError, match="no base split"):
        load_pixels(tmp_path, SIZE)
    save_pictures(pictures("ab"), tmp_path / "base")
    with pytest.raises(InputError, match="in_channels=2"):
        load_pixels(tmp_path, SIZE, channels=2)
    save_pictures(pictures("xy"), tmp_path / "my_base")
    with pytest.raises(InputError, match="keep one"):
        load_pixels(tmp_path, SIZE)
    save_pictures(pictures("ab"), tmp_path / "leak" / "base")
    save_pictures(pictures("bc"), tmp_path / "leak" / "novel")
    with pytest.raises(InputError, match="'b' is in both base and novel"):
        load_pixels(tmp_path / "leak", SIZE)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InputError, match=r"fewcal\[images\]"):
        load_pixels(tmp_path, SIZE)


def test_tensors_that_are_no_pictures() -> None:
    good = pictures("ab")
    for pixels, labels, classes, message in (
        (good.pixels.float(), good.labels, good.classes, "uint8"),
        (good.pixels[..., :9], good.labels, good.classes, "shape"),
        (good.pixels, good.labels[:3], good.classes, "labels of shape"),
        (good.pixels, good.labels, ["a"], r"must be 0\.\.0"),
    ):
        with pytest.raises(InputError, match=message):
            PixelSplit(pixels, labels, classes)


# ---- defaults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", [*RECIPES, None])
def test_recipes_are_complete_and_changes_win_over_them(recipe: str | None) -> None:
    for backbone in ("resnet12", "conv4"):
        settings = TrainSettings.for_backbone(backbone, recipe, average=0.5)
        assert (settings.backbone, settings.average) == (backbone, 0.5)
        assert TrainSettings(**settings.to_dict()) == settings
    with pytest.raises(InputError, match="recipe 's2m3' is unknown; did you mean 's2m2'"):
        TrainSettings.for_backbone("resnet12", "s2m3")


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": -1}, "lr=-1"),
        ({"batch": 1.5}, "batch"),
        ({"batch": 16.5}, "whole number"),
        ({"epochs": 0, "mixup_epochs": 0}, "both 0"),
        ({"minutes": 0}, "minutes=0"),
        ({"schedule": "linear"}, "schedule='linear' is unknown; use one of cosine, constant"),
        ({"classifier": "dot"}, "classifier='dot'"),
        ({"store": 2}, "store=2"),
        ({"test_sizes": (1,)}, "test_sizes"),
        ({"test_sizes": ((),)}, "test_sizes"),
    ],
)
def test_wrong_settings(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(**changes)


def test_trainings_that_cannot_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_data()
    with pytest.raises(InputError, match="no base split"):
        train({}, small(), tmp_path / "a")
    with pytest.raises(InputError, match="one class only"):
        train({"base": pictures("a")}, small(), tmp_path / "b")
    with pytest.raises(InputError, match="too few"):
        train(data | {"val": pictures("ef", rows=5)}, small(), tmp_path / "c")
    with pytest.raises(InputError, match="channels"):
        train(data, small(backbone_settings={"in_channels": 1, "size": 16}), tmp_path / "d")
    with pytest.raises(InputError, match="built for pictures of 84"):
        train(data, small(backbone_settings={}), tmp_path / "d")
    with pytest.raises(InputError, match="too small for 8 processes"):
        Training(data, small(), tmp_path, ProcessGroup(0, 8, torch.device("cpu")))
    with pytest.raises(InputError, match="before the first step"):
        train(data, small(minutes=1e-6), tmp_path / "d")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no usable CUDA device"):
            train(data, small(), tmp_path / "d", device="cuda")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"fewcal\[train\]"):
        train(data, small(), tmp_path / "e", tensorboard=True)


def test_a_loss_that_explodes(tmp_path: Path) -> None:
    settings = small(classifier="linear", lr=100, momentum=0.99, warmup=0.0, weight_decay=1.0, epochs=60)
    with pytest.raises(InputError, match="lower learning rate"):
        train(small_data(), settings, tmp_path)


def test_folders_that_hold_something_else(tmp_path: Path) -> None:
    train(small_data(), small(), tmp_path / "run", final_tasks=5)
    with pytest.raises(InputError, match="--resume"):
        train(small_data(), small(), tmp_path / "run")
    with pytest.raises(InputError, match="another run"):
        train(small_data(), small(lr=0.01), tmp_path / "run", resume=True)
    (tmp_path / "run" / RECORD).write_text("{")
    with pytest.raises(FileFormatError, match="cannot be read"):
        train(small_data(), small(), tmp_path / "run", resume=True)
    (tmp_path / "run" / RECORD).unlink()
    (tmp_path / "run" / STATE).write_text("torn")
    with pytest.raises(FileFormatError, match="cannot be continued"):
        train(small_data(), small(), tmp_path / "run", resume=True)


def test_resuming_with_another_number_of_processes(tmp_path: Path) -> None:
    training = standing(tmp_path)
    save_state(training)
    training.group = ProcessGroup(0, 2, torch.device("cpu"))
    with pytest.raises(InputError, match="1 processes and now in 2"):
        load_state(training)


# ---- the command ----------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fewcal.cli import main

    for name, split in small_data().items():
        save_pictures(split, tmp_path / "data" / name)
    command = ["train", str(tmp_path / "data"), "--out", str(tmp_path / "run"), "--backbone", "conv4"]
    command += ["--size", "16", "--epochs", "1", "--mixup-epochs", "1", "--batch", "10", "--device", "cpu"]
    command += ["--features", str(tmp_path / "features"), "--json", str(tmp_path / "record.json")]
    command += ["--set", "tasks=4", "--set", "validations=1", "--set", "backbone.channels=4"]
    with pytest.raises(SystemExit) as done:
        main(command)
    assert done.value.code == 0
    assert "novel 5-shot" in capsys.readouterr().err
    assert json.loads((tmp_path / "record.json").read_text())["settings"]["size"] == 16
    assert (tmp_path / "features" / "novel.npz").exists()
    for wrong, message in (
        (["--set", "learning_rate=1"], "no such setting"),
        (["--set", "dc.k=1"], "dc.k: there is no such setting"),
        (["--backbone", "resnet50"], "backbone 'resnet50' is unknown"),
        (["--recipe", "s2m3"], "recipe 's2m3' is unknown"),
    ):
        with pytest.raises(SystemExit) as done:
            main([*command, *wrong])
        assert done.value.code == 2
        assert message in capsys.readouterr().err


def test_features_at_several_sizes_are_their_mean() -> None:
    net = make_backbone("conv4", channels=8, size=16).eval()
    pictures = small_data()["val"]
    both = extract(net, pictures, (16, 20)).features
    each = [extract(net, pictures, z).features for z in (16, 20)]
    np.testing.assert_allclose(both, np.mean(each, axis=0), rtol=1e-5, atol=1e-6)
