"""Did you mean: the known name that is nearest to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

LONGEST = 40
"Most characters of a name that is compared: a person mistypes short ones, and to compare long ones takes long."
_MOST_KNOWN = 1000


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """Offer the nearest known name, as a question with a space after it; an empty text where none is near.

    Only names of ordinary characters are compared and offered: others, which may come from foreign files, could hold codes that a
    terminal obeys. Of many names, the first thousand are compared.

    Example:
        >>> did_you_mean("Sgae", ["gcn", "sage"]), did_you_mean("transformer", ["gcn", "sage"])
        ("Did you mean 'sage'? ", '')
    """
    if not _is_plain(name):
        return ""
    # Of names that differ in upper and lower case alone, the first one stands for both.
    by_lower: dict[str, str] = {}
    for each in islice(filter(_is_plain, map(str, known)), _MOST_KNOWN):
        by_lower.setdefault(each.lower(), each)
    lower = str(name).lower()
    # Letters that changed places are the likeliest slip.
    near = [each for each in by_lower if sorted(each) == sorted(lower)] or difflib.get_close_matches(
        lower, by_lower, n=1
    )
    return f"Did you mean '{by_lower[near[0]]}'? " if near else ""


def closest(name: object, known: Iterable[object]) -> str:
    """Advice for an unknown name: the nearest known name, and all known names."""
    names = list(known)
    return f"{did_you_mean(name, names)}Known: {', '.join(map(str, names))}."


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= LONGEST and name.isprintable()
