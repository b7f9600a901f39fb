"""What a run shows: `report.html` with every experiment, and a reproduction report for reviewers, from one template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, cast

from fewcal._utils.atomic import read_json, write_json
from fewcal._utils.types import JSONObject, Log
from fewcal.errors import FileFormatError, InputError
from fewcal.paper.blocks import Block, Part, Place, Section, Table, verdict_table, write_pages
from fewcal.paper.budget import Budget
from fewcal.paper.experiments import EXPERIMENTS, ITEMS, Item
from fewcal.paper.published import DATASETS, published, stand_in_note
from fewcal.paper.run import Record, read_records
from fewcal.paper.settings import PRINTED, VARIANTS, paper_params, params_text
from fewcal.paper.statements import Verdict, count_verdicts
from fewcal.render.page import Value

Found = dict[str, dict[Place, Record]]
# Whatever features are given, these are not as in the paper.
DEVIATIONS = (
    "The features are those given to the run, not the authors': other backbones, other weights, another scale. "
    "Accuracies cannot be compared with the printed ones; orders and differences can.",
    "What the paper leaves open is answered in one way; `docs/fidelity.md` measures the others.",
    "± is the half-width of a 95% interval over tasks. The paper's ± is kept as printed: about twice that of 5000 "
    "tasks in its own rows of tables 1 to 3, less than that of 200 tasks in table 4.",
    "Classes, backbones and seeds of training are not varied: no interval here is about others.",
    "The scale of the features is not printed. The weights of its tables 8 and 9 imply a squared distance of 1.4 from "
    "the nearest base class on miniImageNet. The variant at the paper's scale has features times the constant that "
    "gives that distance; where the two variants differ, the verdict rests on that constant.",
)


class Summary(TypedDict):
    """`summary.json`: budget, seconds, verdicts by variant, what ran of each experiment, statements one by one."""

    budget: dict[str, int | None]
    seconds: dict[str, float]
    variants: dict[str, dict[str, int]]
    experiments: dict[str, JSONObject]
    verdicts: list[dict[str, str]]
    left_out: list[str]


def draw_report(out: str | Path, left_out: Sequence[str] = (), log: Log = lambda line: None) -> Summary:
    """Draw everything that is computed: report.html, summary.md, figures, and summary.json."""
    folder = Path(out)
    found = _read(folder)
    sections = sections_of(found, log)
    parts: list[Part] = [("What was computed", _opening(found, left_out))]
    verdicts = [v for section in sections.values() for v in section.verdicts]
    if verdicts:
        beside = _beside(verdicts)
        every = verdict_table(verdicts, "All statements, each gain with its 95% interval")
        blocks = [variants_table(verdicts), *([beside] if beside.rows else []), every]
        parts.append(("Where the paper's statements hold", blocks))
    for name, section in sections.items():
        e = EXPERIMENTS[name]
        claim = e.claim if e.claim.startswith("Nothing: ") else f"The paper: {e.claim}"
        parts.append((f"{e.title} ({name})", [f"{e.source}. {claim}", *section.blocks]))
    parts.append(("Cost", _cost(found)))
    subtitle = "every table and figure of the GDC paper on these features"
    write_pages(folder, ("report", "summary"), "The paper, measured", subtitle, parts)
    summary: Summary = {
        "budget": _budget(found),
        "seconds": {name: round(sum(r["seconds"] for r in rs.values()), 2) for name, rs in found.items()},
        "variants": count_verdicts(verdicts),
        "experiments": {name: _ran(found[name], section) for name, section in sections.items()},
        "verdicts": [v.to_dict() | {"experiment": name} for name, one in sections.items() for v in one.verdicts],
        "left_out": list(left_out),
    }
    write_json(folder / "summary.json", summary)
    return summary


def sections_of(found: Found, log: Log = lambda line: None) -> dict[str, Section]:
    """What each experiment shows of its records."""
    out = {}
    for name, records in found.items():
        log(f"drawing {name}")
        out[name] = EXPERIMENTS[name].show({place: r["data"] for place, r in records.items()})
    return out


def _read(folder: Path) -> Found:
    if not (found := read_records(folder)):
        raise InputError(f"{folder} has no finished experiment; run some with `fewcal paper run`")
    return found


def _every(found: Found) -> list[Record]:
    return [record for records in found.values() for record in records.values()]


def _budget(found: Found) -> dict[str, int | None]:
    return _every(found)[0]["budget"]  # one run has one budget


def _sets(found: Found) -> dict[str, Record]:
    """A record of each feature set by its name."""
    return {record["name"]: record for record in _every(found)}


def _ran(records: Mapping[Place, Record], section: Section) -> JSONObject:
    return {
        "datasets": list(dict.fromkeys(place.dataset for place in records)),
        "sets": list(dict.fromkeys(place.name for place in records)),
        "variants": count_verdicts(section.verdicts),
    }


def _opening(found: Found, left_out: Sequence[str]) -> list[Block]:
    b, sets = _budget(found), _sets(found)
    sequential = "" if b["first"] is None else f", beginning with {b['first']} and until their statements are decided"
    blocks: list[Block] = [
        f"Feature sets: {', '.join(sets)}. Tasks have 5 ways and 15 queries a class: {b['tasks']} novel ones, "
        f"{b['sampled']} for methods that train on drawn points by L-BFGS, {b['sgd']} for the paper's SGD head"
        f"{sequential}. Searches have {b['trials']} trials of {b['trial_tasks']} validation tasks, {b['sgd_trials']} "
        f"of {b['sgd_trial_tasks']} where a trial trains on drawn points. Seed {b['seed']}.",
        f"† marks figures of the paper, on the paper's own features ({published()['paper']}). Intervals are 95% over "
        "tasks, paired where two methods are compared; with several looks at the same rows each is wider (Bonferroni).",
    ]
    for name, record in sets.items():
        if note := stand_in_note(record["dataset"], record["classes"]):
            blocks.append(f"{name} is a stand-in: {note}. What it shows is not the paper's experiment.")
    return blocks + ([f"Left out: {'; '.join(left_out)}."] if left_out else [])


def variants_table(verdicts: Sequence[Verdict]) -> Table:
    """How many statements hold, for each variant on its own."""
    rows: list[list[Value]] = [
        [name, VARIANTS[name].words if name in VARIANTS else "", sum(counts.values()), *counts.values()]
        for name, counts in count_verdicts(verdicts).items()
    ]
    header = ["variant", "what ran", "statements", "hold", "do not hold", "undecided"]
    return Table(header, rows, "The paper's statements by what ran; HGDC is in none of them")


def _beside(verdicts: Sequence[Verdict]) -> Table:
    """Where one constant changes the verdict: as printed against the paper's scale."""
    by = {(v.claim, v.where, v.variant): v for v in verdicts}
    rows: list[list[Value]] = []
    for claim, where, variant in by:
        printed, matched = by[claim, where, variant], by.get((claim, where, "paper's scale"))
        if variant == PRINTED.name and matched is not None and printed.holds != matched.holds:
            rows.append([claim, where, f"{printed.found}: {printed.word}", f"{matched.found}: {matched.word}"])
    header = ["statement", "features", "as printed", "at the paper's scale"]
    return Table(header, rows, "Verdicts that rest on one constant that the paper does not print, the features' scale")


def _cost(found: Found) -> list[Block]:
    rows: list[list[Value]] = [
        [name, place.name, place.shot or None, r["device"], r["seconds"]]
        for name, records in found.items()
        for place, r in records.items()
    ]
    total = sum(record["seconds"] for record in _every(found))
    table = Table(["experiment", "features", "shots", "device", "seconds"], rows)
    return [f"{total / 60:.1f} minutes of computing, drawing not counted.", table]


# ---- what ran for each table and figure -----------------------------------------------------------------------------

HEADER = ["in the paper", "experiment", "feature sets", "not given", "as printed", "other variants"]


def read_summary(out: str | Path) -> Summary:
    """`summary.json` of a run that was drawn, with every experiment that is computed in it."""
    folder = Path(out)
    found = read_records(folder)
    file, remedy = folder / "summary.json", f"draw it with `fewcal paper run all --out {folder} --draw-only`"
    if not file.is_file():
        raise InputError(f"{folder} has no summary.json yet; {remedy}")
    summary = read_json(file, remedy)
    if not isinstance(summary.get("experiments"), dict) or not isinstance(summary.get("variants"), dict):
        raise FileFormatError(f"{file} is not the summary of a run; {remedy}")
    if newer := sorted(set(found) - set(summary["experiments"])):
        raise InputError(f"{folder} has results that its summary lacks ({', '.join(newer)}); {remedy}")
    return cast(Summary, summary)


def coverage(experiments: Mapping[str, Mapping[str, Any]]) -> list[JSONObject]:
    """Each table and figure of the paper, with what ran for it."""
    return [_covered(item, experiments.get(item.experiment)) for item in ITEMS]


def _covered(item: Item, ran: Mapping[str, Any] | None) -> JSONObject:
    e = EXPERIMENTS.get(item.experiment)
    wanted = item.datasets or (e.datasets if e else ())
    datasets = [d for d in (ran["datasets"] if ran else []) if not item.datasets or d in item.datasets]
    return {
        "item": item.name,
        "experiment": item.experiment,
        "note": item.note,
        "ran": bool(datasets),
        "sets": ran["sets"] if ran and datasets else [],
        "not_given": [d for d in wanted if d not in datasets],
        "variants": ran["variants"] if ran and datasets else {},
    }


def coverage_rows(covered: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Rows under `HEADER`: statements that hold, do not hold, and are undecided."""
    rows = []
    for c in covered:
        missing = ", ".join(DATASETS.get(d, d) for d in c["not_given"]) if c["ran"] else ""
        sets = ", ".join(c["sets"]) if c["ran"] else c["note"] or "not run"
        counts = {name: counts_text(own) for name, own in c["variants"].items()}
        others = "; ".join(f"{name}: {text}" for name, text in counts.items() if name != PRINTED.name)
        rows.append([c["item"], c["experiment"] or "–", sets, missing, counts.get(PRINTED.name, "–"), others or "–"])
    return rows


def counts_text(counts: Mapping[str, int]) -> str:
    """
    >>> counts_text({"holds": 2, "does not hold": 1, "undecided": 0})
    '2 hold, 1 not, 0 undecided'
    """
    return f"{counts['holds']} hold, {counts['does not hold']} not, {counts['undecided']} undecided"


# ---- for reviewers --------------------------------------------------------------------------------------------------


def write_reproduction(out: str | Path) -> list[Path]:
    """Write the reproduction report of a run, as HTML and as Markdown; the two files."""
    folder = Path(out)
    parts = reproduction_parts(folder)
    return write_pages(folder, ("reproduction", "reproduction"), "Reproduction report", published()["paper"], parts)


def reproduction_parts(out: str | Path) -> list[Part]:
    """Summary, claims, setting, accuracies, verdicts by outcome, deviations, cost, command."""
    folder = Path(out)
    found = _read(folder)
    sections = sections_of(found)
    verdicts = [v for section in sections.values() for v in section.verdicts]
    covered = coverage({name: _ran(found[name], section) for name, section in sections.items()})
    printed = count_verdicts(verdicts).get(PRINTED.name, {"holds": 0, "does not hold": 0, "undecided": 0})
    claims: list[list[Value]] = [
        [", ".join(i.name for i in ITEMS if i.experiment == name), EXPERIMENTS[name].claim, name]
        for name in dict.fromkeys(i.experiment for i in ITEMS if i.experiment)
    ]
    accuracies: list[Block] = [
        block
        for name in ("table1", "table2", "table3", "comparison")
        for block in (sections[name].blocks if name in sections else ())
        if isinstance(block, Table)
    ]
    controls: list[list[Value]] = [
        [name, len(section.verdicts), EXPERIMENTS[name].control] for name, section in sections.items()
    ]
    return [
        (
            "Summary",
            [
                f"Of {sum(printed.values())} statements about the method as printed {printed['holds']} hold, "
                f"{printed['does not hold']} do not, and {printed['undecided']} are undecided.",
                variants_table(verdicts),
                *_opening(found, ()),
            ],
        ),
        (
            "Claims",
            [
                Table(["in the paper", "what the paper says", "experiment"], claims),
                Table(HEADER, coverage_rows(covered), "What ran for each; statements by variant"),
            ],
        ),
        ("Setting", [_settings(found)]),
        ("Accuracy beside the paper's", accuracies or ["No comparison was run."]),
        *(_judged(*one, verdicts) for one in _OUTCOMES),
        ("Controls", [Table(["experiment", "statements", "control"], controls)]),
        ("Where this differs from the paper", list(DEVIATIONS)),
        ("Cost", _cost(found)),
        ("To run it again", _again(found)),
    ]


_OUTCOMES: tuple[tuple[str, str, bool | None], ...] = (
    ("What agreed", "Statements that hold: the interval of the difference is above 0.", True),
    ("What did not agree", "Statements that do not hold: the interval lies on the other side.", False),
    ("What is undecided", "Statements whose 95% interval has both signs at this number of tasks.", None),
)


def _judged(heading: str, words: str, holds: bool | None, verdicts: Sequence[Verdict]) -> Part:
    """The statements with one outcome."""
    own = [v for v in verdicts if v.holds is holds]
    return heading, [verdict_table(own, words)] if own else ["None."]


def _settings(found: Found) -> Table:
    rows: list[list[Value]] = [
        [name, shot, params_text(paper_params(r["dataset"], shot)), ", ".join(p[:12] for p in r["prints"].values())]
        for name, r in _sets(found).items()
        for shot in (1, 5)
    ]
    return Table(["features", "shots", "as printed (appendix F)", "fingerprints"], rows)


def _again(found: Found) -> list[Block]:
    features = " ".join(f"--features {record['dataset']}=DIR/{name}" for name, record in _sets(found).items())
    options = options_of(_budget(found), "cpu" if {r["device"] for r in _every(found)} == {"cpu"} else "cuda")
    return [
        f"`fewcal paper run {' '.join(found)} {features} --out OUT {options}`",
        "The same features, seed and kind of device give the same numbers, whatever the batch.",
    ]


def options_of(budget: Mapping[str, int | None], device: str) -> str:
    """The options of `fewcal paper run` for this budget on this kind of device.

    >>> options_of(Budget.make(50, sgd=8, trials=3).to_dict(), "cpu")
    '--tasks 50 --sgd-tasks 8 --trials 3 --seed 0'
    """
    seed = budget["seed"] or 0
    for quick in (False, True):
        if Budget.make(quick=quick, device=device, seed=seed).to_dict() == budget:
            return f"--seed {seed}" + " --quick" * quick + f" --device {device}" * (device != "cpu")
    options = f"--tasks {budget['tasks']} --sgd-tasks {budget['sgd']} --trials {budget['trials']} --seed {seed}"
    return options + f" --device {device}" * (device != "cpu")
