"""Memo: one answer for all who ask, order of last use, copies without derived data."""

from __future__ import annotations

import copy
import pickle
import threading

import torch

from fewcal._utils.memo import Memo, tensor_bytes


def test_a_value_is_made_once() -> None:
    memo, made = Memo(), []
    values = [memo.get("a", lambda: made.append(1) or torch.ones(2)) for _ in range(3)]
    assert len(made) == 1
    assert all(v is values[0] for v in values)


def test_none_is_a_value() -> None:
    memo, made = Memo(), []
    for _ in range(2):
        assert memo.get("nothing", lambda: made.append(1)) is None
    assert len(made) == 1


def test_asking_whether_changes_nothing() -> None:
    memo = Memo()
    assert "a" not in memo
    memo.get("a", int)
    memo.get("b", int)
    assert "a" in memo
    assert list(memo) == ["a", "b"]


def test_the_last_used_is_the_last() -> None:
    memo = Memo()
    for key in "abca":
        memo.get(key, str)
    assert list(memo) == ["b", "c", "a"]
    memo.forget("c")
    memo.forget("never there")
    assert list(memo) == ["b", "a"]
    assert len(memo) == 2


def test_a_value_that_could_not_be_made_is_asked_for_again() -> None:
    memo = Memo()
    for _ in range(2):
        try:
            memo.get("a", lambda: 1 // 0)
        except ZeroDivisionError:
            assert "a" not in memo
    assert memo.get("a", lambda: 5) == 5


def test_one_value_may_need_another() -> None:
    memo = Memo()
    assert memo.get("outer", lambda: memo.get("inner", lambda: 2) + 1) == 3
    assert list(memo) == ["inner", "outer"]


def test_threads_get_one_answer() -> None:
    memo, made, inside = Memo(), [], threading.Event()

    def make() -> object:
        made.append(1)
        inside.wait(5)
        return object()

    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(memo.get("a", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    inside.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_copies_and_pickles_are_empty() -> None:
    memo = Memo()
    memo.get("x", lambda: threading.Lock())  # which could not be pickled
    for again in (pickle.loads(pickle.dumps(memo)), copy.copy(memo), copy.deepcopy(memo)):
        assert not len(again)
        assert again.get("x", lambda: 1) == 1
    assert len(memo) == 1


def test_bytes_count_each_storage_once() -> None:
    memo = Memo()
    x = memo.get("x", lambda: torch.zeros(10))
    memo.get("views", lambda: (x[:5], [x.view(2, 5)]))
    memo.get("name", lambda: "text")
    assert memo.nbytes == 40
    assert tensor_bytes([memo, x, torch.zeros(3, dtype=torch.float64)]) == 64


def test_the_last_used_can_be_kept_alone() -> None:
    memo = Memo()
    for key in "abcad":
        memo.get(key, str)
    memo.keep_last(2)
    assert list(memo) == ["a", "d"]
