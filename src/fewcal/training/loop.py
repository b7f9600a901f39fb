"""The training loop: two stages, schedules by epochs or by the clock, validation, and exact resume.

The S2M2 recipe (Mangla et al. Charting the right manifold: manifold mixup for few-shot learning. WACV 2020):

- stage 1: every picture is turned by 0, 90, 180 or 270 degrees; loss = class + rotation;
- stage 2: half of a batch is upright and mixed at a random layer, the other half as in stage 1;
  loss = mixup + ½ (class + rotation).

With `turns="all"`, as in the authors' code, every picture of stage 1 comes at all four angles; in stage 2 all of a
batch is mixed, and a quarter of it comes at all four angles beside that.

Nothing random has a state: the order of pictures is a function of (seed, epoch), augmentation and mixing of
(seed, step, process). A resumed training therefore continues exactly, from any step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fewcal._utils.randomness import mix
from fewcal._utils.types import JSON, JSONObject, Log, Progress, StrPath
from fewcal.errors import InputError
from fewcal.features.backbone_networks import Backbone
from fewcal.features.backbones import load_checkpoint, make_backbone, save_checkpoint
from fewcal.training.augment import augment, rotate
from fewcal.training.data import PixelSplit
from fewcal.training.distributed import ProcessGroup
from fewcal.training.model import Average, DropBlock, Dropout, Learner, Mixing, chained
from fewcal.training.settings import TrainSettings
from fewcal.training.state import BEST, save_state
from fewcal.training.validate import extract, few_shot_accuracy

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_ORDER, _STEP = 1, 2  # streams of random numbers
_MEANS = 4  # loss, class loss, rotation loss and accuracy of an epoch
_CENTRE_ROWS = 2000  # base pictures that suffice for the centre of the features during training


class Training:
    """One training in progress; see `train`."""

    def __init__(
        self,
        data: Mapping[str, PixelSplit],
        settings: TrainSettings,
        folder: Path,
        group: ProcessGroup,
        initial: StrPath | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.folder, self.group, self.clock = settings, folder, group, clock
        self.started = clock()
        self.data = {name: split.to(group.device) for name, split in data.items()}
        s, rows = settings, len(data["base"])
        self.batch = min(s.batch, rows)
        self.steps = rows // self.batch
        if self.batch // group.size < 2:
            raise InputError(f"a batch of {self.batch} is too small for {group.size} processes; give each at least 2")
        with torch.random.fork_rng(devices=[]):  # layers are initialised by torch's own generator
            torch.manual_seed(s.seed)
            backbone = _started_from(initial, make_backbone(s.backbone, **s.backbone_settings))
            learner = Learner(backbone, len(data["base"].classes), s.classifier, s.scale)
        self.learner = learner.to(group.device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.average = Average(self.learner.backbone, s.average)
        parameters = self.learner.parameters()
        if s.optimizer == "adam":
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(parameters, s.lr, weight_decay=s.weight_decay)
        else:
            self.optimizer = torch.optim.SGD(
                parameters, s.lr, s.momentum, weight_decay=s.weight_decay, nesterov=s.momentum > 0
            )
        self.dropout = Dropout(self.learner.backbone, s.dropout) if s.dropout > 0 else None
        torch.backends.cudnn.benchmark = group.device.type == "cuda"  # every batch has the same shape
        if s.compile:
            _compile(self.learner.backbone)
        self.model: nn.Module = self.learner
        if group.size > 1:
            where = [group.device] if group.device.type == "cuda" else None
            self.model = nn.parallel.DistributedDataParallel(self.learner, device_ids=where)
        # Where the training stands; all of it goes into the saved state.
        self.epoch = self.place = self.step = 0
        self.plan = (0.0, 0.0)  # progress at the start and the end of this epoch
        self.sums = torch.zeros(_MEANS + 1, device=group.device)
        self.curve: list[JSONObject] = []  # a row for each epoch
        self.validations: list[JSONObject] = []  # accuracy under "1" and "5" by shots
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
        self.plan = tuple(self.group.agreed([begin, end]))  # type: ignore[assignment]

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
        if self.group.device.type == "cuda":
            torch.cuda.synchronize(self.group.device)

    # ---- steps --------------------------------------------------------------------------------------------------

    def order(self) -> Tensor:
        """The pictures in the order of this epoch, the same in every process."""
        generator = torch.Generator().manual_seed(mix(self.settings.seed, _ORDER, self.epoch) >> 1)
        return torch.randperm(len(self.data["base"]), generator=generator).to(self.group.device)

    def train_step(self, rows: Tensor, progress: float) -> None:
        """One step of SGD on these pictures, of which every process takes its share."""
        s, device = self.settings, self.group.device
        base, mine = self.data["base"], rows[self.group.rank :: self.group.size]
        seed = mix(s.seed, _STEP, self.step, self.group.rank) >> 1
        generator = torch.Generator(device).manual_seed(seed)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate_at(progress)
        x = augment(base.pixels[mine], s.size, generator, min_area=s.min_area, jitter=s.jitter, erase=s.erase)
        stages = len(self.learner.backbone.stages)
        drop = DropBlock(s.dropblock, stages, generator) if s.dropblock > 0 else None
        if self.dropout is not None:
            self.dropout.generator = generator
        mixing, turns = None, self._draw_turns(len(mine), generator)
        if self.mixup_at(progress):
            chance = np.random.default_rng(seed)
            mixed = len(mine) if s.rotation == 0 or s.turns == "all" else len(mine) // 2
            shuffled = torch.randperm(mixed, generator=generator, device=device)
            weight = float(chance.beta(s.mixup_alpha, s.mixup_alpha))
            mixing = Mixing(int(chance.integers(stages + s.mixup_last)), weight, shuffled)
            turns[:mixed] = 0
        x, labels, turns, mixed = self._with_turns(x, base.labels[mine], turns, 0 if mixing is None else mixing.rows)
        with torch.autocast(device.type, torch.bfloat16, enabled=s.amp and device.type == "cuda"):
            logits, rotation = self.model(x.contiguous(memory_format=torch.channels_last), chained(mixing, drop))
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

    def _draw_turns(self, count: int, generator: Generator) -> Tensor:
        """Return quarter turns `(count,)`: 0 for all pictures where the other turns are added later."""
        s, device = self.settings, self.group.device
        several = s.rotation > 0 and s.turns == "one"
        turns = torch.randint(0, 4 if several else 1, (count,), generator=generator, device=device)
        if s.upright > 0:
            turns[torch.rand(count, generator=generator, device=device) < s.upright] = 0
        return turns

    def _with_turns(self, x: Tensor, labels: Tensor, turns: Tensor, mixed: int) -> tuple[Tensor, Tensor, Tensor, int]:
        """Return pictures, labels and turns as they go through the network, and how many come first to be mixed."""
        if self.settings.turns == "one" or self.settings.rotation == 0:
            return rotate(x, turns), labels, turns, mixed
        count = len(x) // 4 if mixed else len(x)
        turns = torch.arange(4, device=x.device).repeat_interleave(count)
        turned = rotate(x[:count].repeat(4, 1, 1, 1), turns)
        labels = torch.cat([labels[:mixed], labels[:count].repeat(4)])
        return torch.cat([x[:mixed], turned]), labels, torch.cat([turns.new_zeros(mixed), turns]), mixed

    # ---- the whole ----------------------------------------------------------------------------------------------

    def run(
        self,
        save_seconds: float,
        writer: SummaryWriter | None = None,
        report: Progress | None = None,
        log: Log | None = None,
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
                if report is not None and self.group.first and self.place % every == 0:
                    report(min(int(1000 * progress), 999), 1000)
                if self.group.first and self.place < self.steps and self.clock() - saved >= save_seconds:
                    save_state(self)
                    saved = self.clock()
            self._end_of_epoch(writer, log)
            if self.settings.minutes is not None and self.place > first:
                self._wait()
                self.step_seconds = (self.clock() - epoch_begun) / (self.place - first)
            self.epoch, self.place = self.epoch + 1, 0
            if self.group.first and (self.unsaved or self.clock() - saved >= save_seconds):
                save_state(self)
                saved, self.unsaved = self.clock(), False
        if self.group.first and (not self.validations or self.validations[-1]["step"] < self.step):
            self.validate(2 if self.mixup_at(self.progress_at(self.place)) else 1, writer)
        if report is not None and self.group.first:
            report(1000, 1000)
        if writer is not None:
            writer.close()

    def _end_of_epoch(self, writer: SummaryWriter | None, log: Log | None) -> None:
        means = self.group.mean(self.sums[:-1] / self.sums[-1]).tolist()
        self.sums.zero_()
        begin, end = self.plan
        stage, loss, by_class, by_turn, right = 2 if self.mixup_at(begin) else 1, *means
        row: JSONObject = {"epoch": self.epoch, "stage": stage, "rate": self.rate_at(begin), "loss": loss}
        row |= {"class_loss": by_class, "rotation_loss": by_turn, "accuracy": right}
        self.curve.append(row)
        if not math.isfinite(row["loss"]):
            raise InputError(f"the loss is {row['loss']} in epoch {self.epoch}; train with a lower learning rate (lr)")
        if writer is not None:
            for key, value in row.items():
                if key not in ("epoch", "stage"):
                    writer.add_scalar(f"train/{key}", value, self.step)
        s = self.settings
        stop = end >= 1 - 1e-9
        due = stop or int(end * s.validations + 1e-9) > int(begin * s.validations + 1e-9)
        if due and self.group.first:
            self.validate(row["stage"], writer)
        if self.group.first and s.patience and row["stage"] == 2 and self._stale() >= s.patience:
            stop, self.ended = True, "patience"
        if self.group.agreed([float(stop)])[0]:
            self.ended = self.ended or "schedule"
        if log is not None and self.group.first:
            text = f"epoch {self.epoch}: stage {row['stage']}, loss {row['loss']:.3f}, accuracy {row['accuracy']:.3f}"
            if due and "val" in self.data:
                v = self.validations[-1]
                text += f", validation {100 * v['1']:.2f} / {100 * v['5']:.2f}"
            log(f"{text}, {self.spent():.0f} s")

    def validate(self, stage: int, writer: SummaryWriter | None = None) -> None:
        """Few-shot accuracy of the present weights on the validation classes; the best ones are kept."""
        if "val" in self.data:
            base = self.data["base"].thinned(_CENTRE_ROWS)
            sets = {
                name: extract(self.average.backbone, split, self.settings.store, amp=self.settings.amp)
                for name, split in (("base", base), ("val", self.data["val"]))
            }
            method = "simpleshot" if self.settings.selection == "centroid" else "cosine"
            found = few_shot_accuracy(sets, "val", self.settings.tasks, method=method)
            scores = {shot: found[shot]["accuracy"] for shot in found}
            if writer is not None:
                for shot, value in scores.items():
                    writer.add_scalar(f"validation/{shot}-shot", value, self.step)
        else:
            scores = {"1": 0.0, "5": 0.0}
        entry = {"epoch": self.epoch, "step": self.step, "stage": stage} | scores
        # Without validation classes the latest weights are the best.
        better = "val" not in self.data or all(self._score(entry) > self._score(v) for v in self.validations)
        self.validations.append(entry)
        if better:
            self.unsaved = True
            meta: dict[str, JSON] = {"epoch": self.epoch, "size": self.settings.size, "test_size": self.settings.store}
            if "val" in self.data:
                meta["validation"] = scores
            save_checkpoint(self.folder / BEST, self.average.backbone, meta)

    def _stale(self) -> int:
        """Validations of stage 2 since the best one of all."""
        best = max(range(len(self.validations)), key=lambda i: (self._score(self.validations[i]), -i), default=0)
        return sum(v["stage"] == 2 for v in self.validations[best + 1 :])

    def _score(self, entry: JSONObject) -> float:
        return float(entry["1"] + (entry["5"] if self.settings.selection == "centroid" else 0.0))


def _mean(values: Tensor) -> Tensor:
    """The mean, 0 of nothing: when all pictures are mixed, none is left for the plain loss."""
    return values.sum() / max(len(values), 1)


def _started_from(path: StrPath | None, wanted: Backbone) -> Backbone:
    if path is None:
        return wanted
    backbone, _ = load_checkpoint(path, wanted.name)
    if backbone.settings != wanted.settings:
        raise InputError(f"{path} holds a {wanted.name} with {backbone.settings}, not with {wanted.settings}")
    return backbone


def _compile(backbone: Backbone) -> None:
    """Compile each stage; what happens between them stays as it is."""
    import torch._dynamo as dynamo  # private of torch: the only switch for this

    dynamo.config.suppress_errors = True  # a stage that cannot be compiled runs uncompiled
    for stage in backbone.stages:
        stage.compile()
