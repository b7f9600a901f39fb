"""Random numbers depend on (seed, task) alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fewcal._utils import randomness
from fewcal._utils.randomness import TaskRandom
from fewcal._utils.splitmix import mix

whole = st.integers(-(2**70), 2**70)


@given(st.lists(whole, min_size=1, max_size=4))
def test_mix_is_a_64_bit_number(parts: list[int]) -> None:
    assert 0 <= mix(*parts) < 2**64
    assert mix(*parts) == mix(*parts)


def test_mix_of_near_inputs_is_unrelated() -> None:
    values = [mix(seed, task) for seed in range(40) for task in range(40)]
    assert len(set(values)) == len(values)
    # Neighbours differ in about half of their bits.
    flips = [(mix(0, t) ^ mix(0, t + 1)).bit_count() for t in range(500)]
    assert 30 < sum(flips) / len(flips) < 34


@pytest.mark.parametrize("draw", ["normal", "uniform", "permutations"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_batches_do_not_matter(draw: str, size: int) -> None:
    tasks = [3, 9, 4, 1, 7]
    whole_batch = TaskRandom(5, tasks)
    at_once = [getattr(whole_batch, draw)(6, 3) for _ in range(2)]
    for begin in range(0, 5, size):
        part = TaskRandom(5, tasks[begin : begin + size])
        for turn in range(2):
            assert torch.equal(getattr(part, draw)(6, 3), at_once[turn][begin : begin + size])


def test_tasks_seeds_and_turns_differ() -> None:
    random = TaskRandom(0, [0, 1])
    first, second = random.normal(8), random.normal(8)
    other = TaskRandom(1, [0, 1]).normal(8)
    rows = [*first, *second, *other]
    assert all(not torch.equal(a, b) for i, a in enumerate(rows) for b in rows[:i])


def test_shapes_and_moments() -> None:
    random = TaskRandom(0, [0, 1])
    assert len(random) == 2
    z = random.normal(200, 100)
    assert z.shape == (2, 200, 100)
    assert z.mean(dim=(1, 2)).abs().max() < 5 / 20000**0.5
    assert (z.var(dim=(1, 2)) - 1).abs().max() < 5 * (2 / 20000) ** 0.5
    u = random.uniform(200, 100, dtype=torch.float64)
    assert u.dtype == torch.float64
    assert u.min() >= 0
    assert u.max() < 1
    assert (u.mean(dim=(1, 2)) - 0.5).abs().max() < 5 * (1 / 12 / 20000) ** 0.5
    assert random.permutations(7, 1)[:, 0].sort(dim=1).values.tolist() == [list(range(7))] * 2


def test_filling_a_view_draws_the_same_numbers() -> None:
    out = torch.zeros(2, 5, 4)
    TaskRandom(0, [0, 1]).fill_normal(out[:, 1:])
    assert torch.equal(out[:, 1:], TaskRandom(0, [0, 1]).normal(4, 4))
    assert not out[:, 0].any()


def test_streams_of_a_task_are_unrelated() -> None:
    first, second, next_seed = TaskRandom(0, [3]), TaskRandom(0, [3], stream=1), TaskRandom(1, [3])
    a, b, c = (r.normal(2000)[0] for r in (first, second, next_seed))
    for x, y in ((a, b), (a, c), (b, c)):
        assert abs(float(torch.corrcoef(torch.stack([x, y]))[0, 1])) < 0.1


def test_normal_numbers_made_of_bits_are_normal() -> None:
    z = TaskRandom(0).normal(400, 1000)[0].double()
    n = z.numel()
    assert n >= randomness.MIN_FROM_BITS
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(float((z**power).mean()) - expected) < 5 * (variance / n) ** 0.5, power
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > 1e-3
    # Independent of their neighbours in a row and in a column, and of the number that shares a draw of 64 bits.
    for a, b in ((z[:, :-1], z[:, 1:]), (z[:-1], z[1:]), (z[:, ::2], z[:, 1::2])):
        for f in (lambda v: v, torch.abs):
            both = torch.stack([f(a).flatten(), f(b).flatten()])
            assert abs(float(torch.corrcoef(both)[0, 1])) < 5 / a.numel() ** 0.5


@given(st.integers(1, 3), st.integers(1, 4 * randomness.MIN_FROM_BITS), st.booleans())
@settings(max_examples=20, deadline=None)
def test_a_view_of_any_kind_is_filled_with_the_same_numbers(tasks: int, numbers: int, strided: bool) -> None:
    want = TaskRandom(3, range(tasks)).normal(numbers)
    wide = torch.full((tasks, 2 * numbers), torch.nan)
    view = wide[:, ::2] if strided else wide[:, numbers:]
    assert torch.equal(TaskRandom(3, range(tasks)).fill_normal(view), want)
    assert int(wide.isnan().sum()) == tasks * numbers
