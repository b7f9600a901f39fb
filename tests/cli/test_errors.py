"""Every error of a command is one line on standard error with exit code 2, and nothing is printed."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fewcal import BaseBank, FewShotClassifier
from fewcal._utils.safetensors_io import read_tensors, write_tensors
from fewcal.cli import main
from fewcal.evaluation import Protocol, evaluate
from small_features import feature_set, save_features

EVALUATE = "evaluate features --way 3 --tasks 2 --query 5 --methods"
PREDICT = "predict --support support.npz --query support.npz --out o.csv"
CLASSIFY = "classify --support photos --query new"
BAD_FILE = "is not a readable safetensors file"

# A command and a part of its one line on standard error.
ERRORS = {
    # paths
    "evalute": "No such command 'evalute'",
    "evaluate": "Missing argument",
    "evaluate nowhere": "nowhere does not exist",
    "evaluate nowhere --resume": "nowhere does not exist",
    "tune nowhere --out study": "nowhere does not exist",
    "tune features": "Missing option '--out'",
    "features info nowhere": "nowhere does not exist",
    "features info empty": "empty has none of base, val and novel",
    "bank info nowhere.safetensors": "does not exist",
    "bank build empty --out x.safetensors --preset default": "empty holds no parts",
    "compare nowhere": "nowhere does not exist",
    "compare empty": "empty holds no run",
    "report nowhere": "nowhere does not exist",
    "report empty": "empty holds no run",
    "predict --support a.npz --query b.npz --out c.csv": "a.npz does not exist",
    "classify --support a --query b --out c.txt": "does not exist",
    "classify --support empty --query empty": "empty holds no pictures",
    "classify --support t.txt --query t.txt": "t.txt has no labels",
    "classify --support photos --query empty": "empty holds no pictures",
    "train nowhere --out x": "nowhere does not exist",
    "extract nowhere --out x": "nowhere does not exist",
    "extract empty --out x": "empty holds no pictures",
    "fit --support empty --out x.fewcal": "empty holds no pictures",
    "serve nowhere.fewcal": "does not exist",
    "model info nowhere.fewcal": "does not exist",
    "studio t.txt": "t.txt is no folder",
    "studio empty --bank nowhere": "nowhere does not exist",
    "studio empty --bank bank.safetensors --base-pictures empty": "empty holds no folders",
    "paper report empty": "empty holds no run of experiments",
    "paper run all --out x --features nowhere": "there is no folder nowhere",
    "paper run all --out x --features empty": "holds no features",
    "features inspect": "No such command 'inspect'",
    "compare": "Missing",
    "compare .": ". holds no run (no config.json)",
    "model info empty": "empty is a folder; give a file in it",
    "predict --support nolabels.npz --query support.npz --out o.csv": "nolabels.npz has no labels",
    f"{PREDICT} --bank nowhere": "nowhere does not exist; check the path",
    f"{PREDICT} --bank .": "no bank at .",
    # options
    f"{EVALUATE} ncm --resume": "--resume needs --out",
    f"{EVALUATE} ncm --task-list a.npz --save-tasks b.npz": "--task-list and --save-tasks exclude each other",
    f"{EVALUATE} ncm --task-list nowhere.npz": "nowhere.npz does not exist",
    f"{EVALUATE} ncm --nope": "No such option: --nope; see `fewcal evaluate --help`",
    f"{EVALUATE} ,": "no method in ','",
    "bank build features --out x.safetensors --drop-rows": "--drop-rows leaves one space",
    "bank build features --out x.safetensors --preset authors": "takes base rows as they are",
    "fit --support features/base.npz --out empty": "empty is a folder; name a file in it",
    "bank build features --out empty": "empty is a folder; name a file in it",
    "classify --support photos --query new --html empty": "empty is a folder; name a file in it",
    "features info features --json empty": "empty is a folder; name a file in it",
    "tune features --out x --on novel": "No such option: --on",
    "tune features --out x --novel --space paper/nothing --head sgd": "is unknown",
    # names
    "presets show autors": "preset 'autors' is unknown; did you mean 'authors'",
    f"{EVALUATE} gcd": "method 'gcd' is unknown; did you mean 'gdc'",
    f"{EVALUATE} gdc:papr": "preset 'papr' is unknown; did you mean 'paper'",
    f"{EVALUATE} gdc --set aplha1=3": "GDC has no parameter 'aplha1'; did you mean 'alpha1'",
    f"{EVALUATE} ncm --set qda.k=1": "--set names method 'qda'",
    f"{PREDICT} --set rigde=1": "method 'hgdc' has no parameter 'rigde'; did you mean 'ridge'",
    f"{PREDICT} --preset paper --set kk=1": "GDC has no parameter 'kk'; did you mean 'k'",
    f"{PREDICT} --preset paper --set random_state=1": "GDC has no parameter 'random_state'",
    f"{PREDICT} --set dc.k=1": "only parameters of hgdc can be set here",
    "presets show nope": "preset 'nope' is unknown",
    f"{EVALUATE} nope": "method 'nope' is unknown",
    f"{EVALUATE} gdc:nope": "preset 'nope' is unknown",
    f"{EVALUATE} gdc --preset nope": "preset 'nope' is unknown",
    f"{EVALUATE} gdc --set nope=1": "GDC has no parameter 'nope'",
    f"{EVALUATE} gdc --set head=nope": "head='nope' is unknown",
    f"{EVALUATE} gdc --set cov=nope": "cov='nope' is unknown",
    f"{EVALUATE} gdc --set kind=nope": "kind='nope' is unknown",
    f"{EVALUATE} gdc --set metric=nope": "metric='nope' is unknown",
    f"{EVALUATE} dc --set dc.nope=1": "method 'dc' has no parameter 'nope'",
    f"{EVALUATE} ncm --split nope": "there is no split 'nope'",
    f"{EVALUATE} ncm --device nope": "device='nope' is not a device",
    f"{EVALUATE} ncm --reference gdc": "--reference 'gdc' is not among the methods",
    "tune features --out x --space gdc --head nope": "head 'nope' is unknown",
    "tune features --out x --protocol nope": "protocol 'nope' is unknown",
    "tune features --out x --space nope": "space 'nope' is unknown",
    "tune features --out x --published": "no setting for space 'hgdc' and 1 shots",
    "tune features --out x --head lbfgs": "space 'hgdc' has no heads",
    "evaluate features --methods hgdc --set @nothing.json": "nothing.json",
    "tune features --out x --storage redis://x": "must be sqlite:///FILE or postgresql://",
    "bank build features --out x.safetensors --preset nope": "preset 'nope' is unknown",
    "bank build features --out x.safetensors --dtype int8": "dtype='int8'",
    f"{PREDICT} --preset nope": "preset 'nope' is unknown",
    f"{PREDICT} --set nope=1": "method 'hgdc' has no parameter 'nope'",
    "explain --support support.npz --bank bank.safetensors --preset nope": "preset 'nope' is unknown",
    f"{CLASSIFY} -e nope": "extractor 'nope' is unknown",
    f"{CLASSIFY} --preset nope": "preset 'nope' is unknown",
    f"{CLASSIFY} --set nope=1": "method 'hgdc' has no parameter 'nope'",
    f"{CLASSIFY} --device nope": "device='nope' is not a device",
    "fit --support photos --out x.fewcal -e nope": "extractor 'nope' is unknown",
    "fit --support photos --out x.fewcal --preset nope": "preset 'nope' is unknown",
    "fit --support support.npz --out x.fewcal --preset nope": "preset 'nope' is unknown",
    "extract photos --out x -e nope": "extractor 'nope' is unknown",
    "extract photos --out x --split nope": "--split 'nope' is unknown",
    "extract photos --out x --dtype int8": "dtype='int8'",
    "data prepare nope --from empty --out x": "data set 'nope' is unknown",
    "train photos --out x --backbone nope": "backbone 'nope' is unknown",
    "train photos --out x --set nope=1": "--set nope: there is no such setting",
    "train photos --out x --set backbone.nope=1": "backbone 'resnet12' has no setting 'nope'",
    "paper run nope --out x --features features": "experiment 'nope' is unknown",
    "studio empty -e nope": "extractor 'nope' is unknown",
    "studio empty --preset nope": "preset 'nope' is unknown",
    "serve model.fewcal --device nope": "device='nope' is not a device",
    # values
    f"{EVALUATE} gdc --set k=0": "k=0 is out of range",
    f"{EVALUATE} gdc --set k": "--set 'k' is not key=value",
    f"{EVALUATE} gdc --set =3": "--set '=3' is not key=value",
    f"{EVALUATE} ncm,ncm": "'ncm' is listed twice",
    f"{EVALUATE} ncm --preset paper": "--preset is for gdc",
    f"{EVALUATE} nomodule:Class": "method 'nomodule:Class' cannot be loaded",
    f"{EVALUATE} ncm --vary dirichlt=2": "--vary 'dirichlt=2' is unknown; did you mean 'dirichlet'",
    f"{EVALUATE} ncm --vary dirichlet": "--vary 'dirichlet' needs a number, or true",
    f"{EVALUATE} ncm --vary outliers=2": "outliers is 2; it must be a share",
    f"{EVALUATE} ncm --no-replacement --vary present=2": "replacement=False needs balanced tasks",
    "evaluate features --methods ncm --way 99": "99 ways need as many classes",
    "evaluate features --methods ncm --shot 0": "shot is 0",
    "evaluate features --methods ncm --shot 6": "6 shots and 15 queries need 21; lower --query or --shot",
    "evaluate features --methods ncm --way 1": "way is 1; it must be at least 2",
    "evaluate features --methods ncm --tasks 0": "tasks is 0",
    "evaluate features --methods ncm --tasks many": "Invalid value for '--tasks'",
    "evaluate features --methods ncm --seed -1": "seed is -1",
    "evaluate features --methods gdc --split base": "tasks are drawn from the base split itself",
    f"{EVALUATE} dc --set dc.k=many": "method 'dc': k='many' is out of range; use a number ≥ 1",
    f"{EVALUATE} gdc --preset paper --scheduler local:none": "neither an address nor local:N",
    "evaluate features --methods ncm --n-jobs 0": "n_jobs=0",
    "tune features --out x --way 99": "99 ways need as many classes",
    "tune features --out x --trials 0": "trials=0",
    "tune features --out x --workers 0": "workers=0",
    f"{PREDICT} --set scatter=0": "scatter=0 is out of range",
    f"{PREDICT} --reject 0.1 --preset paper": "leave out --preset or --reject",
    f"{PREDICT} --reject 1.5": "--reject 1.5 must lie between 0 and 1",
    "predict --support support.npz --query support.npz --out p.txt": "predictions are written as .parquet or .csv",
    f"{CLASSIFY} --preset paper --set k=0": "k=0 is out of range",
    f"{CLASSIFY} --reject 2": "--reject 2.0 must lie between 0 and 1",
    f"{CLASSIFY} --batch 0": "--batch",
    f"{CLASSIFY} --out x.txt": "predictions are written as .parquet or .csv",
    "train photos --out x --set lr=-1": "lr=-1 is out of range; use a number from 0 to 100",
    # files
    "bank info short.safetensors": BAD_FILE,
    "bank info t.txt": BAD_FILE,
    "bank info model.fewcal": "but not a fewcal bank",
    "bank info newer.safetensors": "has bank format 99",
    "model info short.fewcal": BAD_FILE,
    "model info changed.fewcal": "is damaged: tensor",
    "model info newer.fewcal": "has classifier format 99",
    "model info bank.safetensors": "is a fewcal bank, but not a fewcal classifier",
    "serve short.fewcal": BAD_FILE,
    "serve newer.fewcal": "has classifier format 99",
    "predict --model short.fewcal support.npz": BAD_FILE,
    "predict --model newer.fewcal support.npz": "has classifier format 99",
    "predict --model bank.safetensors support.npz": "is a fewcal bank, but not a fewcal classifier",
    "predict --model model.fewcal short.npz": "short.npz cannot be read as npz",
    "predict --model model.fewcal photos": "model.fewcal was fitted on features",
    "predict --support short.npz --query support.npz --out o.csv": "short.npz cannot be read as npz",
    "predict --support support.npz --query short.npz --out o.csv": "short.npz cannot be read as npz",
    "predict --support support.npz --query narrow.npz --out o.csv": "narrow.npz has 3 features and the model takes 12",
    f"{PREDICT} --bank short.safetensors": BAD_FILE,
    f"{CLASSIFY} --bank short.safetensors": BAD_FILE,
    "fit --support photos --out x.fewcal --bank short.safetensors": BAD_FILE,
    "fit --support short.npz --out x.fewcal": "short.npz cannot be read as npz",
    "studio empty --bank short.safetensors": BAD_FILE,
    f"{EVALUATE} gdc --preset no.json": "it is no preset file",
    f"{EVALUATE} ncm --task-list no.json": "is not a readable task list",
    f"{EVALUATE} ncm --out run": "run already holds a run",
    f"{EVALUATE} ncm --out damaged --resume": "damaged/config.json cannot be read",
    "compare damaged": "damaged/config.json cannot be read",
    "compare run --reference nope": "reference 'nope' is not among ncm",
    "report damaged": "damaged/config.json cannot be read",
    "paper list --run damaged": "damaged has no summary.json yet",
    f"{CLASSIFY} -e short.safetensors": BAD_FILE,
    f"{CLASSIFY} -e bank.safetensors": "not a backbone that fewcal saved",
    "extract photos --out x -e short.safetensors": BAD_FILE,
    "studio empty -e short.safetensors": BAD_FILE,
    "classify --support photos --query unreadable": "1 of 2 cannot be used",
    "fit --support unreadable --out x.fewcal": "0.png and 1 more in no class folder",
    "predict --model pictures.fewcal unreadable": "1.jpg cannot be read as a picture (the file is empty)",
}


def shortened(file: Path, to: Path) -> None:
    content = file.read_bytes()
    to.write_bytes(content[: len(content) // 2])


def make_files(place: Path) -> None:
    """The files of the commands: valid, empty, damaged, of a newer format."""
    features = feature_set()
    save_features(place / "features", **features.splits())
    (place / "empty").mkdir()
    (place / "t.txt").write_text("one\ntwo\n" * 20, encoding="utf-8")
    (place / "no.json").write_text("{", encoding="utf-8")
    for folder in ("photos/a", "photos/b", "new", "unreadable"):
        (place / folder).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(place / folder / "0.png")
    (place / "unreadable" / "1.jpg").touch()
    x, names = features.novel.features[[0, 1, 20, 21]], np.array(["a", "a", "b", "b"])
    np.savez(place / "support.npz", features=x, labels=[0, 0, 1, 1], classes=["a", "b"])
    np.savez(place / "nolabels.npz", features=x)
    np.savez(place / "narrow.npz", features=x[:, :3])
    shortened(place / "support.npz", place / "short.npz")
    BaseBank().fit(features.base.features, features.base.labels).save(place / "bank.safetensors")
    FewShotClassifier().fit(x, names).save(place / "model.fewcal")
    FewShotClassifier().fit(x, names).save(place / "pictures.fewcal", extractor="efficientnet-lite0@0")
    for name in ("bank.safetensors", "model.fewcal"):
        suffix = Path(name).suffix
        shortened(place / name, place / f"short{suffix}")
        header, tensors = read_tensors(place / name)
        write_tensors(place / f"newer{suffix}", tensors, header | {"version": 99})
    content = bytearray((place / "model.fewcal").read_bytes())
    content[-1] ^= 255
    (place / "changed.fewcal").write_bytes(content)
    evaluate(["ncm"], features, Protocol(way=3, tasks=2, query=5), out=place / "run")
    (place / "damaged").mkdir()
    (place / "damaged" / "config.json").write_text("{", encoding="utf-8")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors")
    make_files(folder)
    return folder


@pytest.mark.parametrize("command", ERRORS)
def test_a_wrong_command_is_refused_in_one_line(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    before = set(place.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(command))
    shown = capsys.readouterr()
    assert (stop.value.code, shown.out) == (2, "")
    *earlier, line = shown.err.splitlines()
    assert all(e.startswith("warning: ") or e.endswith(" tasks") for e in earlier)
    assert line.startswith("fewcal: ")
    assert ERRORS[command] in line
    assert set(place.rglob("*")) == before
