"""What an experiment shows, before it is a page or a Markdown file: paragraphs, tables, pictures and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from fewcal.evaluation.stats import Paired
from fewcal.paper.measured import Measured, beyond, gain_text, mean_accuracy, mean_text
from fewcal.paper.settings import GROUPS, Group
from fewcal.render import Cell, Page
from fewcal.render.page import MARKS, Value

if TYPE_CHECKING:
    import matplotlib.figure


@dataclass(frozen=True)
class Table:
    """A table with its caption; `Cell(mark="cited")` are figures of the paper."""

    header: Sequence[str]
    rows: Sequence[Sequence[Value]]
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A matplotlib figure under a file name, with words for those who do not see it."""

    stem: str
    figure: matplotlib.figure.Figure
    alt: str
    caption: str = ""


@dataclass(frozen=True)
class Verdict:
    """A statement of the paper and what was found.

    Attributes
    ----------
    claim, where, found : str
    holds : bool or None
        None where the interval has both signs.
    group : str
        Whether the paper's method ran as printed, was tuned or rescaled, or it is `default`.
    control : str
        The difference to the control for normalisation: the same transform, centring and L2 without calibration.
    above_control : bool or None
        None where that interval has both signs, or there is no control.
    """

    claim: str
    where: str
    found: str
    holds: bool | None
    group: Group
    control: str = ""
    above_control: bool | None = None

    @property
    def word(self) -> str:
        """In one or two words."""
        return _WORDS[self.holds]

    @classmethod
    def of(cls, claim: str, where: str, gain: Paired, group: Group, control: Paired | None = None) -> Verdict:
        """The statement that a is above b, from their paired difference; `control` is a minus the control."""
        extra = ("", None) if control is None else _judged(control)
        return cls(claim, where, *_judged(gain), group, *extra)


_WORDS = {True: "holds", False: "does not hold", None: "cannot tell"}


def _judged(gain: Paired) -> tuple[str, bool | None]:
    if gain.won + gain.lost == 0:
        return f"no task changes ({gain.n} tasks)", None
    return f"{gain_text(gain)} ({gain.n} tasks)", gain.difference > 0 if beyond(gain) else None


class Counts(TypedDict):
    """How many statements of a group hold, do not hold, and cannot be told."""

    holds: int
    does_not_hold: int
    cannot_tell: int


def count_by_group(verdicts: Sequence[Verdict]) -> dict[Group, Counts]:
    """Verdicts counted for each group on its own.

    >>> count_by_group([Verdict("x", "here", "+1", True, "HGDC")])["HGDC"]
    {'holds': 1, 'does_not_hold': 0, 'cannot_tell': 0}
    """
    out: dict[Group, Counts] = {}
    for group in GROUPS:
        found = [v.holds for v in verdicts if v.group == group]
        out[group] = {"holds": found.count(True), "does_not_hold": found.count(False), "cannot_tell": found.count(None)}
    return out


Block: TypeAlias = str | Table | Picture


@dataclass
class Section:
    """Everything that one experiment has to say."""

    blocks: list[Block] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)


def cited(value: float | None, plus_minus: float | None = None, title: str = "") -> Cell:
    """A figure of the paper.

    >>> cited(84.57, 0.48, "Table 1").text
    '84.57 ± 0.48'
    """
    if value is None:
        return Cell(None)
    text = f"{value:.2f}" + (f" ± {plus_minus:.2f}" if plus_minus is not None else "")
    return Cell(text, sort=value, mark="cited", title=f"the paper, {title}" if title else "the paper")


def accuracy_cell(record: Measured, name: str, title: str = "", mark: str = "") -> Cell:
    """The accuracy of a method with its half-width."""
    return Cell(mean_text(record, name), sort=mean_accuracy(record, name), title=title, mark=mark)


def gain_cell(gain: Paired | None) -> Cell:
    """A difference, marked where it lies beyond its interval."""
    if gain is None:
        return Cell(None)
    mark = ("good" if gain.difference > 0 else "bad") if beyond(gain) else ""
    return Cell(gain_text(gain), sort=gain.difference, mark=mark, title=f"{gain.n} tasks")


_MARKS = {True: "good", False: "bad", None: ""}


def verdict_table(verdicts: Sequence[Verdict], caption: str, alike: bool = False) -> Table:
    """Statements one by one, with a sign for what became of them; `alike` leaves out group and verdict."""
    columns: list[tuple[str, list[Value]]] = [
        ("the paper says", [v.claim for v in verdicts]),
        ("features", [v.where for v in verdicts]),
        ("found (gains in points)", [v.found for v in verdicts]),
    ]
    if not alike:
        columns.insert(2, ("group", [v.group for v in verdicts]))
        columns.append(("verdict", [Cell(v.word, mark=_MARKS[v.holds]) for v in verdicts]))
    if any(v.control for v in verdicts):
        columns.append(("minus the control", [Cell(v.control or None, mark=_MARKS[v.above_control]) for v in verdicts]))
    rows = list(zip(*(cells for _, cells in columns), strict=True))
    return Table([header for header, _ in columns], rows, caption)


def claims_table(verdicts: Sequence[Verdict], caption: str) -> Table:
    """A row for each feature set, a column for each statement, followed by its control where there is one."""
    header, rows = ["features"], []
    claims = list(dict.fromkeys(v.claim for v in verdicts))
    controlled = {c for c in claims if any(v.claim == c and v.control for v in verdicts)}
    for claim in claims:
        header += [claim, "minus the control"] if claim in controlled else [claim]
    for where in dict.fromkeys(v.where for v in verdicts):
        own = {v.claim: v for v in verdicts if v.where == where}
        line: list[Value] = [where]
        for claim in claims:
            v = own.get(claim)
            line.append(Cell(v.found, mark=_MARKS[v.holds], title=v.word) if v else None)
            if claim in controlled:
                line.append(Cell(v.control or None, mark=_MARKS[v.above_control]) if v else None)
        rows.append(line)
    return Table(header, rows, caption)


# ---- writing --------------------------------------------------------------------------------------------------------


def to_page(page: Page, blocks: Sequence[Block]) -> None:
    """Blocks on an HTML page."""
    for block in blocks:
        if isinstance(block, str):
            page.text(block)
        elif isinstance(block, Table):
            page.table(block.header, block.rows, block.caption)
        else:
            page.figure(block.figure, block.alt, block.caption)


def to_markdown(blocks: Sequence[Block], pictures: Path | None = None) -> str:
    """Blocks as Markdown; pictures as links into the folder of that name."""
    out = []
    for block in blocks:
        if isinstance(block, str):
            out.append(block)
        elif isinstance(block, Table):
            head = [block.caption, ""] if block.caption else []
            lines = [_line(block.header), _line(["---"] * len(block.header))]
            out.append("\n".join([*head, *lines, *(_line([_plain(v) for v in row]) for row in block.rows)]))
        elif pictures is not None:
            out.append(f"![{block.alt}]({(pictures / block.stem).with_suffix('.svg').as_posix()})\n\n{block.caption}")
    return "\n\n".join(out) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _plain(value: Value) -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    if cell.text is None:
        return "–"
    text = f"{cell.text:.4g}" if isinstance(cell.text, float) else str(cell.text)
    return f"{text} {MARKS[cell.mark][0]}" if cell.mark else text
