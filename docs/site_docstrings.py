"""Docstrings as the site's Markdown wants them; the text stays that of the source.

The source follows Google's sections without blank lines between them, names objects by roles (``:class:`Name` ``) and writes
formulas by a directive (``.. math::``). Here sections get their blank lines, roles become code, and formulas a block of code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj|math):`~?([^`]+)`")
SECTION = re.compile(r"(?<=[^\n])\n(?=(?:Args|Returns|Raises|Yields|Attributes|Examples?|References):\n)")
EXAMPLE = re.compile(r"^Example:$", flags=re.MULTILINE)
FORMULA = re.compile(r"^\.\. math::[ \n]*((?:.+\n?)+)", flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object whose source was read."""
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)

    def on_module(self, *, mod: griffe.Module, **_: Any) -> None:
        """Called for every module. The package itself is a member of nothing, and ``on_object`` is called for members alone."""
        self.on_object(obj=mod)


def rewritten(text: str) -> str:
    """A docstring in Markdown."""
    text = ROLE.sub(r"``\1``", text)
    text = FORMULA.sub(lambda found: f"```text\n{found[1].rstrip()}\n```\n", text)
    return EXAMPLE.sub("Examples:", SECTION.sub("\n\n", text))
