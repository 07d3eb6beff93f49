"""The settings of a run: one for each field of DataConfig, ModelConfig and TrainConfig, and the engine.

``sagann train`` has an option for each setting, and a TOML file a key. Name, type, default and help are the field's own.
They are parsed from the source of the classes, because importing the classes loads PyTorch, and ``--help`` must be quick.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from sagann.cli.setting import KINDS, NONE, Kind, Setting

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
    "Optimisation": "epochs optimizer lr weight_decay decay optimizer_options scheduler scheduler_options clip_norm seed",
    "Evaluation and early stopping": "monitor patience weights eval_every",
}
_METAVARS = {
    "data": "PATH|NAME",
    "split": "SPLIT",
    "model": "NAME|FILE.py:CLASS",
    "encoder": "auto|none|linear|embedding",
    "optimizer": "NAME",
    "decay": "all|first-layer|matrices",
    "scheduler": "NAME",
    "monitor": "SPLIT/METRIC",
    "weights": "best|last",
    "engine": "compiled|lean|naive",
    "device": "auto|cpu|cuda|cuda:N",
    "memory": "SIZE",
    "spill": "FOLDER",
}
# An epoch of more layers takes minutes on any graph. The sizes of wider tensors do not fit 64 bits.
_LARGEST = {"layers": 1000, "hidden": 2**31 - 1, "heads": 2**31 - 1, "out_heads": 2**31 - 1}
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
                largest=_LARGEST.get(name),
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
