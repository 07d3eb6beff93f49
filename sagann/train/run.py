"""Reopening a run folder: what was trained, how, and the trained model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sagann.byte_size import parse_bytes
from sagann.errors import CheckpointError, InputError, require_type
from sagann.nn import ModelConfig, build_model
from sagann.storage.regular_file import require_file
from sagann.train.atomic import parse_json
from sagann.train.checkpoint import file_digest
from sagann.train.codec import decode
from sagann.train.config import TrainConfig
from sagann.train.contract import Contract
from sagann.train.predictor import Predictor
from sagann.train.resources import resolve_device
from sagann.train.run_folder import AUTOMATIC, EXTRA_STATE, RunFolder
from sagann.train.streaming import Streaming


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run folder, read."""

    path: Path
    "The folder."
    model: str
    "The model's name in the zoo, or its class."
    model_config: ModelConfig | None
    "How to build the model; None for a module of the user's own."
    train_config: TrainConfig
    "How it was trained."
    data: str
    "Name or path of the training data."
    contract: Contract
    "What the model expects of a graph."
    versions: Mapping[str, Any]
    "Versions that the run was made with."
    graph: Mapping[str, Any]
    "Sizes of the training graph, and a digest of each of its arrays (sagann.train.identity.graph_identity)."
    class_names: tuple[str, ...]
    "Names of the classes; empty where none were given."
    metrics: Mapping[str, Any] | None
    "The content of metrics.json; None while the run is not finished."
    automatic_bytes: int | None = None
    "The memory budget that the run chose by itself; None where it did not."


def read_run(run_dir: str | os.PathLike[str]) -> Run:
    """Read what a run folder says of itself, without its weights.

    Raises:
        CheckpointError: ``run_dir`` is no run folder, or its run.json is damaged.
    """
    require_type(run_dir, (str, os.PathLike), where="run_dir", fix="Pass the folder that a training run wrote.")
    path = Path(run_dir)
    found = RunFolder(path).read_run()
    metrics = _read_summary(path / "metrics.json")
    try:
        model = found["model"]
        return Run(
            path=path,
            model=model["name"],
            model_config=None if model["config"] is None else ModelConfig(**model["config"]),
            train_config=TrainConfig.from_json(found["train"]),
            data=found["data"],
            contract=Contract.from_json(found["contract"]),
            versions=found["versions"],
            graph=dict(found["identity"]["graph"]),
            class_names=tuple(str(name) for name in found.get("class_names", ())),
            metrics=metrics,
            automatic_bytes=found.get(AUTOMATIC),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            "run.json is damaged",
            value=f"{type(error).__name__}: {error}",
            where=str(path),
            fix="Restore the file, or train again.",
        ) from error


def _read_summary(path: Path) -> dict[str, Any] | None:
    require_file(path, error=CheckpointError)
    if not path.exists():
        return None
    try:
        summary = parse_json(path.read_bytes())
        if not isinstance(summary, dict):
            raise TypeError("it is not an object")
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            "metrics.json is damaged",
            value=f"{type(error).__name__}: {error}",
            where=str(path),
            fix="Resume the run to write it anew.",
        ) from error
    return summary


def load_run(
    run_dir: str | os.PathLike[str],
    *,
    model: nn.Module | str | None = None,
    device: str = "auto",
    memory: str | None = None,
    spill: str | os.PathLike[str] | None = None,
) -> Predictor:
    """Reopen a trained model: the weights its run ended with, or of its newest checkpoint if it has not ended.

    A Python file that a run folder names is never executed on its word: the caller names it again. A model that was
    trained within a memory budget is evaluated, and predicts, within it too. The model is left in evaluation mode.

    Args:
        run_dir: the folder that a Trainer wrote.
        model: the module to load the weights into, or 'path/to/file.py:ClassName' to build it from; needed where
            the run's model is not of the zoo.
        device: 'cpu', 'cuda', 'cuda:N' or 'auto'.
        memory: a budget to stream the model within, such as '2GiB'; None for the one that it was trained within, if any.
        spill: the folder for what does not fit; None for the run's, if it was named one, else the system's temporary one.
    Returns:
        A predictor with ``evaluate``, ``predict`` and ``embed``, each of which takes a graph.
    Raises:
        CheckpointError: no run folder, no weights yet, weights of another model, or ``model`` is needed.
        InputError: the run's model was a module of the user's own, and ``model`` is none; or ``memory`` is no size.
    """
    require_type(
        model,
        (str, nn.Module),
        where="load_run.model",
        fix="Pass a module, or 'path/to/file.py:ClassName'.",
        optional=True,
    )
    run = read_run(run_dir)
    if not isinstance(model, nn.Module):
        model = build_model(_confirmed_config(run, model), run.contract.shape_only_graph())
    weights = _final_weights(run)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            "the weights are of another model",
            value=str(error).replace("\n\t", " "),
            where=str(run.path),
            fix="Pass the model that the run was trained with.",
        ) from error
    where = resolve_device(device)
    # Predictions of several threads would else switch it back for one another.
    model.eval()
    return Predictor(model, run.contract, device=where, streaming=_streaming(run, where, memory, spill))


def _streaming(
    run: Run, device: torch.device, memory: str | None, spill: str | os.PathLike[str] | None
) -> Streaming | None:
    """As the run was streamed, but for what is stated here."""
    trained = run.train_config
    require_type(memory, str, where="load_run.memory", fix="Pass a size such as '2GiB'.", optional=True)
    require_type(spill, (str, os.PathLike), where="load_run.spill", fix="Pass the path of a folder.", optional=True)
    if memory is not None:
        parse_bytes(memory, where="load_run.memory")
    config = replace(
        trained,
        memory=trained.memory if memory is None else memory,
        spill=trained.spill if spill is None else os.fspath(spill),
    )
    # What was free is the host's.
    automatic_bytes = run.automatic_bytes if device.type == "cpu" else None
    return Streaming.of(config, None, device=device, automatic_bytes=automatic_bytes, trains=False)


def _confirmed_config(run: Run, reference: str | None) -> ModelConfig:
    """How to build the run's model; a file of the user's own only where ``reference`` names it."""
    config = run.model_config
    if config is None:
        raise InputError(
            "the run's model cannot be built from its folder",
            value=f"it was a {run.model} of the user's own",
            where=str(run.path),
            fix="Pass load_run(..., model=...) with a module of that class.",
        )
    own_class = _class_in_file(config.model)
    if own_class is not None and reference is None:
        raise CheckpointError(
            "the run's model is a Python file, which is executed only where it is named again",
            value=f"'{config.model}'",
            where=str(run.path),
            fix=f"If you trust that file, pass model='{config.model}' (--model on the command line).",
        )
    if reference is None or reference == config.model:
        return config
    if own_class is None or _class_in_file(reference) != own_class:
        raise CheckpointError(
            "the run was trained with another model",
            value=f"'{reference}', the run's is '{config.model}'",
            where=str(run.path),
            fix="Name the model that the run was trained with.",
        )
    return replace(config, model=reference)


def _class_in_file(reference: str) -> str | None:
    """The class that 'path/to/file.py:ClassName' names; None for a name of the zoo."""
    return reference.rpartition(":")[2] if ".py:" in reference else None


def describe_model(model: nn.Module, config: ModelConfig | None) -> dict[str, Any]:
    """What run.json says of the model."""
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    if config is None:
        return {"name": type(model).__name__, "class": kind, "config": None}
    values = asdict(config)
    if ".py:" in config.model:
        # The run folder may be opened from another working directory.
        filename, _, class_name = config.model.rpartition(":")
        values["model"] = f"{Path(filename).absolute()}:{class_name}"
    return {"name": config.model, "class": kind, "config": values}


def _final_weights(run: Run) -> dict[str, Any]:
    """The state_dict that the run ended with, or that of its best or last epoch so far."""
    from safetensors import SafetensorError, safe_open

    path = run.path / "model.safetensors"
    if run.metrics is not None and path.exists():
        try:
            found = file_digest(path)
            if found != run.metrics.get("weights_checksum"):
                raise _damaged_weights(
                    path, f"checksum {found}, metrics.json says {run.metrics.get('weights_checksum')}"
                )
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
                extra = decode(parse_json((file.metadata() or {}).get(EXTRA_STATE, "{}").encode()), tensors)
            return {name: value for name, value in tensors.items() if not name.startswith(EXTRA_STATE)} | extra
        except (SafetensorError, OSError) as error:
            raise _damaged_weights(path, str(error)) from error
    checkpoint = RunFolder(run.path).checkpoints.newest(on_damaged=lambda text: None)
    if checkpoint is None:
        raise CheckpointError(
            "the run has no weights yet",
            value="neither model.safetensors nor a checkpoint",
            where=str(run.path),
            fix="Wait for its first checkpoint, or resume it.",
        )
    state = decode(checkpoint.state, checkpoint.tensors)
    weights: dict[str, Any] = state["best"]["weights"] or state["model"]
    return weights


def _damaged_weights(path: Path, value: str) -> CheckpointError:
    return CheckpointError(
        "the weights are damaged", value=value, where=str(path), fix="Resume the run to write them anew."
    )
