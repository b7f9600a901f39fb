"""Drawing what is computed: one report, a summary in Markdown and in JSON, and every picture as a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from fewcal._utils.atomic import atomic_path, write_json
from fewcal._utils.types import Log
from fewcal.errors import InputError
from fewcal.paper.blocks import (
    Block,
    Counts,
    Picture,
    Section,
    Table,
    Verdict,
    claims_table,
    count_by_group,
    to_markdown,
    to_page,
    verdict_table,
)
from fewcal.paper.experiments import EXPERIMENTS
from fewcal.paper.published import dataset_title, published, stand_in_words, stand_ins
from fewcal.paper.run import Config, Kept, kept_records, read_config
from fewcal.paper.settings import GROUP_WORDS, PRINTED, Group
from fewcal.render import Page
from fewcal.render.figures import save
from fewcal.render.page import Value


class Statement(TypedDict):
    """A verdict as plain values."""

    claim: str
    features: str
    group: Group
    found: str
    verdict: str
    control: str
    experiment: str


class Ran(TypedDict):
    """What ran of an experiment: whether as printed, with which variants, on which features; verdicts by group."""

    as_printed: bool
    variants: list[str]
    features: list[str]
    groups: dict[Group, Counts]


class Summary(TypedDict):
    """`summary.json`: seconds of each experiment, the paper's statements and what became of them, by group."""

    effort: dict[str, int]
    seconds: dict[str, float]
    groups: dict[Group, Counts]
    experiments: dict[str, Ran]
    verdicts: list[Statement]
    left_out: list[str]


def draw_report(out: str | Path, left_out: Sequence[str] = (), say: Log = lambda line: None) -> Summary:
    """Draw everything that is computed: report, summary, figures; the statements as plain values."""
    folder = Path(out)
    config = read_config(folder)
    kept = kept_records(folder)
    if not kept:
        raise InputError(f"{folder} has no finished experiment to draw")
    with stand_ins(config.get("classes", {})):
        sections = sections_of(kept, say)
        _draw_sections(folder, _opening(config, kept, left_out), sections, config, kept)
    summary: Summary = {
        "effort": config["effort"],
        "seconds": {n: round(sum(r["seconds"] for r in rs), 2) for n, rs in kept.items()},
        "groups": count_by_group([v for one in sections.values() for v in one.verdicts]),
        "experiments": experiment_facts(kept, sections),
        "verdicts": [_statement(v, n) for n, one in sections.items() for v in one.verdicts],
        "left_out": list(left_out),
    }
    write_json(folder / "summary.json", summary)
    return summary


def sections_of(kept: Mapping[str, Sequence[Kept]], say: Log = lambda line: None) -> dict[str, Section]:
    """What each experiment has to say of its records."""
    sections: dict[str, Section] = {}
    for name, records in kept.items():
        say(f"drawing {name}")
        sections[name] = EXPERIMENTS[name].show({(r["dataset"], r["shot"]): r["data"] for r in records})
    return sections


def experiment_facts(kept: Mapping[str, Sequence[Kept]], sections: Mapping[str, Section]) -> dict[str, Ran]:
    """What ran of each experiment."""
    return {name: _ran(kept[name], section) for name, section in sections.items()}


def _statement(v: Verdict, experiment: str) -> Statement:
    return {
        "claim": v.claim,
        "features": v.where,
        "group": v.group,
        "found": v.found,
        "verdict": v.word,
        "control": v.control,
        "experiment": experiment,
    }


def _ran(records: Sequence[Kept], section: Section) -> Ran:
    variants = list(dict.fromkeys(name for r in records for name in r["variants"]))
    return {
        "as_printed": PRINTED.name in variants,
        "variants": variants,
        "features": list(dict.fromkeys(r["dataset"] for r in records)),
        "groups": count_by_group(section.verdicts),
    }


def _draw_sections(
    folder: Path,
    opening: Sequence[Block],
    sections: Mapping[str, Section],
    config: Config,
    kept: Mapping[str, Sequence[Kept]],
) -> None:
    """Write report.html, summary.md and the pictures."""
    page = Page("The paper, measured", "every table and figure of the GDC paper beside what these features give")
    to_page(page, opening)
    markdown = ["# The paper, measured\n", to_markdown(opening)]
    if verdicts := [v for one in sections.values() for v in one.verdicts]:
        page.heading("Where the paper's statements hold")
        markdown.append("## Where the paper's statements hold\n")
        above, others = _verdict_blocks(verdicts)
        to_page(page, above)
        if others:
            with page.details("Every other statement"):
                to_page(page, others)
        markdown.append(to_markdown([*above, *others]))
    for name, one in sections.items():
        e = EXPERIMENTS[name]
        page.heading(f"{e.title} ({name})")
        said = f"{e.source[0].upper()}{e.source[1:]}. {'The paper: ' if e.datasets else ''}{e.says}"
        page.text(said)
        to_page(page, one.blocks)
        markdown += [f"## {e.title} ({name})\n", f"{said}\n", to_markdown(one.blocks, Path("figures"))]
        for block in one.blocks:
            if isinstance(block, Picture):
                save(block.figure, folder / "figures" / block.stem)
    timing: list[list[Value]] = [
        [r["experiment"], r["dataset"], r["shot"] or None, r["device"], r["seconds"]]
        for rs in kept.values()
        for r in rs
    ]
    page.heading("How it was computed")
    with page.details("Seconds of each part"):
        page.table(["experiment", "features", "shots", "device", "seconds"], timing)
    page.facts({"command": f"fewcal paper run {' '.join(kept)} --features …", "effort": config["effort"]})
    page.write(folder / "report.html")
    with atomic_path(folder / "summary.md") as temporary:
        temporary.write_text("\n".join(markdown), encoding="utf-8", errors="backslashreplace")


def _opening(config: Config, kept: Mapping[str, Sequence[Kept]], left_out: Sequence[str]) -> list[str]:
    effort = config["effort"]
    sets = ", ".join(dict.fromkeys(dataset_title(r["dataset"]) for rs in kept.values() for r in rs))
    words = [
        f"Computed on {sets}: {effort['tasks']} novel tasks (5 ways, 15 queries a class) for methods in closed form, "
        f"{effort['sampled']} for those that train on sampled points, {effort['sgd']} for the paper's own SGD head, "
        f"{effort['study']} for each variant of a study; at most {effort['trials']} settings on "
        f"{effort['trial_tasks']} validation tasks where something is tuned. Seed {effort['seed']}. "
        "What the run tunes is chosen on validation classes; the paper's own rows are the best of three on novel ones.",
        f"† marks figures of the paper, on the paper's own features ({published()['paper']}). Intervals are 95% over "
        "tasks, paired where two methods are compared; they say nothing about other classes.",
        "The paper's settings belong to the scale of the paper's features, which it does not give: the weights that it "
        "prints imply a squared distance of 1.4 from the nearest base class on miniImageNet and of 12 on "
        "meta-tieredImageNet. At another scale 1/(1 + d^m) may be almost 0, and SGD with a learning rate of 0.08 may "
        "diverge, so the paper's settings are also shown at unit scale (centred, L2).",
    ]
    words += stand_in_notes(config)
    if left_out:
        words.append(f"Left out: {'; '.join(left_out)}.")
    return words


def stand_in_notes(config: Config) -> list[str]:
    """In plain words: the features that have other classes than the paper's dataset."""
    told = {dataset: stand_in_words(dataset, classes) for dataset, classes in config.get("classes", {}).items()}
    return [
        f"{dataset_title(d)}: {words}. What it shows is not the paper's experiment."
        for d, words in told.items()
        if words
    ]


def _verdict_blocks(verdicts: Sequence[Verdict]) -> tuple[list[Block], list[Block]]:
    """What is said of all statements and of GDC against DC; and the other statements one by one."""
    above = [v for v in verdicts if v.claim.startswith("GDC is above DC")]
    rest = [v for v in verdicts if v not in above]
    first: list[Block] = [groups_table(verdicts), *_contradicted(verdicts)]
    if above:
        caption = "GDC minus DC on the same tasks, points of accuracy; ▲ and ▼ are beyond the 95% interval"
        short = [replace(v, claim=_form(v.claim)) for v in above]
        first += [*_above_words(above), claims_table(short, caption)]
    caption = "Other statements, each gain with its 95% interval; – where nothing is trained and no control applies"
    return first, [verdict_table(rest, caption)] if rest else []


def groups_table(verdicts: Sequence[Verdict]) -> Table:
    """How many statements hold, for each group on its own: they are about different methods."""
    rows: list[list[Value]] = []
    for group, counts in count_by_group(verdicts).items():
        rows.append([group, GROUP_WORDS[group], sum(_numbers(counts)), *_numbers(counts)])
    header = ["group", "what ran", "statements", "hold", "do not hold", "interval has both signs"]
    return Table(header, rows, "The paper's statements, by what ran")


def _contradicted(verdicts: Sequence[Verdict]) -> list[Block]:
    """In plain words: the paper's statements that these features contradict with the paper's own setting."""
    against = [v for v in verdicts if v.group == PRINTED.group and v.holds is False]
    if not against:
        return []
    told: list[Block] = []
    for claim in dict.fromkeys(v.claim for v in against):
        found = "; ".join(f"{v.where}: {v.found}" for v in against if v.claim == claim)
        told.append(f"Contradicted with the paper's own setting: “{claim}”. Found: {found}.")
    return told


def _numbers(counts: Counts) -> list[int]:
    return [counts["holds"], counts["does_not_hold"], counts["cannot_tell"]]


def _above_words(above: Sequence[Verdict]) -> list[Block]:
    """Where GDC is above DC and where not, a paragraph for each form of it."""
    parts: list[Block] = []
    for claim in dict.fromkeys(v.claim for v in above):
        own = [v for v in above if v.claim == claim]
        told = [f"above DC in {sum(v.holds is True for v in own)} of {len(own)} cases"]
        for holds, word in ((False, "below DC"), (None, "not distinguishable from DC")):
            if where := [v.where for v in own if v.holds is holds]:
                told.append(f"{word} on {'; '.join(where)}")
        parts.append(f"GDC, {_form(claim)}: {', '.join(told)}.")
    return parts


def _form(claim: str) -> str:
    """The form of GDC that a claim is about.

    >>> _form("GDC is above DC (as printed)")
    'as printed'
    """
    return claim.partition("(")[2].rstrip(")")
