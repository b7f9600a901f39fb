"""Hooks of MkDocs: formulas as MathML, and a page of all commands and options. Neither loads anything from a network.

`pymdownx.arithmatex` marks formulas; browsers lay out MathML by themselves. The page is made from the command line
itself, so it cannot differ from it.
"""

from __future__ import annotations

import html
import re
from typing import Any

import typer
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fewcal.cli import COMMANDS, application

FORMULA = re.compile(r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<tex>.*?)\\[)\]]</(?P=tag)>', re.S)
OPTIONS_PAGE = "options.md"


def on_page_content(page_html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Typeset the formulas of a page."""

    def mathml(found: re.Match[str]) -> str:
        if found["open"] == "(":
            return convert(html.unescape(found["tex"]))
        return f"<p>{convert(html.unescape(found['tex']), display='block')}</p>"

    return FORMULA.sub(mathml, page_html)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of commands and options."""
    files.append(File.generated(config, OPTIONS_PAGE, content=options_page()))
    return files


def options_page() -> str:
    """All commands with their options, in Markdown."""
    parts = ["# Commands and options", "Made from the command line of this version: what `--help` prints."]
    for name in COMMANDS:
        group = typer.main.get_command(application(name))
        parts += describe(group.commands[name], f"fewcal {name}")  # type: ignore[attr-defined]
    return "\n\n".join(parts) + "\n"


def describe(command: Any, name: str) -> list[str]:
    """A command, or each of a group: its summary and a table of options."""
    if hasattr(command, "commands"):
        return [part for key, one in command.commands.items() for part in describe(one, f"{name} {key}")]
    context = command.context_class(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    records = [record for p in command.params if (record := p.get_help_record(context)) is not None]
    rows = [f"| `{option}` | {cell(words)} |" for option, words in records]
    summary = (command.help or "").partition("\n\n")[0]
    return [f"## {name}", f"`{name} {usage}`", summary, "\n".join(["| | |", "|---|---|", *rows])]


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|").replace("*", "\\*")
