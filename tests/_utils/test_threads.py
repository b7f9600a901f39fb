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

from fewcal._utils.threads import in_parallel, single_thread
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
def test_a_child_of_a_fork_computes_with_one_thread() -> None:
    """After OpenMP has started threads, which the child lacks and torch would wait for."""
    code = """
        import os, torch
        from fewcal._utils.threads import in_parallel
        torch.set_num_threads(2)
        x = torch.randn(600, 600)
        (x @ x).exp().sum()
        assert list(in_parallel(abs, [-1, -2])) == [1, 2]
        child = os.fork()
        if child == 0:
            (x @ x).exp().sum()
            os._exit(0 if torch.get_num_threads() == 1 and list(in_parallel(abs, [-3])) == [3] else 1)
        raise SystemExit(os.waitpid(child, 0)[1])
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=PATIENCE, check=False).returncode == 0


class TestSingleThread:
    def test_the_number_of_threads_is_one_inside_and_as_before_outside(self, threads: int) -> None:
        with single_thread(), single_thread():
            assert torch.get_num_threads() == 1
        with pytest.raises(ZeroDivisionError), single_thread():
            1 / 0  # noqa: B018
        assert torch.get_num_threads() == threads

    def test_other_threads_keep_theirs(self) -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(3)
        entered, leave, seen = threading.Barrier(2), threading.Event(), []

        def work() -> None:
            torch.get_num_threads()
            with single_thread():
                entered.wait(PATIENCE)
                leave.wait(PATIENCE)
            seen.append(torch.get_num_threads())

        other = threading.Thread(target=work)
        other.start()
        entered.wait(PATIENCE)
        assert torch.get_num_threads() == 3
        with single_thread():
            leave.set()
            other.join(PATIENCE)
        assert (torch.get_num_threads(), seen) == (3, [3])
        torch.set_num_threads(before)

    def test_a_thread_of_a_pool_does_not_limit_new_ones(self, threads: int) -> None:
        def work(_: int) -> int:
            with single_thread():
                return torch.get_num_threads()

        assert set(in_parallel(work, range(4), threads=2)) == {1}
        seen: list[int] = []
        other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        other.start()
        other.join(PATIENCE)
        assert seen == [threads]
