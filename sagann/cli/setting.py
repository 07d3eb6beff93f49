"""Setting: one value that a person may set, on the command line or in a TOML file, and how to read it.

Both ways end in the same checks, so ``--hidden x`` and ``hidden = "x"`` are refused with the same words.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sagann.errors import InputError

Kind = Literal["integer", "number", "flag", "text", "options"]
NONE = "none"
"How an optional setting is written when it is to be unset."


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One value that a person may set.

    Example:
        >>> hidden = Setting(section="model", name="hidden", kind="integer", help="Width.", panel="Model")
        >>> hidden.option, hidden.from_text("64")
        ('--hidden', 64)
        >>> hidden.from_toml(64.5, where="run.toml")
        Traceback (most recent call last):
        ...
        sagann.errors.InputError: hidden is not an integer: 64.5 (in run.toml). Write model.hidden as an integer.
    """

    section: str
    "Section of the TOML file: 'model', 'train' or 'data'."
    name: str
    "Key in that section, and the option's name with dashes."
    kind: Kind
    "What a value is; 'options' is a mapping, given as KEY=VALUE, any number of times."
    help: str
    "What it means, unit included."
    panel: str
    "The group that ``--help`` shows it in."
    default: str | None = None
    "The default in words, as ``--help`` shows it; None for a setting without one."
    optional: bool = False
    "Whether it may be unset, which is written 'none'."
    metavar: str | None = None
    "What ``--help`` shows in place of a value."
    largest: int | None = None
    "The largest integer accepted, where the configuration that takes it has no limit of its own."

    @property
    def option(self) -> str:
        """The option, as '--layer-norm'; for a mapping in the singular."""
        name = self.name.removesuffix("s") if self.kind == "options" else self.name
        return "--" + name.replace("_", "-")

    def from_text(self, text: str) -> Any:
        """Read what stands after the option on the command line.

        Raises:
            InputError: it is not of this kind.
        """
        if self.optional and text == NONE:
            return None
        value: Any = text
        if self.kind in ("integer", "number"):
            try:
                value = int(text) if self.kind == "integer" else float(text)
            except ValueError as error:
                raise self._refused(text, self.option, f"Write {self.option} {self._noun}.") from error
        return self._checked(value, self.option)

    def from_texts(self, texts: Sequence[str]) -> dict[str, Any]:
        """Read the KEY=VALUE pairs of a mapping; a value is written as in TOML, a bare word is a string."""
        values: dict[str, Any] = {}
        for text in texts:
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise self._refused(text, self.option, f"Write {self.option} KEY=VALUE.")
            values[key] = _toml_value(value)
        return values

    def from_toml(self, value: Any, *, where: str) -> Any:
        """Take a value that a TOML file holds.

        Raises:
            InputError: it is not of this kind; ``where`` names the file.
        """
        if self.optional and value == NONE:
            return None
        fits = {
            "integer": isinstance(value, int) and not isinstance(value, bool),
            "number": isinstance(value, int | float) and not isinstance(value, bool),
            "flag": isinstance(value, bool),
            "text": isinstance(value, str),
            "options": isinstance(value, dict),
        }[self.kind]
        if not fits:
            raise self._refused(value, where, f"Write {self.section}.{self.name} {self._noun}.")
        if self.kind == "number":
            try:
                value = float(value)
            except OverflowError as error:
                raise self._refused(value, where, f"Write {self.section}.{self.name} {self._noun}.") from error
        return self._checked(value, where)

    def _checked(self, value: Any, where: str) -> Any:
        if self.largest is not None and value > self.largest:
            raise InputError(
                f"{self.name} is too large",
                value=f"{_short(value)}, at most {self.largest} is possible",
                where=where,
                fix=f"Lower {self.name}.",
            )
        return value

    @property
    def _noun(self) -> str:
        noun = {
            "integer": "as an integer",
            "number": "as a number",
            "flag": "as true or false",
            "text": "as a string",
            "options": "as a table of options",
        }[self.kind]
        return f"{noun}, or '{NONE}'" if self.optional else noun

    def _refused(self, value: object, where: str, fix: str) -> InputError:
        expected = {
            "integer": "an integer",
            "number": "a number",
            "flag": "true or false",
            "text": "a string",
            "options": "a table of options" if not isinstance(value, str) else "KEY=VALUE",
        }[self.kind]
        return InputError(f"{self.name} is not {expected}", value=_short(value), where=where, fix=fix)


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    # A line break would let the text hold further keys; then it is no single value.
    return parsed["value"] if list(parsed) == ["value"] else text


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to write out integers of thousands of digits.
        return f"an integer of more than {2**8} bytes"
    return text if len(text) <= 80 else f"{text[:77]}..."
