"""Episodes: the same task whatever the batch, fair draws, no row on both sides, and clear refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fewcal.episodes import Episodes, EpisodeSpec, labels_fingerprint, sample_episodes
from fewcal.errors import FileFormatError, InputError

# Published task indices must stay valid: a change of these numbers is a break of the format.
PINNED = {
    "classes": [[10, 0, 15, 12, 16], [4, 15, 0, 16, 17]],
    "support": [[6438, 354, 9169, 7727, 9766], [2487, 9127, 464, 9984, 10358]],
    "query": [2996, 2417],
    "dealt": [7321, 857, 5326, 11559, 245],
    "unbalanced": [[-1, -1, -1], [-1, -1, -1], [-1, -1, -1], [7608, -1, -1], [9996, 10113, 9677]],
    "outliers": [3987],
}
ARRAYS = ("task_ids", "classes", "support", "query", "outliers")
# A class has up to this many rows, and tasks take few of them: no share is cut short.
LARGE = np.repeat(np.arange(12), 400)
UNBALANCED = {
    "dirichlet": {"queries": 40, "dirichlet": 0.5},
    "present": {"present": 2},
    "outliers": {"outliers": 0.25, "query": 8},
    "shots": {"min_shot": 1, "shot": 4},
    "ways": {"min_way": 2, "way": 6},
    "meta": {"min_way": 2, "way": 6, "query": 4, "meta_dataset": True},
    "all": {"min_way": 3, "min_shot": 1, "shot": 3, "queries": 30, "dirichlet": 1.0, "present": 2, "outliers": 0.2},
}


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, EpisodeSpec]:
    """Labels of unequal classes with arbitrary values in arbitrary order, and a spec they can serve."""
    balanced = draw(st.booleans())
    spec = EpisodeSpec(
        way=draw(st.integers(2, 4)),
        shot=draw(st.integers(1, 3)),
        query=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 2**63 - 1)),
        replacement=not balanced or draw(st.booleans()),
    )
    if not balanced:
        more = {
            "min_way": draw(st.none() | st.integers(2, spec.way)),
            "min_shot": draw(st.none() | st.integers(1, spec.shot)),
            "meta_dataset": draw(st.booleans()),
            "queries": draw(st.none() | st.integers(1, 12)),
            "dirichlet": draw(st.none() | st.floats(0.1, 5)),
            "present": draw(st.none() | st.integers(1, 2)),
            "outliers": draw(st.sampled_from([0.0, 0.25, 0.4])),
        }
        spec = replace(spec, **more)
    values = draw(st.lists(st.integers(0, 50), min_size=spec.way + 1, max_size=7, unique=True))
    extra = draw(st.lists(st.integers(0, 9), min_size=len(values), max_size=len(values)))
    labels = np.repeat(values, np.array(extra) + max(spec.rows_per_class, 8))  # 8 outliers at most
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(labels), spec


@given(problems())
@settings(max_examples=100, deadline=None)
def test_tasks_of_any_spec_are_well_formed(problem: tuple[np.ndarray, EpisodeSpec]) -> None:
    labels, spec = problem
    tasks = sample_episodes(labels, spec, range(12))
    assert {getattr(tasks, name).dtype for name in ARRAYS} == {np.dtype(np.int64)}
    for t in range(12):
        own = tasks.classes[t][tasks.classes[t] >= 0]
        assert spec.ways[0] <= len(np.unique(own)) == len(own) <= spec.way
        rows = [part[t][part[t] >= 0] for part in (tasks.support, tasks.query, tasks.outliers)]
        assert len(np.unique(np.concatenate(rows))) == sum(map(len, rows)), "a row twice"
        inside, outside = spec.query_counts(len(own))
        assert (len(rows[1]), len(rows[2])) == (inside, outside)
        assert not np.isin(labels[rows[2]], own).any()
        for c, label in enumerate(own):
            support, query = (part[t, c][part[t, c] >= 0] for part in (tasks.support, tasks.query))
            assert (labels[np.concatenate([support, query])] == label).all()
            assert len(support) >= 1
            assert spec.meta_dataset or (spec.min_shot or spec.shot) <= len(support) <= spec.shot
        assert (tasks.query[t] >= 0).any(axis=1).sum() <= (spec.present or spec.way)


@given(problems(), st.lists(st.integers(0, 60), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_task_alone_is_that_of_the_batch(problem: tuple[np.ndarray, EpisodeSpec], ids: list[int]) -> None:
    labels, spec = problem
    some = sample_episodes(labels, spec, ids)  # first, so that no cache of the whole list can help
    whole = sample_episodes(labels, spec, range(61))
    for name in ARRAYS:
        for t, task in enumerate(ids):
            alone, of_all = getattr(some, name)[t], getattr(whole, name)[task]
            assert np.array_equal(alone[alone >= 0], of_all[of_all >= 0])


@given(problems())
@settings(max_examples=40, deadline=None)
def test_groups_hold_every_row_once_with_its_class(problem: tuple[np.ndarray, EpisodeSpec]) -> None:
    labels, spec = problem
    tasks = sample_episodes(labels, spec, range(9))
    groups = list(tasks.groups())
    assert sorted(np.concatenate([g.at for g in groups]).tolist()) == list(range(9))
    assert len(groups) == 1 or not spec.is_balanced
    for g in groups:
        for i, t in enumerate(g.at):
            assert np.array_equal(labels[g.support[i]], tasks.classes[t][g.labels[i]])
            assert np.array_equal(np.sort(g.query[i]), _filled(tasks.query[t], tasks.outliers[t]))
            inside = g.truth[i] >= 0
            assert np.array_equal(labels[g.query[i][inside]], tasks.classes[t][g.truth[i][inside]])
            assert np.array_equal(np.sort(g.query[i][~inside]), _filled(tasks.outliers[t]))
            assert g.way == g.labels[i].max() + 1
            assert g.even == (len(set(np.bincount(g.labels[i]).tolist())) == 1)


def _filled(*rows: np.ndarray) -> np.ndarray:
    every = np.concatenate([r.ravel() for r in rows])
    return np.sort(every[every >= 0])


def test_tasks_of_a_seed_never_change() -> None:
    labels = np.repeat(np.arange(20), 600)
    task = sample_episodes(labels, EpisodeSpec(query=2, seed=7), [0, 1_000_000])
    assert task.classes.tolist() == PINNED["classes"]
    assert task.support[..., 0].tolist() == PINNED["support"]
    assert task.query[1, 0].tolist() == PINNED["query"]
    dealt = sample_episodes(labels, EpisodeSpec(query=2, seed=7, replacement=False), [300])
    assert dealt.support[0, :, 0].tolist() == PINNED["dealt"]
    drawn = sample_episodes(labels, EpisodeSpec(seed=7, queries=5, dirichlet=2.0, outliers=0.2), [0])
    assert drawn.query[0].tolist() == PINNED["unbalanced"]
    assert drawn.outliers[0].tolist() == PINNED["outliers"]


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


# ---- without replacement --------------------------------------------------------------------------------------------


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
    again = sample_episodes(labels, replace(spec, replacement=True), range(300))
    assert np.array_equal(again.classes, tasks.classes)
    assert not np.array_equal(again.support, tasks.support)


def test_passes_without_replacement_shuffle_again() -> None:
    labels = np.repeat([0, 1], 8)
    tasks = sample_episodes(labels, EpisodeSpec(way=2, shot=4, query=4, replacement=False), range(30))
    assert len(np.unique(np.sort(tasks.support, axis=2), axis=0)) > 10


# ---- unbalanced tasks -----------------------------------------------------------------------------------------------


def query_counts(tasks: Episodes) -> np.ndarray:
    """Queries of each class, (T, N)."""
    return (tasks.query >= 0).sum(axis=2)


@pytest.mark.parametrize("alpha", [0.5, 2.0, 20.0])
def test_dirichlet_shares_have_the_moments_of_the_distribution(alpha: float) -> None:
    total = 150
    tasks = sample_episodes(LARGE, EpisodeSpec(queries=total, dirichlet=alpha, seed=4), range(3000))
    assert (query_counts(tasks).sum(axis=1) == total).all()
    shares = query_counts(tasks) / total
    variance = 0.2 * 0.8 / (5 * alpha + 1)
    assert shares.mean(axis=0) == pytest.approx(np.full(5, 0.2), abs=4 * (variance / 3000) ** 0.5)
    assert shares.var(axis=0) == pytest.approx(np.full(5, variance), rel=0.12)
    assert np.cov(shares.T)[0, 1] == pytest.approx(-variance / 4, rel=0.3)  # shares sum to 1
    at = (np.array([15, 30, 45, 75]) + 0.5) / total  # marginals are of the beta distribution, between whole queries
    below = (shares[:, :1] < at).mean(axis=0)
    assert below == pytest.approx(stats.beta(alpha, 4 * alpha).cdf(at), abs=0.03)


def test_equal_shares_differ_by_one_query_at_random() -> None:
    tasks = sample_episodes(LARGE, EpisodeSpec(queries=7, seed=2), range(2000))
    counts = query_counts(tasks)
    assert set(np.unique(counts).tolist()) == {1, 2}
    assert stats.chisquare((counts == 2).sum(axis=0)).pvalue > 1e-4


def test_shares_that_a_class_has_no_rows_for_go_to_the_others() -> None:
    labels = np.repeat(np.arange(5), [16, 16, 80, 80, 80])
    tasks = sample_episodes(labels, EpisodeSpec(dirichlet=0.1, seed=2), range(300))
    counts = np.take_along_axis(query_counts(tasks), tasks.classes.argsort(axis=1), axis=1)
    assert (counts.sum(axis=1) == 75).all()
    assert (counts[:, :2].max(), counts[:, 2:].max()) == (15, 75)


def test_present_classes_are_chosen_evenly() -> None:
    counts = query_counts(sample_episodes(LARGE, EpisodeSpec(queries=75, present=2, seed=1), range(2000)))
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert set(np.unique(counts).tolist()) == {0, 37, 38}
    assert stats.chisquare((counts > 0).sum(axis=0)).pvalue > 1e-4


def test_outliers_have_an_exact_share_and_come_from_all_other_rows() -> None:
    tasks = sample_episodes(LARGE, EpisodeSpec(queries=75, outliers=0.25, seed=1), range(600))
    assert tasks.outliers.shape == (600, 19)
    assert (tasks.outliers >= 0).all()
    drawn = LARGE[tasks.outliers]
    assert not (drawn[..., None] == tasks.classes[:, None]).any()
    assert stats.chisquare(np.bincount(drawn.ravel(), minlength=12)).pvalue > 1e-4
    assert stats.chisquare(np.bincount(tasks.outliers.ravel() % 400 // 40)).pvalue > 1e-4


def test_ways_and_shots_are_drawn_evenly_from_their_ranges() -> None:
    spec = EpisodeSpec(min_way=3, way=8, min_shot=1, shot=4, seed=1)
    shots = (sample_episodes(LARGE, spec, range(2000)).support >= 0).sum(axis=2)
    ways = (shots > 0).sum(axis=1)
    assert stats.chisquare(np.bincount(ways)[3:]).pvalue > 1e-4
    assert stats.chisquare(np.bincount(shots[shots > 0])[1:]).pvalue > 1e-4
    few = sample_episodes(LARGE, EpisodeSpec(min_way=5, way=50, seed=1, query=1), range(300))
    assert few.classes.shape == (300, 12), "as far as there are classes"


def test_meta_dataset_follows_the_rule_of_its_paper() -> None:
    labels = np.repeat(np.arange(30), np.linspace(20, 400, 30).astype(int))
    tasks = sample_episodes(labels, EpisodeSpec(min_way=5, way=50, query=10, meta_dataset=True), range(1000))
    shots, size = (tasks.support >= 0).sum(axis=2), np.bincount(labels)
    own = shots > 0
    room = np.where(own, size[tasks.classes] - 10, 0)
    ways, total = own.sum(axis=1), shots.sum(axis=1)
    assert (query_counts(tasks)[own] == 10).all()
    assert (shots <= room).all()
    # At most min(500, Σ min(100, room)) examples, uniform in β where neither limit cuts.
    limit = np.minimum(500, np.minimum(room, 100).sum(axis=1) + ways)
    assert (total <= limit).all()
    assert (total >= ways).all()
    assert 450 < total.max() <= 500
    # A class that is larger has more examples: within a factor exp(U(log ½, log 2)) in proportion to its size.
    share = np.log((shots - 0.5)[own & (total > 300)[:, None] & (shots < room)])
    weight = np.log(size[tasks.classes][own & (total > 300)[:, None] & (shots < room)])
    assert stats.spearmanr(share, weight).statistic > 0.6


@pytest.mark.parametrize("change", UNBALANCED.values(), ids=list(UNBALANCED))
def test_unbalanced_tasks_have_the_classes_and_the_support_of_balanced_ones(change: dict) -> None:
    spec = EpisodeSpec(seed=6, **change)
    tasks = sample_episodes(LARGE, spec, range(50))
    plain = sample_episodes(LARGE, EpisodeSpec(spec.way, spec.shot, spec.query, 6), range(50))
    own = tasks.classes >= 0
    assert np.array_equal(tasks.classes[own], plain.classes[own])
    both = (tasks.support[..., : spec.shot] >= 0) & own[..., None]
    width = both.shape[2]
    assert np.array_equal(tasks.support[..., :width][both], plain.support[..., :width][both])


# ---- refusals and files ---------------------------------------------------------------------------------------------


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
        ({"queries": 0}, "queries is 0; it must be at least 1"),
        ({"min_way": 6}, "min_way is 6; it must be at most 5"),
        ({"min_shot": 2}, "min_shot is 2; it must be at most 1"),
        ({"min_way": 3, "present": 4}, "present is 4; it must be at most 3"),
        ({"dirichlet": 0.01}, "dirichlet is 0.01; it must be at least 0.1"),
        ({"dirichlet": "two"}, "dirichlet is 'two'"),
        ({"outliers": 1}, "outliers is 1; it must be a share"),
        ({"queries": 1, "outliers": 0.6}, "outliers is 0.6; it must be a share that leaves queries"),
        ({"replacement": False, "dirichlet": 2}, "replacement=False needs balanced tasks"),
    ],
)
def test_bad_specs_are_refused(kwargs: dict, words: str) -> None:
    with pytest.raises(InputError, match=words):
        EpisodeSpec(**kwargs)


def test_too_few_classes_or_rows_name_the_remedy() -> None:
    with pytest.raises(InputError, match="5 ways need as many classes, but there are 3; lower --way"):
        sample_episodes(np.repeat([1, 2, 3], 50), EpisodeSpec(), range(1))
    with pytest.raises(InputError, match="40 outliers need as many rows of other classes, but 2 ways may leave 30"):
        sample_episodes(np.repeat([1, 2, 3], [50, 50, 30]), EpisodeSpec(way=2, queries=80, outliers=0.5), range(1))
    labels = np.repeat([11, 12, 13], [20, 9, 8])
    for spec in (EpisodeSpec(way=2), EpisodeSpec(way=2, queries=30, dirichlet=2.0)):
        with pytest.raises(InputError, match=r"class 12 has 9 rows \(and 1 more classes\).*need 16; lower --query"):
            sample_episodes(labels, spec, range(1))
    with pytest.raises(InputError, match="labels must be one integer per row"):
        sample_episodes(np.array([0.5, 1.5]), EpisodeSpec(way=2), range(1))
    with pytest.raises(InputError, match="task index -1 is negative"):
        sample_episodes(np.repeat([0, 1], 20), EpisodeSpec(way=2), [-1])
    with pytest.raises(InputError, match="task_ids must be a list of integers"):
        sample_episodes(np.repeat([0, 1], 20), EpisodeSpec(way=2), [0.5])  # type: ignore[list-item]


@pytest.mark.parametrize("change", [{}, {"replacement": False}, {"dirichlet": 2.0}])
def test_no_tasks_are_an_empty_batch(change: dict) -> None:
    tasks = sample_episodes(np.repeat([0, 1], 20), EpisodeSpec(way=2, **change), [])
    assert len(tasks) == 0
    assert tasks.query.shape[:2] == (0, 2)
    assert list(tasks.groups()) == []


@pytest.mark.parametrize("change", [{"replacement": False}, UNBALANCED["all"]])
def test_saved_list_comes_back_and_knows_its_labels(tmp_path: Path, change: dict) -> None:
    labels = np.repeat(np.arange(6), 30)
    tasks = sample_episodes(labels, EpisodeSpec(seed=5, **change), range(10, 20))
    tasks.save(tmp_path / "tasks.npz")
    assert [p.name for p in tmp_path.iterdir()] == ["tasks.npz"]
    again = Episodes.load(tmp_path / "tasks.npz", labels.astype(np.int16))
    assert again.spec == tasks.spec
    assert again.labels_fingerprint == labels_fingerprint(labels)
    for name in ARRAYS:
        assert np.array_equal(getattr(again, name), getattr(tasks, name))
        assert np.array_equal(getattr(tasks[3:5], name), getattr(tasks, name)[3:5])
    with pytest.raises(InputError, match="drawn from other labels than these 180 rows"):
        Episodes.load(tmp_path / "tasks.npz", labels[::-1])


def test_torn_or_foreign_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tasks.npz"
    sample_episodes(np.repeat([0, 1], 20), EpisodeSpec(way=2), range(5)).save(path)
    whole = path.read_bytes()
    with np.load(path) as archive:
        arrays = dict(archive)
    for cut in (0, 10, len(whole) // 2, len(whole) - 5):
        path.write_bytes(whole[:cut])
        with pytest.raises(FileFormatError, match="not a readable task list"):
            Episodes.load(path)
    for change in ({"query": arrays["query"][:, :, 1:]}, {"task_ids": arrays["task_ids"][1:]}, {"header": "{}"}):
        np.savez(path, **arrays | change)
        with pytest.raises(FileFormatError, match="not a readable task list"):
            Episodes.load(path)
    with pytest.raises(FileFormatError, match="does not exist"):
        Episodes.load(tmp_path / "none.npz")


def test_failed_save_keeps_the_earlier_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
