"""Every kind of file that fewcal reads: a sound sample, and how it is read.

A format is `sealed` if it carries checksums: then a damaged sample is refused, or what is read is what was written.
Of the others, tables and texts above all, a changed number is another number.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fewcal import FewShotClassifier
from fewcal.apply.studio import Studio
from fewcal.apply.studio.rescue import rescue
from fewcal.apply.studio.store import Edit, Found, ProjectStore
from fewcal.bank import BaseBank
from fewcal.episodes import Episodes, EpisodeSpec, sample_episodes
from fewcal.evaluation import Protocol, evaluate
from fewcal.evaluation.run_folder import Run, load_run
from fewcal.features import FeatureSet, load_split
from fewcal.features.backbones import load_checkpoint, make_backbone, save_checkpoint
from fewcal.features.extract import embed, extract
from fewcal.features.extractors import as_extractor
from fewcal.features.sources.pictures import find_pictures
from fewcal.features.sources.texts import Texts, find_texts
from fewcal.features.synthetic import make_features
from fewcal.params import GDCParams
from fewcal.presets import load_preset, save_preset
from fewcal.tuning import Objective, Search, make_objective
from fewcal.tuning.storage import require_optuna, storage_url
from fewcal.tuning.study import Session


@dataclass(frozen=True)
class Format:
    """`make(folder)` writes a sample and returns the file to damage; `read(folder)` gives something to compare."""

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    sealed: bool = False


def _digest(*parts: Any) -> str:
    h = hashlib.sha256()
    for part in parts:
        h.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode("utf-8", "surrogatepass"))
    return h.hexdigest()


def _features() -> FeatureSet:
    return make_features(base=4, val=0, novel=3, rows=8, dim=6)


def _split(extension: str) -> Format:
    def make(folder: Path) -> Path:
        file = folder / f"base.{extension}"
        split = _features().split("base")
        if extension != "plk":
            split.save(file)
            return file
        labels = split.require_labels()
        rows = {name: list(split.features[labels == i]) for i, name in enumerate(split.classes)}
        file.write_bytes(pickle.dumps(rows, 4))
        return file

    def read(folder: Path) -> str:
        return load_split(folder / f"base.{extension}").fingerprint()

    return Format(f"features .{extension}", make, read, sealed=extension == "safetensors")


def _make_bank(folder: Path) -> Path:
    base = _features().split("base")
    return BaseBank().fit(base.features, base.require_labels()).save(folder / "bank.safetensors")


def _read_bank(folder: Path) -> str:
    bank = BaseBank.load(folder / "bank.safetensors")
    rows = [bank.rows(i).numpy() for i in range(len(bank))]
    return _digest(bank.classes, bank.means.numpy(), bank.scatter.numpy(), *rows)


def _make_classifier(folder: Path) -> Path:
    base = _features().split("base")
    rows, labels = base.features, base.require_labels()
    return FewShotClassifier((rows, labels)).fit(rows[::4], labels[::4]).save(folder / "model.fewcal")


def _read_classifier(folder: Path) -> str:
    model = FewShotClassifier.load(folder / "model.fewcal")
    return _digest(model.classes_, model.predict_proba(_features().split("novel").features))


def _make_checkpoint(folder: Path) -> Path:
    torch.manual_seed(0)
    save_checkpoint(folder / "net.safetensors", make_backbone("conv4", channels=4, size=16), {"test_size": 16})
    return folder / "net.safetensors"


def _read_checkpoint(folder: Path) -> str:
    net, meta = load_checkpoint(folder / "net.safetensors")
    return _digest(net.settings, meta, *(t.numpy() for t in net.state_dict().values()))


_PROTOCOL = Protocol(way=2, query=3, tasks=12)


def _make_run(file: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        evaluate(["ncm"], _features(), _PROTOCOL, out=folder / "run")
        return folder / "run" / file

    return make


def _read_run(folder: Path) -> str:
    run = load_run(folder / "run")
    return _digest(run.protocol, run.class_names, run.classes, *run.correct.values())


def _make_block(folder: Path) -> Path:
    """A run that was stopped when its only block was done."""
    evaluate(["ncm"], _features(), _PROTOCOL, out=folder / "run")
    whole = load_run(folder / "run")
    with np.load(folder / "run" / "results.npz") as found:
        block = {name: found[name] for name in found.files}
    (folder / "run" / "blocks").mkdir()
    np.savez(folder / "run" / "blocks" / "00000000.npz", **block)
    (folder / "run" / "results.npz").unlink()
    (folder / "identity.json").write_text(json.dumps(whole.identity, default=str))
    return folder / "run" / "blocks" / "00000000.npz"


def _read_block(folder: Path) -> str:
    """Damaged blocks are computed again, so the result is always the same."""
    identity = json.loads((folder / "identity.json").read_text())
    with Run.open(folder / "run", identity, resume=True) as run:
        blocks = run.load_blocks(["ncm"], [(0, 12)])
    found = blocks.get(0)
    if found is None:
        return _read_run_anew()
    return _digest(found.classes, found.correct["ncm"])


def _read_run_anew() -> str:
    again = evaluate(["ncm"], _features(), _PROTOCOL)
    return _digest(again.classes, again.correct["ncm"])


def _make_preset(folder: Path) -> Path:
    save_preset(folder / "mine.json", GDCParams(k=3), "sample")
    return folder / "mine.json"


@cache
def _objective() -> Objective:
    return make_objective(_features(), protocol=_STUDY.search_tasks)


_STUDY = Search(way=3, query=2, tasks=4, split="novel").for_features(_features())


def _open_study(folder: Path, resume: bool) -> Any:
    return Session(_features(), _STUDY, "cpu", storage_url(folder, None), "fewcal").open(_objective(), resume)


def _make_study(folder: Path) -> Path:
    study = _open_study(folder, resume=False)
    for i in range(4):
        study.add_trial(require_optuna().trial.create_trial(value=float(i)))
    study._storage._backend.engine.dispose()  # what is written ahead goes into the file
    return folder / "study.db"


def _read_study(folder: Path) -> int:
    return len(_open_study(folder, resume=True).trials)


_LENGTH = as_extractor(lambda texts: [[float(len(t)), 1.0] for t in texts], name="length", kind="text")
_TEXTS = Texts([str(i) for i in range(9)], ["a", "b", "c"] * 3, None, "here", ["x" * i for i in range(1, 10)])


def _make_part(folder: Path) -> Path:
    def stop(done: int, total: int) -> None:
        if done >= 6:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        extract(_TEXTS, _LENGTH, folder / "x.npz", batch=3, workers=1, progress=stop)
    return folder / ".x.part" / "000000.npz"


def _read_part(folder: Path) -> str:
    extract(_TEXTS, _LENGTH, folder / "x.npz", batch=3, workers=1, resume=True)
    return load_split(folder / "x.npz").fingerprint()


def _make_tasks(folder: Path) -> Path:
    labels = _features().split("novel").require_labels()
    sample_episodes(labels, EpisodeSpec(way=2, shot=1, query=2), range(5)).save(folder / "tasks.npz")
    return folder / "tasks.npz"


def _read_tasks(folder: Path) -> str:
    tasks = Episodes.load(folder / "tasks.npz")
    return _digest(tasks.spec, tasks.support, tasks.query)


def _make_texts(extension: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        rows = [{"text": f"text {i}", "label": "ab"[i % 2]} for i in range(6)]
        file = folder / f"texts.{extension}"
        if extension == "csv":
            file.write_text("text,label\n" + "".join(f"{r['text']},{r['label']}\n" for r in rows))
        else:
            file.write_text("".join(json.dumps(r) + "\n" for r in rows))
        return file

    return make


def _make_picture(extension: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        from PIL import Image

        for name in "ab":
            (folder / "photos" / name).mkdir(parents=True)
            pixels = np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"0.{extension}")
        return folder / "photos" / "a" / f"0.{extension}"

    return make


def _read_pictures(folder: Path) -> str:
    mean = as_extractor(lambda batch: batch.mean(axis=(1, 2)).astype(np.float32), name="mean", size=8)
    return _digest(embed(find_pictures(folder / "photos"), mean, workers=1)[0])


def _make_pack(folder: Path) -> Path:
    from fewcal.features.sources.pictures import write_pack

    picture = _make_picture("png")(folder).read_bytes()
    write_pack(folder / "pack.npz", [picture] * 4, list("aabb"), [f"{i}.png" for i in range(4)])
    return folder / "pack.npz"


def _read_pack(folder: Path) -> str:
    mean = as_extractor(lambda batch: batch.mean(axis=(1, 2)).astype(np.float32), name="mean", size=8)
    return _digest(embed(find_pictures(folder / "pack.npz"), mean, workers=1)[0])


def _make_project(folder: Path) -> Path:
    store = ProjectStore(folder)
    store.add_items([Found(f"{i}.png") for i in range(60)])
    store.use_extractor("mean colour@1")
    store.set_features(dict(enumerate(np.random.default_rng(0).random((60, 16), np.float32), 1)), {})
    store.record(Edit("classes", classes={1: (None, "robin"), 2: (None, "wren")}))
    for i in range(1, 31):
        store.record(Edit(f"{i}.png → {i % 3}", labels={i: (None, i % 3)}))
    store.close()
    return store.path


def _read_project(folder: Path) -> str:
    """What a page asks for: items, classes, labels, features, undo."""
    Studio(folder).close()
    store = ProjectStore(folder)
    try:
        steps = [store.undo() for _ in range(3)] + [store.redo()]
        ids, x = store.features()
        return _digest(store.items(), store.classes(), store.labels(), ids, x, steps)
    finally:
        store.close()


def _read_rescued(folder: Path) -> str:
    rescue(folder)
    return _read_project(folder)


FORMATS = [
    *(_split(extension) for extension in ("npz", "parquet", "safetensors", "plk")),
    Format("bank", _make_bank, _read_bank, sealed=True),
    Format("classifier", _make_classifier, _read_classifier, sealed=True),
    Format("checkpoint", _make_checkpoint, _read_checkpoint, sealed=True),
    Format("run: config.json", _make_run("config.json"), _read_run, sealed=True),
    Format("run: results.npz", _make_run("results.npz"), _read_run, sealed=True),
    Format("run: a block", _make_block, _read_block, sealed=True),
    Format("preset", _make_preset, lambda folder: load_preset(folder / "mine.json").params),
    Format("study", _make_study, _read_study),
    Format("extraction: part", _make_part, _read_part, sealed=True),
    Format("list of tasks", _make_tasks, _read_tasks, sealed=True),
    Format("texts .csv", _make_texts("csv"), lambda f: _digest(find_texts(f / "texts.csv").texts)),
    Format("texts .jsonl", _make_texts("jsonl"), lambda f: _digest(find_texts(f / "texts.jsonl").texts)),
    Format("picture .png", _make_picture("png"), _read_pictures),
    Format("picture .jpg", _make_picture("jpg"), _read_pictures),
    Format("pack of pictures", _make_pack, _read_pack, sealed=True),
    Format("studio project", _make_project, _read_project),
    Format("studio project, rescued", _make_project, _read_rescued),
]
