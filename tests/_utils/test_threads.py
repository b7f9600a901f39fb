"""Pieces of work side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator

import pytest
import torch

from fewcal._utils.threads import in_parallel, without_gil
from limits import PATIENCE


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_order_from_threads_that_torch_does_not_share(threads: int) -> None:
    def one(i: int) -> tuple[int, int, str]:
        return i, torch.get_num_threads(), threading.current_thread().name

    found = list(in_parallel(one, range(20)))
    assert [i for i, _, _ in found] == list(range(20))
    assert {inside for _, inside, _ in found} == {1}
    assert (threading.current_thread().name in {name for _, _, name in found}) == (threads == 1)
    assert torch.get_num_threads() == threads
    assert len({name for _, _, name in in_parallel(one, range(20), threads=1)}) == 1
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert seen == [threads], "threads that begin later have the number that was set before"


def test_an_error_of_a_piece_comes_out(threads: int) -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_parallel(lambda i: 1 / i, [1, 0, 2]))
    assert list(in_parallel(lambda i: i, [1, 2])) == [1, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_makes_threads_of_its_own() -> None:
    code = """
        import os, torch
        from fewcal._utils.threads import in_parallel
        torch.set_num_threads(2)
        assert list(in_parallel(abs, [-1, -2])) == [1, 2]
        child = os.fork()
        if child == 0:
            os._exit(0 if list(in_parallel(abs, [-3])) == [3] else 1)
        raise SystemExit(os.waitpid(child, 0)[1])
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=PATIENCE, check=False).returncode == 0


def _counted(x: torch.Tensor, steps: int) -> torch.Tensor:
    for _ in range(steps):
        x = x + 1
    return x


def _unreadable(x: torch.Tensor) -> object:
    return {type(x): lambda: x}  # nothing that TorchScript knows


def test_without_gil_gives_the_same_by_torchscript_or_as_it_is() -> None:
    assert without_gil(_counted) is without_gil(_counted)
    assert without_gil(_counted)(torch.zeros(2), 3).tolist() == [3.0, 3.0]
    assert without_gil(_unreadable) is _unreadable
