"""fewcal on a system without the names that Unix has alone: imported and used whole.

    python tests/portability.py

Modules of fewcal get stand-ins for `os`, `signal`, `sys` and `multiprocessing` that lack what Windows lacks, and no
`fcntl`, `resource`, `pwd`, … at all; libraries keep theirs. What runs in child processes is not covered.
"""

from __future__ import annotations

import builtins
import importlib
import multiprocessing
import os
import pkgutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = {"crypt", "curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
SIGNALS = {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"}
# Of `os`, after the pages of its names that are "Availability: Unix, not Windows".
OS = """
    register_at_fork fork forkpty getuid geteuid getgid getegid getgroups getlogin_r getpgid getpgrp setpgid
    setsid getsid setuid setgid killpg pread pwrite preadv pwritev posix_fallocate posix_fadvise posix_spawn
    posix_openpt sched_getaffinity sched_setaffinity sched_yield nice getloadavg getpriority uname statvfs
    fstatvfs mkfifo mknod chown lchown fchown fchmod chroot fchdir sysconf confstr sendfile splice wait wait3
    wait4 waitid openpty ttyname tcgetpgrp lockf memfd_create getrandom sync fdatasync ctermid O_NONBLOCK
    O_NOFOLLOW O_DIRECTORY O_CLOEXEC O_SYNC O_DSYNC O_NOCTTY WNOHANG WIFSIGNALED WIFEXITED WEXITSTATUS WTERMSIG
""".split()  # noqa: SIM905
HIDDEN: dict[str, Callable[[str], bool]] = {
    "os": OS.__contains__,
    "signal": lambda name: (
        (name.startswith("SIG") and name not in SIGNALS)
        or name
        in {"alarm", "setitimer", "getitimer", "pause", "pthread_kill", "pthread_sigmask", "siginterrupt", "sigwait"}
    ),
    "sys": lambda name: False,
    "multiprocessing": lambda name: False,
}


def kill(pid: int, number: int) -> None:
    assert number != 0, "os.kill(pid, 0) ends a process on Windows"
    os.kill(pid, number)


def get_context(method: str | None = None) -> Any:
    assert method in (None, "spawn"), f"no {method} on Windows"
    return multiprocessing.get_context("spawn")


CHANGED: dict[str, dict[str, object]] = {
    "os": {"name": "nt", "kill": kill},
    "sys": {"platform": "win32"},
    "multiprocessing": {"get_context": get_context, "get_all_start_methods": lambda: ["spawn"]},
}


class StandIn(ModuleType):
    """A module without some of its names, and with others changed; what is set on it is set on the module."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module.__name__)
        vars(self)["_module"] = module

    def __getattr__(self, name: str) -> Any:
        if HIDDEN[self.__name__](name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} on this system")
        return CHANGED.get(self.__name__, {}).get(name) or getattr(self._module, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._module, name, value)


STAND_INS = {module.__name__: StandIn(module) for module in (os, signal, sys, multiprocessing)}
plain_import = builtins.__import__


def limited_import(name: str, globals: Any = None, *rest: Any, **more: Any) -> Any:
    """As Windows has it for modules of fewcal, and as ever for others."""
    if str((globals or {}).get("__name__")).partition(".")[0] == "fewcal":
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r} on this system", name=name)
        if name in STAND_INS:
            return STAND_INS[name]
    return plain_import(name, globals, *rest, **more)


def import_everything() -> int:
    """Import every module of fewcal; return how many there are."""
    package = importlib.import_module("fewcal")
    names = [found.name for found in pkgutil.walk_packages(package.__path__, "fewcal.")]
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:  # an extra that is not installed here
            if str(error.name).partition(".")[0] in MODULES | {"None", "fewcal"}:
                raise
    return len(names)


def command(*words: object) -> None:
    """Run a command line; it must end well."""
    from fewcal.cli import main

    try:
        main([str(word) for word in words])
    except SystemExit as end:
        if end.code:
            raise


def use_python(folder: Path) -> None:
    """Banks, classifiers with every head and their files, the sampler, a run, the studio."""
    import numpy as np

    from fewcal import BaseBank, FewShotClassifier, GDCClassifier, GDCSampler
    from fewcal.apply.studio.project import Studio, StudioSettings
    from fewcal.evaluation import Protocol, evaluate
    from fewcal.features.io.unpickle import limit
    from small_features import feature_set
    from studio_project import COLOURS, colour_extractor, write_picture

    data = feature_set()
    data.save(folder / "data")
    x, y = data.novel.features, data.novel.require_labels()
    bank = BaseBank().fit(data.base.features, data.base.require_labels())
    bank = BaseBank.load(bank.save(folder / "bank.safetensors"))
    few = np.flatnonzero(np.arange(len(y)) % 20 < 2)
    settings: list[dict[str, Any]] = [{"head": "sgd"}, {"head": "lbfgs"}, {"head": "closed_form"}, {"preset": "dc"}]
    for classifier in (FewShotClassifier(bank), FewShotClassifier(), *(GDCClassifier(bank, **own) for own in settings)):
        classifier.fit(x[few], y[few])
        again = type(classifier).load(classifier.save(folder / "c.fewcal"))
        assert np.array_equal(again.predict(x), classifier.predict(x))
    GDCSampler().fit_resample(np.abs(x[:30]), y[:30])
    evaluate(["hgdc", "ncm"], data, Protocol(tasks=8, query=3), out=folder / "run", n_jobs=2)
    limit(1000, 10)
    for name, colour in COLOURS.items():
        for i in range(6):
            for of in ("pictures", "train/base"):
                write_picture(folder / of / name / f"{i}.png", colour, i)
    studio = Studio(folder / "pictures", StudioSettings(extractor=colour_extractor()))
    studio.start()
    studio.take_folders()
    studio.close()


def use_commands(folder: Path) -> None:
    """The command line, on what `use_python` has left in `folder`."""
    data, novel, val = folder / "data", folder / "data" / "novel.npz", folder / "data" / "val.npz"
    command("bank", "build", data / "base.npz", "--out", folder / "b.safetensors", "-q")
    command("fit", "--support", novel, "--out", folder / "model.fewcal", "-q")
    command("predict", "--support", novel, "--query", val, "--out", folder / "p.csv", "-q")
    command("evaluate", data, "--methods", "hgdc,ncm", "--tasks", 8, "--query", 3, "--out", folder / "again", "-q")
    command("report", folder / "run", folder / "again", "--out", folder / "report.html", "-q")
    command("tune", data, "--trials", 2, "--tasks", 5, "--query", 5, "--out", folder / "study", "-q")
    pictures = folder / "pictures"
    command("extract", pictures, "--out", folder / "features", "--split", "base", "-q")
    command("classify", "--support", pictures, "--query", pictures / "red", "--html", folder / "sheet.html", "-q")
    small = ("--backbone", "conv4", "--size", 16, "--epochs", 1, "--mixup-epochs", 0)
    command("train", folder / "train", *small, "--out", folder / "trained", "-q")


def main() -> None:
    """Import and use fewcal on the emulated system."""
    builtins.__import__ = limited_import
    warnings.simplefilter("ignore")
    print(f"{import_everything()} modules can be imported")
    with tempfile.TemporaryDirectory() as folder:
        use_python(Path(folder))
        use_commands(Path(folder))
    print("all of them work")


if __name__ == "__main__":
    main()
