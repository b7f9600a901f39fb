"""Episodes: the same task whatever the batch, fair draws, no row on both sides, and clear refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fewcal.episodes import Episodes, EpisodeSpec, labels_fingerprint, sample_episodes
from fewcal.errors import FileFormatError, InputError

PINNED = {
    "classes": [[10, 0, 15, 12, 16], [4, 15, 0, 16, 17]],
    "support": [[6438, 354, 9169, 7727, 9766], [2487, 9127, 464, 9984, 10358]],
    "query": [2996, 2417],
    "dealt": [7321, 857, 5326, 11559, 245],
}


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, EpisodeSpec]:
    """Labels of unequal classes with arbitrary values in arbitrary order, and a spec they can serve."""
    spec = EpisodeSpec(
        way=draw(st.integers(2, 4)),
        shot=draw(st.integers(1, 3)),
        query=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 2**63 - 1)),
        replacement=draw(st.booleans()),
    )
    values = draw(st.lists(st.integers(-50, 50), min_size=spec.way, max_size=7, unique=True))
    extra = draw(st.lists(st.integers(0, 9), min_size=len(values), max_size=len(values)))
    labels = np.repeat(values, np.array(extra) + spec.rows_per_class)
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(labels), spec


@given(problems())
@settings(max_examples=60, deadline=None)
def test_every_task_is_well_formed(problem: tuple[np.ndarray, EpisodeSpec]) -> None:
    labels, spec = problem
    tasks = sample_episodes(labels, spec, range(20))
    rows = np.concatenate([tasks.support, tasks.query], axis=2)
    assert rows.shape == (20, spec.way, spec.shot + spec.query)
    assert (labels[rows] == tasks.classes[:, :, None]).all()
    for task in range(20):
        assert len(np.unique(rows[task])) == rows[task].size
        assert len(np.unique(tasks.classes[task])) == spec.way
    assert {a.dtype for a in (tasks.task_ids, tasks.classes, tasks.support, tasks.query)} == {np.dtype(np.int64)}


@given(problems(), st.lists(st.integers(0, 60), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_a_task_depends_on_seed_and_index_alone(problem: tuple[np.ndarray, EpisodeSpec], ids: list[int]) -> None:
    labels, spec = problem
    some = sample_episodes(labels, spec, ids)  # first, so that no cache of the whole list can help
    whole = sample_episodes(labels, spec, range(61))
    for name in ("classes", "support", "query"):
        assert np.array_equal(getattr(some, name), getattr(whole, name)[ids])


def test_the_tasks_of_a_seed_never_change() -> None:
    # Published task indices must stay valid: a change of these numbers is a break of the format.
    labels = np.repeat(np.arange(20), 600)
    task = sample_episodes(labels, EpisodeSpec(query=2, seed=7), [0, 1_000_000])
    assert task.classes.tolist() == PINNED["classes"]
    assert task.support[..., 0].tolist() == PINNED["support"]
    assert task.query[1, 0].tolist() == PINNED["query"]
    dealt = sample_episodes(labels, EpisodeSpec(query=2, seed=7, replacement=False), [300])
    assert dealt.support[0, :, 0].tolist() == PINNED["dealt"]


@pytest.mark.parametrize("query", [15, 200])  # below and above the limit of the shuffle
def test_classes_and_rows_are_drawn_evenly(query: int) -> None:
    labels = np.repeat(np.arange(8), 240)
    count = 4000 if query < 100 else 400
    tasks = sample_episodes(labels, EpisodeSpec(way=3, query=query, seed=1), range(count))
    for drawn, bins in ((tasks.classes[:, 0], 8), (tasks.classes[:, 2], 8), (tasks.support % 240, 24)):
        counts = np.bincount(drawn.reshape(-1) * bins // (8 if bins == 8 else 240), minlength=bins)
        assert stats.chisquare(counts).pvalue > 1e-4
    # Every ordered choice of classes, not only every class: 8 * 7 ordered pairs.
    pairs = np.bincount(tasks.classes[:, 0] * 8 + tasks.classes[:, 1], minlength=64).reshape(8, 8)
    assert (np.diag(pairs) == 0).all()
    assert stats.chisquare(pairs[~np.eye(8, dtype=bool)]).pvalue > 1e-4


def test_seeds_and_neighbouring_tasks_are_unrelated() -> None:
    labels = np.repeat(np.arange(10), 30)
    lists = [sample_episodes(labels, EpisodeSpec(way=2, query=5, seed=s), range(2000)) for s in (0, 1)]
    same = (lists[0].classes == lists[1].classes).mean()
    next_same = (lists[0].classes[1:, 0] == lists[0].classes[:-1, 0]).mean()
    assert abs(same - 0.1) < 0.025
    assert abs(next_same - 0.1) < 0.035


def test_without_replacement_no_row_returns_within_a_pass() -> None:
    sizes = np.array([40, 25, 33, 60, 47])
    labels = np.repeat(np.arange(5), sizes)
    spec = EpisodeSpec(way=2, shot=1, query=3, seed=3, replacement=False)
    tasks = sample_episodes(labels, spec, range(300))
    rows = np.concatenate([tasks.support, tasks.query], axis=2)
    # Replay the rule: a new pass begins exactly when a task's class has fewer than K + Q rows left.
    used: set[int] = set()
    hands = np.zeros(5, int)
    passes = 1
    for task in range(300):
        classes = tasks.classes[task]
        if (hands[classes] + 1 > sizes[classes] // 4).any():
            used, hands, passes = set(), np.zeros(5, int), passes + 1
        hands[classes] += 1
        assert used.isdisjoint(rows[task].ravel().tolist())
        used.update(rows[task].ravel().tolist())
    assert passes > 3
    # The classes are those of the list with replacement, so the two modes differ in rows only.
    again = sample_episodes(labels, EpisodeSpec(way=2, shot=1, query=3, seed=3), range(300))
    assert np.array_equal(again.classes, tasks.classes)
    assert not np.array_equal(again.support, tasks.support)


def test_passes_shuffle_anew() -> None:
    labels = np.repeat([0, 1], 8)
    tasks = sample_episodes(labels, EpisodeSpec(way=2, shot=4, query=4, replacement=False), range(30))
    assert len(np.unique(np.sort(tasks.support, axis=2), axis=0)) > 10


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"way": 1}, "way is 1; it must be at least 2"),
        ({"shot": 0}, "shot is 0; it must be at least 1"),
        ({"query": 0}, "query is 0; it must be at least 1"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "below 2\\*\\*63"),
        ({"way": 2.5}, "way is 2.5; it must be an integer"),
        ({"shot": True}, "shot is True; it must be an integer"),
    ],
)
def test_bad_specs_are_refused(kwargs: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        EpisodeSpec(**kwargs)


def test_too_few_classes_or_rows_name_the_remedy() -> None:
    with pytest.raises(InputError, match="5 ways need as many classes, but there are 3; lower --way"):
        sample_episodes(np.repeat([1, 2, 3], 50), EpisodeSpec(), range(1))
    labels = np.repeat([11, 12, 13], [20, 9, 8])
    with pytest.raises(
        InputError, match=r"class 12 has 9 rows \(and 1 more classes\).*need 16; lower --query or --shot"
    ):
        sample_episodes(labels, EpisodeSpec(way=2), range(1))
    with pytest.raises(InputError, match="labels must be one integer per row"):
        sample_episodes(np.array([0.5, 1.5]), EpisodeSpec(way=2), range(1))
    with pytest.raises(InputError, match="task index -1 is negative"):
        sample_episodes(np.repeat([0, 1], 20), EpisodeSpec(way=2), [-1])


def test_no_tasks_is_an_empty_batch() -> None:
    for replacement in (True, False):
        tasks = sample_episodes(np.repeat([0, 1], 20), EpisodeSpec(way=2, replacement=replacement), [])
        assert tasks.query.shape == (0, 2, 15)


def test_a_saved_list_comes_back_and_knows_its_labels(tmp_path) -> None:
    labels = np.repeat(np.arange(6), 20)
    tasks = sample_episodes(labels, EpisodeSpec(seed=5, replacement=False), range(10, 20))
    tasks.save(tmp_path / "tasks.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["tasks.npz"]
    again = Episodes.load(tmp_path / "tasks.npz", labels.astype(np.int16))
    assert again.spec == tasks.spec
    assert again.labels_fingerprint == labels_fingerprint(labels)
    for name in ("task_ids", "classes", "support", "query"):
        assert np.array_equal(getattr(again, name), getattr(tasks, name))
    with pytest.raises(InputError, match="drawn from other labels than these 120 rows"):
        Episodes.load(tmp_path / "tasks.npz", labels[::-1])


def test_slices_are_the_tasks() -> None:
    tasks = sample_episodes(np.repeat(np.arange(6), 20), EpisodeSpec(), range(10))
    assert len(tasks[3:5]) == 2
    assert np.array_equal(tasks[3:5].query, tasks.query[3:5])


def test_a_torn_or_foreign_file_is_refused(tmp_path) -> None:
    path = tmp_path / "tasks.npz"
    sample_episodes(np.repeat([0, 1], 20), EpisodeSpec(way=2), range(5)).save(path)
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:cut])
        with pytest.raises(FileFormatError, match="not a readable task list"):
            Episodes.load(path)
    np.savez(path, features=np.zeros(3))
    with pytest.raises(FileFormatError, match="not a readable task list"):
        Episodes.load(path)
    with pytest.raises(FileFormatError, match="does not exist"):
        Episodes.load(tmp_path / "none.npz")


def test_a_failed_save_keeps_the_earlier_list(tmp_path, monkeypatch) -> None:
    path = tmp_path / "tasks.npz"
    tasks = sample_episodes(np.repeat([0, 1], 20), EpisodeSpec(way=2), range(5))
    tasks.save(path)
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full)
    with pytest.raises(InputError, match=r"cannot write .*tasks.npz: No space left on device"):
        tasks[:2].save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["tasks.npz"]
