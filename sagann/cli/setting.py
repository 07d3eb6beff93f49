"""Setting: one value that a person may set, on the command line or in a TOML file, and how it is read.

Both ways end in the same checks, so ``--hidden x`` and ``hidden = "x"`` are refused with the same words.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sagann.errors import InputError

Kind = Literal["integer", "number", "flag", "text", "options"]
NONE = "none"
"How an optional setting is written when it is to be unset."


class KindFacts(NamedTuple):
    """How values of a kind are named and written."""

    noun: str
    "Name of the values in errors."
    types: tuple[type, ...]
    "Types of the values in a TOML file."
    annotation: str
    "Annotation of a field of a configuration."
    metavar: str
    "Placeholder of a value in ``--help``."


KINDS: dict[Kind, KindFacts] = {
    "integer": KindFacts("an integer", (int,), "int", "INTEGER"),
    "number": KindFacts("a number", (int, float), "float", "NUMBER"),
    "flag": KindFacts("true or false", (bool,), "bool", ""),
    "text": KindFacts("a string", (str,), "str", "TEXT"),
    "options": KindFacts("a table of options", (dict,), "Mapping[str, Any]", "KEY=VALUE"),
}


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
    "Section of the TOML file: 'data', 'model' or 'train'."
    name: str
    "Key in the section. With dashes, the name of the option."
    kind: Kind
    "Type of the value. 'options' is a mapping; on the command line it is given as KEY=VALUE, any number of times."
    help: str
    "Meaning and unit."
    panel: str
    "Title of the group of options in which ``--help`` shows the setting."
    default: str | None = None
    "Default as ``--help`` shows it; None for a setting without a default."
    optional: bool = False
    "Whether the setting may be unset, which is written 'none'."
    metavar: str | None = None
    "Placeholder of the value in ``--help``; None for the kind's."
    largest: int | None = None
    "Largest integer accepted; None for no limit here."

    @property
    def option(self) -> str:
        """The option, as '--layer-norm'; for a mapping in the singular."""
        name = self.name.removesuffix("s") if self.kind == "options" else self.name
        return "--" + name.replace("_", "-")

    def from_text(self, text: str) -> Any:
        """Read the text after the option on the command line.

        Raises:
            InputError: the text is not of this kind.
        """
        if self.optional and text == NONE:
            return None
        if self.kind == "text":
            return text
        try:
            value = int(text) if self.kind == "integer" else float(text)
        except ValueError as error:
            raise self._refused(text, self.option, self.option) from error
        return self._checked(value, self.option)

    def from_texts(self, texts: Sequence[str]) -> dict[str, Any]:
        """Read the KEY=VALUE pairs of a mapping. A value is written as in TOML; a bare word is a string."""
        values: dict[str, Any] = {}
        for text in texts:
            key, equals, value = text.partition("=")
            if not equals or not key:
                raise InputError(
                    f"{self.name} is not KEY=VALUE",
                    value=_short(text),
                    where=self.option,
                    fix=f"Write {self.option} KEY=VALUE.",
                )
            values[key] = _toml_value(value)
        return values

    def from_toml(self, value: Any, *, where: str) -> Any:
        """Take a value from a TOML file.

        Raises:
            InputError: the value is not of this kind; ``where`` names file and key.
        """
        if self.optional and value == NONE:
            return None
        key = f"{self.section}.{self.name}"
        if type(value) not in KINDS[self.kind].types:
            raise self._refused(value, where, key)
        try:
            if self.kind == "number":
                value = float(value)
        except OverflowError as error:
            raise self._refused(value, where, key) from error
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

    def _refused(self, value: object, where: str, key: str) -> InputError:
        noun = KINDS[self.kind].noun
        return InputError(
            f"{self.name} is not {noun}",
            value=_short(value),
            where=where,
            fix=f"Write {key} as {noun}, or '{NONE}'." if self.optional else f"Write {key} as {noun}.",
        )


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return text
    # With a line break the text can hold further keys: then it is a string.
    return parsed["value"] if list(parsed) == ["value"] else text


def _short(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to write out integers of thousands of digits.
        return f"an integer of more than {2**8} bytes"
    return text if len(text) <= 80 else f"{text[:77]}..."
