"""RunSettings: everything that decides a run, from a TOML file and the command line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sagann.cli.options import refuse_given
from sagann.cli.settings import NONE, SECTIONS, SETTINGS
from sagann.did_you_mean import closest
from sagann.errors import InputError, require_choice
from sagann.nn import ModelConfig
from sagann.nn.user_model import require_named
from sagann.ranges import require_wait
from sagann.saga.engine import Engine, NaiveEngine
from sagann.storage.json_fields import is_unicode
from sagann.storage.load import EMBEDDED
from sagann.toml_text import format_toml
from sagann.train import TrainConfig
from sagann.train.config import READ_BESIDE

Tables = dict[str, dict[str, Any]]
"Values of settings by section and name."
ENGINES = ("compiled", "lean", "naive")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which graph a run opens, and how the graph is changed and split."""

    data: str
    "A dataset folder, an .npz file, or the name of an embedded graph (demo)."
    split: str | None = None
    """random:TRAIN,VAL (shares), per-class:TRAIN,VAL (vertices per class), planetoid:TRAIN,VAL,TEST (TRAIN per class), or
    graphs:TRAIN/VAL/TEST (names or positions, comma-separated). It is drawn with the seed of the run. None takes the
    dataset's own split, or random:0.6,0.2 where there is none. Of links: edges:TRAIN,VAL (shares of the edges to learn and to validate on), by
    default edges:0.85,0.05."""
    targets: tuple[int, ...] | None = None
    "Columns of the targets that a regression learns, from 0; None learns all of them."
    undirected: bool = False
    "Add the reverse of every edge and merge multi-edges."
    inverse_edges: bool = False
    "Typed graphs: give every edge a reverse of a type of its own."
    normalise_features: bool = False
    "Divide each vertex's features by their sum."
    verify: bool = True
    "Compare the checksums of the dataset's files with their content, which tells a flipped bit."


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """Everything that decides a run."""

    data: DataConfig
    "The graph."
    model: ModelConfig
    "The model."
    train: TrainConfig
    "Length, optimizer, device, checkpoints and logs of the training."
    engine: str = "compiled"
    """How layers are executed. compiled: hoisted, commuted and fused ('sagann plan' shows how); lean: the same in less
    memory and more time; naive: plain PyTorch, with a tensor per edge."""
    workers: int = 1
    """Number of processes on this machine that compute together, each with a part of the graph in its memory. Under torchrun, the
    number of processes that it starts counts instead."""
    worker_timeout: float = 60.0
    "Seconds for which a worker waits for another one while they compute, before it ends with an error."
    balance: str = "edges"
    """What the workers' parts have about equally much of. edges, vertices: as they are counted; the parts stay. cost: seconds, as a cost model
    predicts them from the epochs of the run; in training, vertices move between workers where that pays."""

    def to_toml(self) -> str:
        """The settings as a TOML file, every one written out."""
        tables = {
            "data": asdict(self.data),
            "model": {field.name: getattr(self.model, field.name) for field in fields(self.model)},
            "train": {**self.train.to_json(), **{name: getattr(self, name) for name in _OF_RUN}},
        }
        return format_toml(
            {
                section: {key: NONE if value is None else value for key, value in table.items()}
                for section, table in tables.items()
            }
        )

    def new_engine(self) -> Engine:
        """The engine that runs the layers."""
        # Imported here: it loads Numba, which many commands do not need.
        from sagann.runtime.in_memory.engine import CompiledEngine

        return NaiveEngine() if self.engine == "naive" else CompiledEngine(lean=self.engine == "lean")


_OF_RUN = ("engine", "workers", "worker_timeout", "balance")
"Fields of RunSettings that stand in the section [train]."


def read_text(path: Path, *, what: str) -> str:
    """Read a text file (``what``, for errors) without its byte order mark, which some editors write."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(
            f"{what} cannot be read",
            value=reason or type(error).__name__,
            where=str(path),
            fix="Check the path. The file must be text in UTF-8.",
        ) from error


def read_tables(path: Path) -> Tables:
    """Read the settings of a TOML file; an InputError names the section, key or value that is refused."""
    text = read_text(path, what="configuration file")
    try:
        content = tomllib.loads(text)
    except ValueError as error:
        raise InputError(
            "configuration file is not TOML",
            value=str(error),
            where=str(path),
            fix="Mend that line; the sections are [data], [model] and [train].",
        ) from error
    known = {(setting.section, setting.name): setting for setting in SETTINGS}
    tables: Tables = {}
    for section, table in content.items():
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
                others = [f"[{of_section}]" for of_section, name in known if name == key]
                raise InputError(
                    "unknown key in a configuration",
                    value=f"'{key}' in [{section}]",
                    where=str(path),
                    fix=f"Put it under {others[0]}." if others else closest(key, names),
                )
            tables[section][key] = known[section, key].from_toml(value, where=f"{path}, {section}.{key}")
    return tables


def merge(tables: Tables, given: Mapping[str, Any]) -> Tables:
    """Replace values of a file by those of the command line; a mapping is replaced whole.

    What the command line unsets, as by ``--devices none``, takes along the values of the file that only count beside it.
    """
    merged = {section: dict(tables.get(section, {})) for section in SECTIONS}
    for setting in SETTINGS:
        if setting.name in given:
            merged[setting.section][setting.name] = given[setting.name]
    train = merged["train"]
    for owners, names in READ_BESIDE:
        if any(name in given for name in owners) and all(train.get(name) is None for name in owners):
            for name in set(names) - set(given):
                train.pop(name, None)
    return merged


def chosen_settings(given: Mapping[str, Any], file: Path | None, *, of_run: bool) -> RunSettings:
    """The settings of a file, if one is named, replaced by those that were given on the command line.

    A model in a Python file must be given: no file has it executed. ``of_run`` says that a run folder holds the file.
    """
    tables = {} if file is None else read_tables(file)
    settings = settings_of(merge(tables, given), stored=of_run and "data" not in given)
    if "model" not in given:
        require_named(settings.model.model, where=str(file), error=InputError)
    return settings


def settings_of(tables: Tables, *, stored: bool = False) -> RunSettings:
    """Make the checked configurations of merged tables.

    ``stored`` says that ``data`` comes from a run folder. There paths are absolute, so 'demo' is the embedded graph even
    where a file of that name exists.
    """
    train = dict(tables["train"])
    of_run = {name: train.pop(name) for name in _OF_RUN if name in train}
    engine = of_run.get("engine", ENGINES[0])
    require_choice(engine, ENGINES, what="unknown engine", where="RunSettings.engine")
    check_workers(of_run)
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
            where="RunSettings.engine",
            fix="Leave out one of engine and memory.",
        )
    data = tables["data"]["data"]
    settings = RunSettings(
        data=DataConfig(**{**tables["data"], "data": data if stored and data in EMBEDDED else absolute_path(data)}),
        model=ModelConfig(**tables["model"]),
        train=TrainConfig(**train),
        **of_run,
    )
    if not is_unicode(settings.to_toml()):
        raise InputError(
            "a setting cannot be written in UTF-8",
            value=f"data is {settings.data.data!r}, model is {settings.model.model!r}",
            where="the run's config.toml",
            fix="Rename the file or folder: its name has bytes that are no characters.",
        )
    return settings


def check_workers(of_run: Mapping[str, Any]) -> None:
    """Refuse values of ``worker_timeout`` and ``balance``, where they are given, that workers cannot have."""
    if (timeout_s := of_run.get("worker_timeout")) is not None:
        require_wait(timeout_s, "worker_timeout")
    if "balance" in of_run:
        # Imported here: it loads Numba, which many commands do not need.
        from sagann.partition import BALANCES

        require_choice(of_run["balance"], BALANCES, what="unknown balance", where="RunSettings.balance")


def require_nothing_of_workers(given: Mapping[str, Any]) -> None:
    """Refuse settings on the command line that have an effect on several workers alone."""
    refuse_given(
        {"--balance": "balance" in given, "--worker-timeout": "worker_timeout" in given},
        "nothing is divided without workers",
        beside="and there is one process",
        where="the command line",
        fix="Leave {name} out, or start workers (--workers 2).",
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
