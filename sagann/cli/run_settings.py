"""Settings of a run from a TOML file and the command line, which wins."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sagann.cli.failure import OPTION
from sagann.config import SETTINGS, WORKERS, DataConfig, ModelConfig, RunConfig, TrainConfig
from sagann.errors import InputError, closest
from sagann.nn.user_model import require_named
from sagann.options import NONE, Needs
from sagann.saga.engine import Engine, NaiveEngine
from sagann.storage.load import EMBEDDED

Tables = dict[str, dict[str, Any]]
"Values of settings by section and name."
SECTIONS = tuple(dict.fromkeys(setting.section for setting in SETTINGS.values()))
"Sections of a TOML file."


def new_engine(settings: RunConfig) -> Engine:
    """The engine that runs the layers."""
    from sagann.runtime.in_memory.engine import CompiledEngine

    return NaiveEngine() if settings.engine == "naive" else CompiledEngine(lean=settings.engine == "lean")


def read_text(path: Path, *, what: str) -> str:
    """Read a text file (``what``, for errors) without its byte order mark, which some editors write."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"{what} cannot be read: {reason or type(error).__name__} (in {path})",
            hint="Check the path. The file must be text in UTF-8.",
        ) from error


def read_tables(path: Path) -> Tables:
    """Read the settings of a TOML file; an InputError names the section or key that is refused. Values are checked with all others."""
    text = read_text(path, what="configuration file")
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        raise InputError(
            f"configuration file is not TOML: {error} (in {path})",
            hint="Mend that line; the sections are [data], [model] and [train].",
        ) from error
    for section, table in tables.items():
        if section not in SECTIONS or not isinstance(table, dict):
            found = f"'{section}', expected {', '.join(f'[{name}]' for name in SECTIONS)}"
            raise InputError(
                f"unknown section in a configuration: {found} (in {path})",
                hint="Put every key under one of these sections.",
            )
        for key, value in table.items():
            setting = SETTINGS.get(key)
            if setting is None or setting.section != section:
                known = [name for name, each in SETTINGS.items() if each.section == section]
                raise InputError(
                    f"unknown key in a configuration: '{key}' in [{section}] (in {path})",
                    hint=f"Put it under [{setting.section}]." if setting else closest(key, known),
                )
            if setting.optional and value == NONE:
                table[key] = None
    return tables


def merge(tables: Tables, given: Mapping[str, Any]) -> Tables:
    """Replace values of a file by those of the command line; a mapping is replaced whole.

    What the command line unsets, as by ``--devices none``, takes along the values of the file that only count beside it.
    """
    merged = {section: dict(tables.get(section, {})) for section in SECTIONS}
    for name, value in given.items():
        merged[SETTINGS[name].section][name] = value
    changed = set(given)
    for name, setting in SETTINGS.items():
        table = merged[setting.section]
        needs = [mark for mark in setting.marks if isinstance(mark, Needs)]
        if name not in given and any(changed & {*need.names} and need.unset(table) for need in needs):
            table.pop(name, None)
            changed.add(name)
    return merged


def chosen_settings(given: Mapping[str, Any], file: Path | None, *, of_run: bool) -> RunConfig:
    """The settings of a file, if one is named, replaced by those that were given on the command line.

    A model in a Python file must be given: no file has it executed. ``of_run`` says that a run folder holds the file.
    """
    tables = {} if file is None else read_tables(file)
    try:
        settings = settings_of(merge(tables, given), stored=of_run and "data" not in given)
    except InputError as error:
        if file is None:
            raise

        def by_key(option: re.Match[str]) -> str:
            name = option[1]
            return (
                option[0] if name in given or name not in SETTINGS else f"{file}, {SETTINGS[name].section}.{name}"
            )

        raise InputError(OPTION.sub(by_key, error.message), hint=error.hint) from error
    if "model" not in given:
        require_named(settings.model.model, where=str(file), error=InputError)
    return settings


def settings_of(tables: Tables, *, stored: bool = False) -> RunConfig:
    """Make the checked configurations of merged tables.

    ``stored`` says that ``data`` comes from a run folder. There paths are absolute, so 'demo' is the embedded graph even
    where a file of that name exists.
    """
    data, train = dict(tables["data"]), dict(tables["train"])
    if "data" not in data:
        raise InputError(
            "no data: neither --data nor the key data in section [data] of a --config file (in the command line)",
            hint="Name a dataset, as --data demo.",
        )
    if isinstance(data["data"], str) and not (stored and data["data"] in EMBEDDED):
        data["data"] = absolute_path(data["data"])
    of_run = {name: train.pop(name) for name in tables["train"] if SETTINGS[name].owner is RunConfig}
    settings = RunConfig(
        data=DataConfig(**data), model=ModelConfig(**tables["model"]), train=TrainConfig(**train), **of_run
    )
    try:
        settings.to_toml().encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"a setting cannot be written in UTF-8: data is {data['data']!r}, model is {settings.model.model!r} (in the run's config.toml)",
            hint="Rename the file or folder: its name has bytes that are no characters.",
        ) from error
    return settings


def require_nothing_of_workers(given: Mapping[str, Any]) -> None:
    """Refuse settings on the command line that have an effect on several workers alone."""
    for option in WORKERS[1:]:
        if option.name in given:
            raise InputError(
                f"nothing is divided without workers: {option.flag}, and there is one process (in the command line)",
                hint=f"Leave {option.flag} out, or start workers (--workers 2).",
            )


def absolute_path(source: str) -> str:
    """The absolute path of a file or folder that exists; else ``source``, which is a name.

    A run is continued and evaluated from other folders.
    """
    path = Path(source)
    try:
        return str(path.resolve()) if path.exists() else source
    except (OSError, ValueError, RuntimeError):
        # Too long, a loop of links, or with a null character: the loader says so.
        return source
