"""For the reference of the docs: doctests in a docstring become code blocks, wherever they stand in it."""

from __future__ import annotations

import re
from typing import Any

import griffe

# Lines from the first >>> to the next empty line: what is typed and what is answered.
_EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    """Fences doctests; a section called Examples has its own reader and is left alone."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None and "Examples\n---" not in obj.docstring.value:
            obj.docstring.value = _EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
