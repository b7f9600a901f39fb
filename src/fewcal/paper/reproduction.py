"""One page for reviewers: a run of the experiments in the form that reproducibility challenges ask for.

Claims, setting, what agreed, what did not, what cannot be told, cost: everything from the records of the run, as
`OUT/reproduction.md` and `OUT/reproduction.html`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from fewcal._utils.atomic import atomic_path
from fewcal.errors import InputError
from fewcal.paper.blocks import Block, Section, Table, Verdict, count_by_group, to_markdown, to_page, verdict_table
from fewcal.paper.budget import Budget
from fewcal.paper.coverage import HEADER, Covered, coverage, coverage_rows, items_of
from fewcal.paper.draw import experiment_facts, groups_table, sections_of, stand_in_notes
from fewcal.paper.experiments import EXPERIMENTS
from fewcal.paper.published import dataset_title, published, stand_ins
from fewcal.paper.run import Config, Kept, kept_records, read_config
from fewcal.paper.settings import GROUP_WORDS, GROUPS, PRINTED, paper_params
from fewcal.render import Page
from fewcal.render.page import Value

FILES = ("reproduction.md", "reproduction.html")
# Whatever features are given, these are not as in the paper.
DEVIATIONS = (
    "The features are those given to the run, not the authors': other backbones, other weights, another scale. "
    "Accuracies can therefore not be compared with the printed ones; orders and differences can.",
    "What the paper leaves open is answered in one way; `docs/fidelity.md` measures the others: how rows are paired in "
    "the joint covariance, what is done with a Σ'ₛ that is not positive semi-definite (b is clipped), whether n counts "
    "for a support point or a class, and more.",
    "Equation 13 has a ridge and shifted log-determinants unless a table says otherwise, because as printed it is "
    "undefined for singular covariances and its distances are negative where variances are small.",
    "± is the half-width of a 95% interval over tasks. The paper's ± is kept as printed: about twice that of "
    "5000 tasks in its own rows of tables 1 to 3, less than that of 200 tasks in table 4, and in rows that it cites "
    "from other papers theirs.",
    "Where a number of tasks is smaller than the paper's 5000, the interval is as much wider. Classes, backbones and "
    "seeds of training are not varied: no interval here tells about others.",
)


class Part(NamedTuple):
    """A heading and what stands under it."""

    heading: str
    blocks: list[Block]


def write_reproduction(out: str | Path) -> list[Path]:
    """Write the report of a run, as Markdown and as HTML; the two files."""
    folder = Path(out)
    parts = reproduction_parts(folder)
    title, subtitle = "Reproduction report", published()["paper"]
    page = Page(title, subtitle)
    markdown = [f"# {title}\n", f"{subtitle}\n"]
    for part in parts:
        page.heading(part.heading)
        to_page(page, part.blocks)
        markdown += [f"## {part.heading}\n", to_markdown(part.blocks)]
    files = [folder / name for name in FILES]
    with atomic_path(files[0]) as temporary:
        temporary.write_text("\n".join(markdown), encoding="utf-8", errors="backslashreplace")
    page.write(files[1])
    return files


def reproduction_parts(out: str | Path) -> list[Part]:
    """The report of a run, heading by heading."""
    config, kept = read_config(out), kept_records(out)
    if not kept:
        raise InputError(f"{out} has no finished experiment to report; run some with `fewcal paper run`")
    with stand_ins(config.get("classes", {})):
        return _parts(config, kept)


def _parts(config: Config, kept: Mapping[str, Sequence[Kept]]) -> list[Part]:
    sections = sections_of(kept)
    verdicts = [v for section in sections.values() for v in section.verdicts]
    covered = coverage(experiment_facts(kept, sections))
    return [
        Part("Summary", _summary(config, kept, covered, verdicts)),
        Part("Claims", _claims(covered)),
        Part("Setting", _setting(config, kept)),
        Part("Accuracy beside the paper's", _accuracy(sections)),
        *(judged_part(heading, words, verdicts, holds) for heading, words, holds in _JUDGED),
        Part("The control for normalisation", [*control_blocks(verdicts), _controls_table(sections)]),
        Part("Where this differs from the paper", list(DEVIATIONS)),
        Part("Cost", _cost(kept)),
        Part("To run it again", _again(config, kept)),
    ]


# ---- the parts ------------------------------------------------------------------------------------------------------


def _summary(
    config: Config, kept: Mapping[str, Sequence[Kept]], covered: Sequence[Covered], verdicts: Sequence[Verdict]
) -> list[Block]:
    printed = count_by_group(verdicts)["as printed"]
    judged = sum(v.group == "as printed" for v in verdicts)
    total = sum(r["seconds"] for records in kept.values() for r in records)
    done = [c["item"] for c in covered if c["ran"]]
    open_ = [c["item"] for c in covered if not c["ran"] and c["experiment"]]
    return [
        *stand_in_notes(config),
        f"Scope: {'; '.join(done)} of the paper{'; not: ' + '; '.join(open_) if open_ else ''}. Each statement that a "
        "number can decide has a verdict.",
        "Method: an independent implementation from the text of the paper, run first with the paper's own setting and "
        "then with variants; the preset `authors` follows the authors' script.",
        f"Result: of {judged} statements about the method as printed {printed['holds']} hold, "
        f"{printed['does_not_hold']} do not, and {printed['cannot_tell']} cannot be told at this number of tasks. "
        "Statements about tuned or rescaled variants, and about this package's own method, are counted apart.",
        groups_table(verdicts),
        f"Cost: {_time(total)} in all on {' and '.join(_devices(kept))}; {config['effort']['tasks']} novel tasks, "
        f"{config['effort']['sgd']} with the paper's SGD head.",
    ]


def _claims(covered: Sequence[Covered]) -> list[Block]:
    told: list[list[Value]] = [
        [", ".join(items_of(name)), EXPERIMENTS[name].says, name] for name in EXPERIMENTS if items_of(name)
    ]
    return [
        Table(["in the paper", "what the paper says", "experiment"], told),
        Table(HEADER, coverage_rows(covered), "What ran for each; statements by group"),
    ]


def _setting(config: Config, kept: Mapping[str, Sequence[Kept]]) -> list[Block]:
    effort = config["effort"]
    rows: list[list[Value]] = [
        [dataset_title(d), shot, PRINTED.text(paper_params(d, shot))] for d in _datasets(kept) for shot in (1, 5)
    ]
    prints: list[list[Value]] = [
        [dataset_title(d), ", ".join(f"{split} {print_[:12]}" for split, print_ in config["features"][d].items())]
        for d in _datasets(kept)
        if d in config["features"]
    ]
    words: list[list[Value]] = [[group, GROUP_WORDS[group]] for group in GROUPS]
    return [
        f"Tasks have 5 ways and 15 queries a class, drawn from novel classes with seed {effort['seed']}; all methods "
        f"get the same ones: {effort['tasks']} tasks in closed form, {effort['sampled']} for L-BFGS on drawn points, "
        f"about {effort['sgd']} for SGD, {effort['study']} for each variant of a study. What is tuned is tuned on "
        f"validation classes, {effort['trials']} settings on {effort['trial_tasks']} tasks. Each table says its own.",
        Table(["group", "what it means"], words, "Statements are counted by what ran"),
        Table(["dataset", "shots", "setting"], rows, "The method as printed, by dataset (appendix F)"),
        Table(["dataset", "fingerprints of the features"], prints),
    ]


def _accuracy(sections: Mapping[str, Section]) -> list[Block]:
    """The tables of the comparisons; † marks figures of the paper."""
    out: list[Block] = ["† marks figures of the paper, on the paper's own features."]
    for name in ("table1", "table2", "table3", "comparison"):
        if name in sections:
            tables = [block for block in sections[name].blocks if isinstance(block, Table)]
            out += [f"{EXPERIMENTS[name].source}: {EXPERIMENTS[name].title}.", *tables[:1]]
    return out if len(out) > 1 else ["No comparison was run."]


# The parts for verdicts: heading, words, and what became of them.
_JUDGED: tuple[tuple[str, str, bool | None], ...] = (
    ("What agreed", "Statements that hold: the interval of the difference is above 0.", True),
    ("What did not agree", "Statements that do not hold: the interval lies on the other side.", False),
    ("What cannot be told", "Statements whose 95% interval has both signs at this number of tasks.", None),
)


def judged_part(heading: str, words: str, verdicts: Sequence[Verdict], holds: bool | None) -> Part:
    """The statements with one outcome, a table for each group."""
    found = [v for v in verdicts if v.holds is holds]
    blocks: list[Block] = [words if found else "None."]
    for group in GROUPS:
        if own := [v for v in found if v.group == group]:
            blocks.append(verdict_table(own, f"{group}: {GROUP_WORDS[group]}", alike=True))
    return Part(heading, blocks)


def control_blocks(verdicts: Sequence[Verdict]) -> list[Block]:
    """How many gains are more than the space: the same transform, centring and L2 without calibration."""
    rows: list[list[Value]] = []
    for group in GROUPS:
        own = [v for v in verdicts if v.group == group and v.control and v.holds]
        if own:
            found = [v.above_control for v in own]
            rows.append([group, len(own), found.count(True), found.count(False), found.count(None)])
    if not rows:
        return ["No statement that holds has a control."]
    return [
        "A gain over DC may come from the space alone. The control has the same transform, centring and scaling, and "
        "the same classifier, without calibration.",
        Table(["group", "hold, with a control", "above the control", "below it", "interval has both signs"], rows),
    ]


def _controls_table(sections: Mapping[str, Section]) -> Table:
    """What the verdicts of each experiment are held against, or why there is nothing."""
    rows: list[list[Value]] = [
        [name, len(one.verdicts), EXPERIMENTS[name].control] for name, one in sections.items() if one.verdicts
    ]
    return Table(["experiment", "statements", "control"], rows, "The control of each experiment")


def _cost(kept: Mapping[str, Sequence[Kept]]) -> list[Block]:
    rows: list[list[Value]] = []
    for name, records in kept.items():
        seconds = sum(r["seconds"] for r in records)
        devices = ", ".join(dict.fromkeys(r["device"] for r in records))
        rows.append([name, ", ".join(items_of(name)) or "beyond the paper", len(records), devices, round(seconds, 1)])
    total = sum(r["seconds"] for records in kept.values() for r in records)
    versions = ", ".join(dict.fromkeys(r["fewcal"] for records in kept.values() for r in records))
    return [
        f"{_time(total)} of computing with fewcal {versions}, drawing not counted.",
        Table(["experiment", "in the paper", "parts", "device", "seconds"], rows),
    ]


def _again(config: Config, kept: Mapping[str, Sequence[Kept]]) -> list[Block]:
    features = " ".join(f"--features {name}=DIR" for name in config["features"])
    device = "cpu" if _devices(kept) == ["cpu"] else "cuda"
    return [
        f"`fewcal paper run {' '.join(kept)} {features} --out OUT {options_of(config['effort'], device)}`",
        "`fewcal paper report OUT`",
        "The same features, seed and kind of device give the same numbers, whatever the batch or number of processes.",
    ]


def options_of(effort: Mapping[str, int], device: str) -> str:
    """The options of `fewcal paper run` that ask for this budget on this kind of device.

    >>> from fewcal.paper.budget import Budget
    >>> options_of(Budget.of(50, quick=True, sampled=40, sgd=8, trials=3).to_dict(), "cpu")
    '--tasks 50 --sampled-tasks 40 --sgd-tasks 8 --trials 3 --seed 0 --quick'
    """
    tasks, sampled, sgd, trials, seed = (effort[key] for key in ("tasks", "sampled", "sgd", "trials", "seed"))
    quick = Budget.of(tasks, quick=True, device=device, seed=seed, sampled=sampled, sgd=sgd, trials=trials)
    return (
        f"--tasks {tasks} --sampled-tasks {sampled} --sgd-tasks {sgd} --trials {trials} --seed {seed}"
        + " --quick" * (quick.to_dict() == effort)
        + f" --device {device}" * (device != "cpu")
    )


# ---- words ----------------------------------------------------------------------------------------------------------


def _datasets(kept: Mapping[str, Sequence[Kept]]) -> list[str]:
    return list(dict.fromkeys(r["dataset"] for records in kept.values() for r in records))


def _devices(kept: Mapping[str, Sequence[Kept]]) -> list[str]:
    return list(dict.fromkeys(r["device"] for records in kept.values() for r in records))


def _time(seconds: float) -> str:
    """
    >>> _time(42.3), _time(1234)
    ('42 seconds', '21 minutes')
    """
    return f"{seconds:.0f} seconds" if seconds < 120 else f"{seconds / 60:.0f} minutes"
