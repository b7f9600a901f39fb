"""The training loop: two stages, schedules by epochs or by the clock, validation, and exact resume.

The S2M2 recipe (Mangla et al. Charting the right manifold: manifold mixup for few-shot learning. WACV 2020):

- stage 1: every picture is turned by 0, 90, 180 or 270 degrees; loss = class + rotation;
- stage 2: half of a batch is upright and mixed at a random layer, the other half as in stage 1;
  loss = mixup + ½ (class + rotation).

Nothing random has a state: the order of pictures is a function of (seed, epoch), augmentation and mixing of
(seed, step, process). A resumed training therefore continues exactly, from any step.
"""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fewcal._utils.atomic import read_json, write_json
from fewcal._utils.safetensors_io import read_tensors, write_tensors
from fewcal._utils.splitmix import mix
from fewcal.errors import FewcalWarning, FileFormatError, InputError
from fewcal.features.backbones import Backbone, load_checkpoint, make_backbone, parameter_count, save_checkpoint
from fewcal.features.featureset import FeatureSplit
from fewcal.training.augment import augment, rotate
from fewcal.training.data import PixelSplit
from fewcal.training.distributed import ProcessGroup, joined_process_group
from fewcal.training.model import Average, DropBlock, Learner, Mixing, chained
from fewcal.training.settings import TrainSettings
from fewcal.training.validate import extract, feature_set, few_shot_accuracy, task_shape

BEST, STATE, RECORD = "best.safetensors", "state.safetensors", "record.json"
_ORDER, _STEP = 1, 2  # streams of random numbers
_PARTS = ("loss", "class_loss", "rotation_loss", "accuracy")
_CENTRE_ROWS = 2000  # base pictures that suffice for the centre of the features during training

Report = Callable[[int, int], None]


def train(
    data: Mapping[str, PixelSplit],
    settings: TrainSettings,
    out: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    resume: bool = False,
    features: str | os.PathLike[str] | None = None,
    initial: str | os.PathLike[str] | None = None,
    tensorboard: bool = False,
    save_seconds: float = 60.0,
    final_tasks: int = 2000,
    progress: Report | None = None,
    log: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Train a backbone on `data["base"]`, choose the best weights by few-shot accuracy on `data["val"]`.

    Parameters
    ----------
    data : splits by name; `val` and `novel` are optional
    settings : TrainSettings
    out : folder for `best.safetensors`, `record.json` and, until it is done, `state.safetensors`
    device : "cpu", "cuda", "auto"; under torchrun every process takes its own GPU
    resume : continue what is in `out`, with the same data and settings
    features : folder for base.npz, val.npz and novel.npz (float16) of the best weights, or None
    initial : a checkpoint of the same backbone to start from, or None
    tensorboard : write logs to `out/tensorboard`
    save_seconds : time between saved states; a kill loses at most that much
    final_tasks : tasks of the last figures on val and novel
    progress : callable(done, total) in thousandths of the training
    log : callable(line)

    Returns
    -------
    The record: settings, loss curve, validations, final figures, environment. The same as in `record.json`.
    """
    from fewcal.evaluation.run_folder import Run

    folder = Path(out)
    _check_settings(settings)
    _check_data(data, settings)
    if tensorboard:
        _summary_writer()
    with joined_process_group(device) as world, ExitStack() as held:
        run = None
        if world.first:
            prints = {name: split.fingerprint() for name, split in data.items()}
            begun = "" if initial is None else str(initial)
            identity = {"kind": "training", "settings": settings.to_dict(), "data": prints, "initial": begun}
            run = held.enter_context(Run.open(folder, identity, resume=resume))
        world.agreed([0.0])  # nobody goes on before the folder is there
        if resume and (folder / RECORD).is_file():
            return _read_record(folder / RECORD)
        training = Training(data, settings, folder, world, initial)
        if resume and (folder / STATE).is_file():
            training.load_state()
        writer = _summary_writer()(str(folder / "tensorboard")) if tensorboard and world.first else None
        training.run(save_seconds, writer, progress, log)
        record: dict[str, Any] = {}
        if world.first:
            record = training.finish(None if features is None else Path(features), final_tasks, log)
        if run is not None:
            run.lock.check()
        world.agreed([0.0])
        return record


class Training:
    """One training in progress; see `train`."""

    def __init__(
        self,
        data: Mapping[str, PixelSplit],
        settings: TrainSettings,
        folder: Path,
        world: ProcessGroup,
        initial: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.folder, self.world, self.clock = settings, folder, world, clock
        self.started = clock()
        self.data = {name: split.to(world.device) for name, split in data.items()}
        s, rows = settings, len(data["base"])
        self.batch = min(s.batch, rows)
        self.steps = rows // self.batch
        if self.batch // world.size < 2:
            raise InputError(f"a batch of {self.batch} is too small for {world.size} processes; give each at least 2")
        with torch.random.fork_rng(devices=[]):  # layers are initialised by torch's own generator
            torch.manual_seed(s.seed)
            backbone = make_backbone(s.backbone, **s.backbone_settings)
            if initial is not None:
                backbone = _started_from(initial, backbone)
            learner = Learner(backbone, len(data["base"].classes), s.classifier, s.scale)
        self.learner = learner.to(world.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.average = Average(self.learner.backbone, s.average)
        self.optimizer = torch.optim.SGD(
            self.learner.parameters(), s.lr, s.momentum, weight_decay=s.weight_decay, nesterov=s.momentum > 0
        )
        torch.backends.cudnn.benchmark = world.device.type == "cuda"  # every batch has the same shape
        if s.compile:
            _compile(self.learner.backbone)
        self.model: nn.Module = self.learner
        if world.size > 1:
            where = [world.device] if world.device.type == "cuda" else None
            self.model = nn.parallel.DistributedDataParallel(self.learner, device_ids=where)
        # Where the training stands; all of it goes into the saved state.
        self.epoch = self.place = self.step = 0
        self.plan = (0.0, 0.0)  # progress at the start and the end of this epoch
        self.sums = torch.zeros(len(_PARTS) + 1, device=world.device)
        self.curve: list[dict[str, Any]] = []
        self.validations: list[dict[str, Any]] = []
        self.elapsed = self.step_seconds = 0.0
        self.lost = 0.0  # seconds before the first step; the schedule begins with it, or the warm-up would be skipped
        self.ended = ""
        self.unsaved = False  # whether the best weights are newer than the saved state

    # ---- where it stands ----------------------------------------------------------------------------------------

    def spent(self) -> float:
        """Seconds since the start, those of earlier starts included."""
        return self.elapsed + self.clock() - self.started

    def progress_at(self, place: int) -> float:
        """Progress 0..1 of the whole training at a step of this epoch."""
        begin, end = self.plan
        return begin + (end - begin) * place / self.steps

    def mixup_at(self, progress: float) -> bool:
        """Whether this is stage 2."""
        return progress >= self.settings.stage1_share

    def rate_at(self, progress: float) -> float:
        """Learning rate."""
        s, share = self.settings, self.settings.stage1_share
        second = self.mixup_at(progress)
        within = (progress - share) / (1 - share) if second else progress / share
        rate = s.mixup_lr if second else s.lr
        if not second and within < s.warmup:
            return rate * max(within / s.warmup, 0.01)
        return rate * (1 + math.cos(math.pi * within)) / 2 if s.schedule == "cosine" else rate

    def make_plan(self) -> None:
        """Lay the coming epoch into the schedule: by number, or by the time that is left and the speed so far."""
        s = self.settings
        if s.minutes is None:
            total = s.epochs + s.mixup_epochs
            begin, end = self.epoch / total, (self.epoch + 1) / total
        else:
            if self.step_seconds == 0:
                self.step_seconds = self.time_step()
            if self.step == 0:
                self.lost = self.spent()
            budget = 60 * s.minutes - self.lost
            if budget <= 0:
                raise InputError(f"minutes={s.minutes:g} are over before the first step; give more")
            begin = (self.spent() - self.lost) / budget
            end = begin + self.steps * self.step_seconds / budget
        self.plan = tuple(self.world.agreed([begin, end]))  # type: ignore[assignment]

    def time_step(self, warm: int = 3, timed: int = 5) -> float:
        """Seconds of a step, measured on a few that are then undone."""
        saved = {k: v.clone() for k, v in self.learner.state_dict().items()}
        self.plan = (0.0, 0.0)
        for i in range(warm + timed):
            if i == warm:
                self._wait()
                begun = self.clock()
            self.train_step(self.order()[: self.batch], 0.0)
        self._wait()
        seconds = max((self.clock() - begun) / timed, 1e-9)
        self.learner.load_state_dict(saved)
        self.optimizer.state.clear()
        self.sums.zero_()
        return seconds

    def _wait(self) -> None:
        if self.world.device.type == "cuda":
            torch.cuda.synchronize(self.world.device)

    # ---- steps --------------------------------------------------------------------------------------------------

    def order(self) -> Tensor:
        """The pictures in the order of this epoch, the same in every process."""
        generator = torch.Generator().manual_seed(mix(self.settings.seed, _ORDER, self.epoch) >> 1)
        return torch.randperm(len(self.data["base"]), generator=generator).to(self.world.device)

    def train_step(self, rows: Tensor, progress: float) -> None:
        """One step of SGD on these pictures, of which every process takes its share."""
        s, device = self.settings, self.world.device
        base, mine = self.data["base"], rows[self.world.rank :: self.world.size]
        seed = mix(s.seed, _STEP, self.step, self.world.rank) >> 1
        generator = torch.Generator(device).manual_seed(seed)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate_at(progress)
        x = augment(base.pixels[mine], s.size, generator, least_area=s.least_area, jitter=s.jitter, erase=s.erase)
        labels = base.labels[mine]
        turns = torch.randint(0, 4 if s.rotation > 0 else 1, (len(mine),), generator=generator, device=device)
        if s.upright > 0:
            turns[torch.rand(len(mine), generator=generator, device=device) < s.upright] = 0
        stages = len(self.learner.backbone.stages)
        drop = DropBlock(s.dropblock, stages, generator) if s.dropblock > 0 else None
        mixing, mixed = None, 0
        if self.mixup_at(progress):
            chance = np.random.default_rng(seed)
            mixed = len(mine) if s.rotation == 0 else len(mine) // 2
            shuffled = torch.randperm(mixed, generator=generator, device=device)
            weight = float(chance.beta(s.mixup_alpha, s.mixup_alpha))
            mixing = Mixing(int(chance.integers(stages)), weight, shuffled)
            turns[:mixed] = 0
        x = rotate(x, turns).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=s.amp and device.type == "cuda"):
            logits, rotation = self.model(x, chained(mixing, drop))
        logits, rotation = logits.float(), rotation.float()
        plain = _mean(F.cross_entropy(logits[mixed:], labels[mixed:], reduction="none", label_smoothing=s.smoothing))
        turned = _mean(F.cross_entropy(rotation[mixed:], turns[mixed:], reduction="none"))
        loss = plain + s.rotation * turned
        if mixing is not None:
            head = logits[:mixed]
            loss = 0.5 * loss
            for part, target in ((mixing.weight, labels[:mixed]), (1 - mixing.weight, labels[:mixed][mixing.order])):
                loss = loss + part * F.cross_entropy(head, target, label_smoothing=s.smoothing)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        right = _mean((logits[mixed:].argmax(1) == labels[mixed:]).float())
        one = torch.ones((), device=device)
        self.sums += torch.stack([loss.detach(), plain.detach(), turned.detach(), right, one])

    # ---- the whole ----------------------------------------------------------------------------------------------

    def run(
        self,
        save_seconds: float,
        writer: Any = None,
        report: Report | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        """Train until the schedule, the time or the patience ends."""
        saved, every = self.clock(), max(1, self.steps // 10)
        while not self.ended:
            if self.place == 0:
                self.make_plan()
            if self.plan[0] >= 1:
                self.ended = "schedule"
                break
            epoch_begun, first = self.clock(), self.place
            order = self.order()
            while self.place < self.steps and (progress := self.progress_at(self.place)) < 1:
                begin = self.place * self.batch
                self.train_step(order[begin : begin + self.batch], progress)
                self.average.update(self.learner.backbone, self.step)
                self.place, self.step = self.place + 1, self.step + 1
                if report is not None and self.world.first and self.place % every == 0:
                    report(min(int(1000 * progress), 999), 1000)
                if self.world.first and self.place < self.steps and self.clock() - saved >= save_seconds:
                    self.save_state()
                    saved = self.clock()
            self._end_of_epoch(writer, log)
            if self.settings.minutes is not None and self.place > first:
                self._wait()
                self.step_seconds = (self.clock() - epoch_begun) / (self.place - first)
            self.epoch, self.place = self.epoch + 1, 0
            if self.world.first and (self.unsaved or self.clock() - saved >= save_seconds):
                self.save_state()
                saved, self.unsaved = self.clock(), False
        if self.world.first and (not self.validations or self.validations[-1]["step"] < self.step):
            self.validate(2 if self.mixup_at(self.progress_at(self.place)) else 1, writer)
        if report is not None and self.world.first:
            report(1000, 1000)
        if writer is not None:
            writer.close()

    def _end_of_epoch(self, writer: Any, log: Callable[[str], None] | None) -> None:
        means = self.world.mean(self.sums[:-1] / self.sums[-1]).tolist()
        self.sums.zero_()
        begin, end = self.plan
        row: dict[str, Any] = {
            "epoch": self.epoch,
            "stage": 2 if self.mixup_at(begin) else 1,
            "rate": self.rate_at(begin),
        }
        row |= dict(zip(_PARTS, means, strict=True))
        self.curve.append(row)
        if not math.isfinite(row["loss"]):
            raise InputError(f"the loss is {row['loss']} in epoch {self.epoch}; train with a lower learning rate (lr)")
        if writer is not None:
            for key in (*_PARTS, "rate"):
                writer.add_scalar(f"train/{key}", row[key], self.step)
        s = self.settings
        stop = end >= 1 - 1e-9
        due = stop or int(end * s.validations + 1e-9) > int(begin * s.validations + 1e-9)
        if due and self.world.first:
            self.validate(row["stage"], writer)
        if self.world.first and s.patience and row["stage"] == 2 and self._stale() >= s.patience:
            stop, self.ended = True, "patience"
        if self.world.agreed([float(stop)])[0]:
            self.ended = self.ended or "schedule"
        if log is not None and self.world.first:
            text = f"epoch {self.epoch}: stage {row['stage']}, loss {row['loss']:.3f}, accuracy {row['accuracy']:.3f}"
            if due and "val" in self.data:
                v = self.validations[-1]
                text += f", validation {100 * v['1']:.2f} / {100 * v['5']:.2f}"
            log(f"{text}, {self.spent():.0f} s")

    def validate(self, stage: int, writer: Any = None) -> None:
        """Few-shot accuracy of the present weights on the validation classes; the best ones are kept."""
        if "val" in self.data:
            base = self.data["base"].thinned(_CENTRE_ROWS)
            sets = {
                name: extract(self.average.backbone, split, self.settings.store, amp=self.settings.amp)
                for name, split in (("base", base), ("val", self.data["val"]))
            }
            found = few_shot_accuracy(sets, "val", self.settings.tasks)
            scores = {shot: found[shot]["accuracy"] for shot in found}
            if writer is not None:
                for shot, value in scores.items():
                    writer.add_scalar(f"validation/{shot}-shot", value, self.step)
        else:
            scores = {"1": 0.0, "5": 0.0}
        entry = {"epoch": self.epoch, "step": self.step, "stage": stage, **scores}
        # Without validation classes the latest weights are the best.
        better = "val" not in self.data or all(_score(entry) > _score(v) for v in self.validations)
        self.validations.append(entry)
        if better:
            self.unsaved = True
            meta: dict[str, Any] = {"epoch": self.epoch, "size": self.settings.size, "test_size": self.settings.store}
            if "val" in self.data:
                meta["validation"] = scores
            save_checkpoint(self.folder / BEST, self.average.backbone, meta)

    def _stale(self) -> int:
        """Validations of stage 2 since the best one of all."""
        best = max(range(len(self.validations)), key=lambda i: (_score(self.validations[i]), -i), default=0)
        return sum(v["stage"] == 2 for v in self.validations[best + 1 :])

    def finish(self, features: Path | None, tasks: int, log: Callable[[str], None] | None) -> dict[str, Any]:
        """Choose the test size on validation, look at novel once, write features and the record."""
        from fewcal.evaluation.run_folder import environment

        s = self.settings
        best, meta = load_checkpoint(self.folder / BEST, s.backbone)
        best = best.to(self.world.device)
        sizes: dict[str, dict[str, Any]] = {}
        sets: dict[int | tuple[int, ...], dict[str, FeatureSplit]] = {}
        for size in s.test_sizes or (s.store,):
            sets[size] = {n: extract(best, self.data[n], size) for n in ("base", "val") if n in self.data}
            if "val" in self.data:
                sizes[_sizes(size)] = few_shot_accuracy(sets[size], "val", tasks, seed=1)
        chosen = max(
            sets, key=lambda z: _score({k: v["accuracy"] for k, v in sizes[_sizes(z)].items()}) if sizes else 0
        )
        save_checkpoint(self.folder / BEST, best, meta | {"test_size": chosen})
        final: dict[str, Any] = {"test_size": chosen, "val": sizes}
        splits = sets[chosen]
        if "novel" in self.data:
            splits["novel"] = extract(best, self.data["novel"], chosen)
            final["novel"] = few_shot_accuracy(splits, "novel", tasks)
        if features is not None:
            halves = {n: FeatureSplit(f.features.astype(np.float16), f.labels, f.classes) for n, f in splits.items()}
            feature_set(halves).save(features)
        record = {
            "settings": s.to_dict(),
            "backbone": {"dimension": best.dimension, "parameters": parameter_count(best)},
            "classes": {name: len(split.classes) for name, split in self.data.items()},
            "pictures": {name: len(split) for name, split in self.data.items()},
            "epochs": self.epoch,
            "steps": self.step,
            "seconds": self.spent(),
            "ended": self.ended,
            "best_epoch": meta.get("epoch"),
            "curve": self.curve,
            "validations": self.validations if "val" in self.data else [],
            "final": final,
            "environment": environment(self.world.device) | {"processes": self.world.size},
        }
        write_json(self.folder / RECORD, record)
        (self.folder / STATE).unlink(missing_ok=True)
        if log is not None:
            for name in ("val", "novel"):
                found = (sizes.get(_sizes(chosen)) if name == "val" else final.get("novel")) or {}
                for shot, v in found.items():
                    log(f"{name} {shot}-shot: {100 * v['accuracy']:.2f} ± {100 * v['ci95']:.2f}")
        return record

    # ---- state --------------------------------------------------------------------------------------------------

    def save_state(self) -> None:
        """All that a resumed training needs, as safetensors: weights, momentum, average, and where it stands."""
        tensors = {f"model.{k}": v for k, v in self.learner.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.backbone.state_dict().items()}
        for i, p in enumerate(self.learner.parameters()):
            if (momentum := self.optimizer.state.get(p, {}).get("momentum_buffer")) is not None:
                tensors[f"momentum.{i}"] = momentum
        header = {
            "epoch": self.epoch,
            "place": self.place,
            "step": self.step,
            "plan": self.plan,
            "sums": self.sums.tolist(),
            "curve": self.curve,
            "validations": self.validations,
            "elapsed": self.spent(),
            "step_seconds": self.step_seconds,
            "lost": self.lost,
            "processes": self.world.size,
            "ended": self.ended,
        }
        write_tensors(self.folder / STATE, tensors, header, key="training")

    def load_state(self) -> None:
        """Continue where `save_state` was called."""
        path = self.folder / STATE
        try:
            header, tensors = read_tensors(path, key="training", device=str(self.world.device))
            self.learner.load_state_dict(_under("model.", tensors))
            self.average.backbone.load_state_dict(_under("average.", tensors))
            for i, p in enumerate(self.learner.parameters()):
                if f"momentum.{i}" in tensors:
                    self.optimizer.state[p]["momentum_buffer"] = torch.empty_like(p).copy_(tensors[f"momentum.{i}"])
            self.epoch, self.place, self.step = header["epoch"], header["place"], header["step"]
            self.plan, self.ended = tuple(header["plan"]), header["ended"]
            self.sums = torch.tensor(header["sums"], device=self.world.device)
            self.curve, self.validations = header["curve"], header["validations"]
            self.elapsed, self.step_seconds, self.lost = header["elapsed"], header["step_seconds"], header["lost"]
            processes = header["processes"]
        except (FileFormatError, AttributeError, ValueError, KeyError, TypeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:160]
            raise FileFormatError(f"{path} cannot be continued ({reason}); train again in a new folder") from error
        if processes != self.world.size:
            raise InputError(
                f"this training ran in {processes} processes and now in {self.world.size}; resume with as many"
            )


def _mean(values: Tensor) -> Tensor:
    """The mean, 0 of nothing: when all pictures are mixed, none is left for the plain loss."""
    return values.sum() / max(len(values), 1)


def _sizes(size: int | tuple[int, ...]) -> str:
    """
    >>> _sizes(84), _sizes((84, 100))
    ('84', '84+100')
    """
    return str(size) if isinstance(size, int) else "+".join(map(str, size))


def _score(entry: Mapping[str, Any]) -> float:
    return float(entry["1"] + entry["5"])


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _check_settings(settings: TrainSettings) -> None:
    """The backbone exists and takes pictures of all the sizes that will come; nothing is computed."""
    with torch.device("meta"):
        net = make_backbone(settings.backbone, **settings.backbone_settings).eval()
        tests = [z for s in settings.test_sizes for z in (s if isinstance(s, tuple) else (s,))]
        for size in {settings.size, settings.store, *tests}:
            net(torch.zeros(1, net.in_channels, size, size))


def _check_data(data: Mapping[str, PixelSplit], settings: TrainSettings) -> None:
    """What would end a training hours later is refused at its start."""
    if "base" not in data:
        raise InputError("there is no base split to train on")
    base = data["base"]
    if len(base.classes) < 2:
        raise InputError("base has one class only; a classifier needs two or more")
    channels = settings.backbone_settings.get("in_channels", 3)
    for name, split in data.items():
        if split.pixels.shape[1] != channels:
            raise InputError(
                f"{name} has pictures of {split.pixels.shape[1]} channels, the backbone takes {channels} (in_channels)"
            )
    if "val" in data:
        task_shape(np.bincount(data["val"].labels.cpu().numpy(), minlength=len(data["val"].classes)))
    else:
        warnings.warn("no val split: the last weights are kept, not the best ones", FewcalWarning, stacklevel=3)


def _started_from(path: str | os.PathLike[str], wanted: Backbone) -> Backbone:
    backbone, _ = load_checkpoint(path, wanted.name)
    if backbone.settings != wanted.settings:
        raise InputError(f"{path} holds a {wanted.name} with {backbone.settings}, not with {wanted.settings}")
    return backbone


def _compile(backbone: Backbone) -> None:
    """Compile each stage; what happens between them stays as it is."""
    import torch._dynamo

    torch._dynamo.config.suppress_errors = True  # a stage that cannot be compiled runs uncompiled
    for stage in backbone.stages:
        stage.compile()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("TensorBoard logs need the package tensorboard: pip install 'fewcal[train]'") from error
    return SummaryWriter


def _read_record(path: Path) -> dict[str, Any]:
    return read_json(path, "train again in a new folder")
