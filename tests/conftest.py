"""Order, threads and shared fixtures of the tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

from browser import CHROMIUM, Browser
from fewcal._utils.parameters import parameter
from fewcal.heads import HEADS
from fewcal.heads.sgd import SGD
from fewcal.render.figures.style import save
from small_worlds import SmallData, make_world

# Started in the background, as some runners do, a process and its children are deaf to Ctrl-C, which tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tests are small and run side by side: more threads than cores make them many times slower.
# FEWCAL_TEST_THREADS=4 shows that no test depends on it.
THREADS = int(os.environ.get("FEWCAL_TEST_THREADS", "1"))
torch.set_num_threads(THREADS)
threadpool_limits(THREADS)
# A machine that is busy makes examples slow, which says nothing about them.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# The files that take longest, longest first: one that begins last would be waited for.
LONGEST = (
    *("apply/test_studio_browser.py", "paper/test_experiments.py", "tuning/test_workers.py", "test_docs.py"),
    *("evaluation/test_executors.py", "redteam/test_redteam.py", "cli/test_cli.py", "cli/test_streams.py"),
    *(
        "test_demo.py",
        "evaluation/test_evaluation.py",
        "render/test_figures.py",
        "render/test_page.py",
        "training/test_training.py",
    ),
    *("tuning/test_tuning.py", "paper/test_paper_report.py", "features/test_extractors.py", "report/test_report.py"),
    *("features/test_glyphs.py", "heads/test_heads.py", "estimators/test_saved.py", "test_api.py", "test_imports.py"),
    *("test_ops.py", "paper/test_measure.py", "test_presets.py"),
)


@pytest.hookimpl(trylast=True)  # after pytest's own order, by what tests share
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; the rest, and what is inside of a file, as it was."""
    here = Path(__file__).parent
    rank = {here / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same numbers in every run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def relu_world() -> SmallData:
    """Features ≥ 0 with exact zeros, more rows than features."""
    return make_world(1)


@pytest.fixture(scope="session")
def signed_world() -> SmallData:
    """Features of both signs, fewer rows than features."""
    return make_world(2, signed=True, dim=20, rows=(6, 12))


@pytest.fixture(scope="session", params=["relu, P>D", "signed, P<D"])
def world(request: pytest.FixtureRequest) -> SmallData:
    name = "relu_world" if request.param.startswith("relu") else "signed_world"
    found: SmallData = request.getfixturevalue(name)
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window; tests that need it are skipped where it is missing."""
    if CHROMIUM is None:
        pytest.skip("needs chromium (Debian: apt install chromium)")
    with Browser() as one:
        yield one


@pytest.fixture(scope="module")
def svg_alone() -> Iterator[None]:
    """Figures of the paper in one format of three, for the tests of one module: saving is most of a report's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fewcal.render.figures.save", partial(save, formats=["svg"]))
        yield


@dataclass(frozen=True)
class TwoEpochs(SGD):
    """Which numbers come out is not the question in tests of the paper's experiments; 200 epochs would take minutes."""

    epochs: int = parameter(2, "passes over the points", low=1, integer=True)


@pytest.fixture(scope="module")
def two_epochs() -> Iterator[None]:
    """The paper's head with two epochs instead of 200, for the tests of one module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(HEADS, "sgd", TwoEpochs)
        yield
