"""The settings of a run: one for each field of DataConfig, ModelConfig and TrainConfig, and the engine.

``sagann train`` has an option for each setting, and a TOML file a key. Both ways end in the same checks, so ``--hidden x`` and
``hidden = "x"`` are refused with the same words. Name, type, default and help are the field's own. They are parsed from the
source of the classes, because importing the classes loads PyTorch, and ``--help`` must be quick.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sagann.errors import InputError, shown
from sagann.ranges import RANGES, Range

Kind = Literal["integer", "integers", "number", "flag", "text", "options", "weights"]
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
    "integers": KindFacts("a list of integers with commas between them", (list,), "tuple[int, ...]", "N,N,..."),
    "number": KindFacts("a number", (int, float), "float", "NUMBER"),
    "flag": KindFacts("true or false", (bool,), "bool", ""),
    "text": KindFacts("a string", (str,), "str", "TEXT"),
    "options": KindFacts("a table of options", (dict,), "Mapping[str, Any]", "KEY=VALUE"),
    "weights": KindFacts("a name or a list of numbers", (str, list), "str | tuple[float, ...]", "balanced|W,W,..."),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One value that a person may set."""

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
    range: Range | None = None
    "Range of an integer; None for other kinds."

    @property
    def option(self) -> str:
        """The option, as '--layer-norm'; for a mapping in the singular."""
        name = self.name.removesuffix("s") if self.kind == "options" else self.name
        return "--" + name.replace("_", "-")

    def from_text(self, text: str) -> Any:
        """Read the text after the option on the command line."""
        if self.optional and text == NONE:
            return None
        if self.kind == "text" or (self.kind == "weights" and text == "balanced"):
            return text
        try:
            value: Any = _READERS[self.kind](text)
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
                    value=shown(text),
                    where=self.option,
                    fix=f"Write {self.option} KEY=VALUE.",
                )
            values[key] = _toml_value(value)
        return values

    def from_toml(self, value: Any, *, where: str) -> Any:
        """Take a value from a TOML file; ``where`` names file and key."""
        if self.optional and value == NONE:
            return None
        key = f"{self.section}.{self.name}"
        is_mixed = (
            self.kind == "integers" and isinstance(value, list) and any(type(each) is not int for each in value)
        )
        if type(value) not in KINDS[self.kind].types or is_mixed:
            raise self._refused(value, where, key)
        try:
            if self.kind == "number":
                value = float(value)
        except OverflowError as error:
            raise self._refused(value, where, key) from error
        return self._checked(value, where)

    def _checked(self, value: Any, where: str) -> Any:
        if self.range is not None and value not in self.range:
            raise InputError(
                f"{self.name} is out of range",
                value=f"{shown(value)}, expected {self.range}",
                where=where,
                fix=f"Set {self.name} to {self.range}.",
            )
        return value

    def _refused(self, value: object, where: str, key: str) -> InputError:
        noun = KINDS[self.kind].noun
        return InputError(
            f"{self.name} is not {noun}",
            value=shown(value),
            where=where,
            fix=f"Write {key} as {noun}, or '{NONE}'." if self.optional else f"Write {key} as {noun}.",
        )


def integers(text: str) -> list[int]:
    """The integers of a text with commas between them, such as fanouts; a ValueError for any other text."""
    return [int(part) for part in text.split(",")]


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


_READERS: dict[Kind, Callable[[str], Any]] = {
    "integer": int,
    "integers": integers,
    "number": float,
    "weights": _numbers,
}
"How a kind of numbers is read from the command line."


def _toml_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except ValueError:
        return text
    # With a line break the text can hold further keys: then it is a string.
    return parsed["value"] if list(parsed) == ["value"] else text


SECTIONS = {"data": "Data", "model": "Model", "train": "Device, checkpoints, logs"}
"Sections of a TOML file, each with the title of its options in ``--help``."

_SOURCES = (
    ("data", "cli/run_settings.py", "DataConfig"),
    ("model", "nn/zoo.py", "ModelConfig"),
    ("train", "train/config.py", "TrainConfig"),
    ("train", "cli/run_settings.py", "RunSettings"),
)
_KINDS = {facts.annotation: kind for kind, facts in KINDS.items()}
# The section is long: these fields have titles of their own.
_PANELS = {
    "Task and loss": "task loss class_weights",
    "Optimisation": "epochs optimizer lr weight_decay decay optimizer_options scheduler scheduler_options clip_norm seed",
    "Mini-batches": "sample batch_size sampling_threads sample_on batches_ahead hot score cache",
    "Links": "negatives keep_positives decoder",
    "Several trainers": "devices mapping sharing link_rate",
    "Evaluation and early stopping": "monitor patience weights eval_every",
    "Workers": "workers worker_timeout balance",
}
_METAVARS = {
    "data": "PATH|NAME",
    "split": "SPLIT",
    "model": "NAME|FILE.py:CLASS",
    "encoder": "auto|none|linear|embedding",
    "devices": "auto|host:N,cuda:N,accelerator:N,...",
    "mapping": "cores|model",
    "sharing": "joint|hyscale|static",
    "link_rate": "BYTES_PER_S",
    "sample_on": "cpu|device",
    "hot": "SIZE|PERCENT|auto",
    "score": "degree|rpr|wrpr|vip",
    "cache": "static|s3-fifo|look-ahead",
    "task": "[graph-]classification|multi-label|regression, or link-prediction",
    "decoder": "auto|dot|distmult|mlp",
    "pool": "NAME,NAME,...",
    "loss": "NAME",
    "optimizer": "NAME",
    "decay": "all|first-layer|matrices",
    "scheduler": "NAME",
    "monitor": "SPLIT/METRIC",
    "weights": "best|last",
    "engine": "compiled|lean|naive",
    "worker_timeout": "SECONDS",
    "balance": "edges|vertices|cost",
    "device": "auto|cpu|cuda|cuda:N",
    "memory": "SIZE",
    "spill": "FOLDER",
}
_MARKUP = re.compile(r":\w+:`([^`]*)`|``([^`]*)``")


@functools.cache
def _module(path: str) -> ast.Module:
    return ast.parse((Path(__file__).parents[1] / path).read_text(encoding="utf-8"))


def _fields(path: str, class_name: str) -> Iterator[tuple[ast.AnnAssign, str]]:
    """Each field of a class with its text, which is the statement after the field."""
    body = next(
        node.body for node in _module(path).body if isinstance(node, ast.ClassDef) and node.name == class_name
    )
    for node, text in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr):
            yield node, ast.literal_eval(text.value)


def _settings() -> Iterator[Setting]:
    panels = {name: panel for panel, names in _PANELS.items() for name in names.split()}
    for section, path, class_name in _SOURCES:
        for field, text in _fields(path, class_name):
            name = ast.unparse(field.target)
            annotation = ast.unparse(field.annotation)
            kind = _KINDS.get(annotation.removesuffix(" | None"))
            if kind is None:
                continue
            yield Setting(
                section=section,
                name=name,
                kind=kind,
                help=_help(text),
                panel=panels.get(name, SECTIONS[section]),
                default=_default(kind, field.value),
                optional=annotation.endswith(" | None"),
                metavar=_METAVARS.get(name),
                range=RANGES[name] if kind == "integer" else None,
            )


def _default(kind: Kind, value: ast.expr | None) -> str | None:
    if value is None or kind == "options":
        return None
    default = ast.literal_eval(value)
    if kind == "flag":
        return "yes" if default else "no"
    return NONE if default is None else str(default)


def _help(text: str) -> str:
    """The text of a field without the markup of docstrings, and with None as the command line writes it."""
    return _MARKUP.sub(r"\1\2", " ".join(text.split())).replace("None", f"'{NONE}'")


SETTINGS = tuple(_settings())
