"""Docstrings name objects by roles, as in ``:class:`Name` ``; the site, which is Markdown, shows the name as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Rewrite the roles of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every object whose source was read."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"``\1``", obj.docstring.value)
