"""RunSettings: what a run was asked for, from a file and the command line, checked and whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sagann.cli.setting import NONE
from sagann.cli.settings import ENGINES, SECTIONS, SETTINGS
from sagann.cli.toml_file import format_toml, read_toml
from sagann.errors import InputError
from sagann.nn import ModelConfig
from sagann.storage.load import EMBEDDED
from sagann.storage.manifest import is_unicode
from sagann.train import TrainConfig
from sagann.train.policies import closest

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which graph, and what is done to it before the model prepares it."""

    data: str
    "A dataset folder, an .npz file, or the name of an embedded graph."
    split: str | None = None
    "How to split; None for the dataset's own split, or random shares where it has none."
    undirected: bool = False
    "Add the reverse of every edge and merge multi-edges."
    inverse_edges: bool = False
    "Give every edge a reverse of a type of its own."
    normalise_features: bool = False
    "Divide each vertex's features by their sum."

    @property
    def changes_values(self) -> bool:
        """Whether the graph that is trained on has other values than the one that was opened and checked."""
        return self.undirected or self.inverse_edges or self.normalise_features


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Everything that decides a run."""

    data: DataConfig
    "The graph."
    model: ModelConfig
    "The model."
    train: TrainConfig
    "How to train."
    engine: str = ENGINES[0]
    "How layers are executed."

    def to_toml(self) -> str:
        """The same settings as a file, every one written out."""
        tables = {
            "data": asdict(self.data),
            "model": {field.name: getattr(self.model, field.name) for field in fields(self.model)},
            "train": {**self.train.to_json(), "engine": self.engine},
        }
        written = {
            section: {key: NONE if value is None else value for key, value in table.items()}
            for section, table in tables.items()
        }
        return format_toml(written)


def read_tables(path: Path) -> Tables:
    """Read the settings that a TOML file holds.

    Raises:
        InputError: the file is no TOML, or a section, key or value is refused; the message names it.
    """
    known = {(setting.section, setting.name): setting for setting in SETTINGS}
    tables: Tables = {}
    for section, table in read_toml(path).items():
        if section not in SECTIONS or not isinstance(table, dict):
            raise InputError(
                "unknown section in a configuration",
                value=f"'{section}', expected {', '.join(f'[{name}]' for name in SECTIONS)}",
                where=str(path),
                fix="Put every key under one of these sections.",
            )
        tables[section] = {}
        for key, value in table.items():
            if (section, key) not in known:
                names = [name for of_section, name in known if of_section == section]
                raise InputError(
                    "unknown key in a configuration",
                    value=f"'{key}' in [{section}]",
                    where=str(path),
                    fix=closest(key, names),
                )
            tables[section][key] = known[section, key].from_toml(value, where=f"{path}, {section}.{key}")
    return tables


def merge(tables: Tables, given: Mapping[str, Any]) -> Tables:
    """Put what the command line gave over what a file said; a mapping is replaced whole."""
    merged: Tables = {section: dict(tables.get(section, {})) for section in SECTIONS}
    for setting in SETTINGS:
        if setting.name in given:
            merged[setting.section][setting.name] = given[setting.name]
    return merged


def settings_of(tables: Tables, *, stored: bool = False) -> RunSettings:
    """Check merged tables and make the configurations of them.

    Args:
        tables: sections of settings.
        stored: whether they are a run's, whose paths are absolute: a name is that of an embedded graph.
    Raises:
        InputError: there is no data, the engine is unknown, or a configuration refuses a value.
    """
    train = dict(tables["train"])
    engine = train.pop("engine", ENGINES[0])
    if engine not in ENGINES:
        raise InputError(
            "unknown engine",
            value=f"'{engine}', expected one of {', '.join(ENGINES)}",
            where="engine",
            fix=closest(str(engine), ENGINES),
        )
    if "data" not in tables["data"]:
        raise InputError(
            "no data",
            value="neither --data nor the key data in section [data] of a --config file",
            where="sagann train",
            fix="Name a dataset, as --data demo.",
        )
    if train.get("memory") is not None and engine != ENGINES[0]:
        raise InputError(
            "only the compiled engine streams",
            value=f"engine '{engine}' with memory {train['memory']}",
            where="engine",
            fix="Leave out one of engine and memory.",
        )
    settings = RunSettings(
        data=DataConfig(**{**tables["data"], "data": _source(tables["data"]["data"], stored=stored)}),
        model=ModelConfig(**{**tables["model"], "model": _absolute_model(tables["model"].get("model", "gcn"))}),
        train=TrainConfig.from_json(train),
        engine=engine,
    )
    if not is_unicode(settings.to_toml()):
        raise InputError(
            "a setting cannot be written in UTF-8",
            value=f"data is {settings.data.data!r}, model is {settings.model.model!r}",
            where="the run's config.toml",
            fix="Rename the file or folder: its name has bytes that are no characters.",
        )
    return settings


def _source(data: str, *, stored: bool) -> str:
    return data if stored and data in EMBEDDED else absolute_path(data)


def absolute_path(source: str) -> str:
    """A path as seen from anywhere, because a run is continued and evaluated from other folders; else the name."""
    path = Path(source)
    try:
        return str(path.resolve()) if path.exists() else source
    except (OSError, ValueError, RuntimeError):
        # Too long, a loop of links, or with a null character: the loader says so.
        return source


def _absolute_model(model: str) -> str:
    file, colon, name = model.rpartition(":")
    return f"{absolute_path(file)}:{name}" if colon and file.endswith(".py") else model
