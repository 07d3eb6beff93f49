"""Identity of a run: the properties that must be the same for a resume, and the first one that differs.

An identity covers the model (class, every field of its ModelConfig, a digest of a user's own file, the shape of every
tensor), the graph (sizes, and a digest of every array), the task, the loss, the optimizer, the scheduler, the class of the engine, and the
training options that change the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from sagann.config import FREE_OPTIONS, class_in_file
from sagann.errors import CheckpointError
from sagann.graph import Graph
from sagann.graph.feature_store import Features, feature_store
from sagann.graph.graph import named_arrays
from sagann.nn import ModelConfig
from sagann.nn.model_call import class_of
from sagann.nn.user_model import imported_files
from sagann.saga.engine import current_engine
from sagann.storage.verify import array_checksums
from sagann.train.atomic import digest
from sagann.train.predictor import Predictor
from sagann.train.session import TrainSession

_OF_LOSS = ("task", "loss", "class_weights")
"Training options that the task and the loss of a run are made of, which the identity has instead."


def identity_of(
    session: TrainSession, predictor: Predictor, graph: Graph, model_config: ModelConfig | None
) -> dict[str, Any]:
    """The identity of a run as nested JSON values.

    Reads the arrays of ``graph``, which is the graph before it was prepared, unless their files have been verified.
    """
    model, config, scheduler = session.model, session.config, session.scheduler
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    unit = graph.answers.unit
    options = {name: value for name, value in config.to_json().items() if name not in (*FREE_OPTIONS, *_OF_LOSS)}
    if config.sample is not None:
        options["batch_size"] = config.seeds_per_batch
    elif unit == "graph":
        options["batch_size"] = config.graphs_per_batch
    identity = {
        "model": {
            "class": class_of(model).__qualname__,
            **config_identity(model_config),
            "tensors": {name: f"{value.dtype} {list(value.shape)}" for name, value in tensors.items()},
        },
        "graph": graph_identity(graph),
        "optimizer": {
            "class": type(session.optimizer).__name__,
            "num_groups": len(session.optimizer.param_groups),
        },
        "scheduler": {"class": None if scheduler is None else type(scheduler).__name__},
        "train": {**options, "device": session.device.type},
        "param_groups": {at: _numbers_of(group) for at, group in enumerate(session.optimizer.param_groups)},
        "task": predictor.contract.kind,
        "loss": predictor.mean_loss.to_json(),
        # Engines add in different orders. The options of an engine do not matter.
        "engine": type(current_engine()).__name__,
    }
    # As run.json gives it back: a tuple among the options becomes a list.
    found: dict[str, Any] = json.loads(json.dumps(identity))
    return found


def _numbers_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a group of an optimizer that are numbers, and the number of its parameters."""
    numbers = {name: value for name, value in group.items() if isinstance(value, int | float | tuple)}
    return {**numbers, "num_parameters": len(group["params"])}


def config_identity(config: ModelConfig | None) -> dict[str, Any]:
    """The fields that a model was built from.

    A user's file may be moved: what counts is its name, its content, and that of the files beside it that it imports.
    """
    if config is None:
        return {}
    fields = asdict(config)
    named = class_in_file(config.model)
    if named is None:
        return {"config": fields}
    path, class_name = named
    imports = {str(each.relative_to(path.parent)): digest(each.read_bytes()) for each in imported_files(path)}
    return {
        "config": {**fields, "model": f"{path.name}:{class_name}"},
        "file": digest(path.read_bytes()),
        "imports": imports,
    }


def graph_identity(graph: Graph, *, as_stated: bool = False) -> dict[str, Any]:
    """Sizes of ``graph``, and a digest of the type, shape and checksums of each of its arrays.

    With ``as_stated``, arrays that are mapped from a dataset have the checksums that its manifest states, and are not read.
    """
    sizes = ("num_vertices", "num_edges", "num_features", "num_classes", "num_edge_types")
    found: dict[str, Any] = {name: getattr(graph, name) for name in sizes}
    if graph.feature_names:
        found["feature_names"] = list(graph.feature_names)
    return found | {name: _digest(array, as_stated=as_stated) for name, array in named_arrays(graph)}


def digest_of(identity: Mapping[str, Any]) -> str:
    """The digest of an identity. Every checkpoint carries it."""
    return digest(json.dumps(identity, sort_keys=True).encode())


def check_same(saved: Mapping[str, Any], current: Mapping[str, Any], *, where: str) -> None:
    """Refuse to continue a run with another identity; the CheckpointError names the first difference."""
    for name, before, now in differences(saved, current):
        raise CheckpointError(
            f"the run was started differently: {name} was {before}, is {now} (in {where})",
            hint=f"Resume with the same model, graph, engine and options (only {', '.join(FREE_OPTIONS)} may change), "
            "or start a new run in another folder.",
        )


def graph_difference(saved: Mapping[str, Any], graph: Graph) -> str | None:
    """Name the first size or array of ``graph`` that differs from a saved :func:`graph_identity`; None where all are equal.

    Where ``graph`` has no splits, of vertices or of graphs, saved splits are not compared.
    """
    absent = (*(() if graph.splits else ("split_",)), *(() if graph.graph_splits else ("graph_split_",)))
    names = (name for name, _, _ in differences(saved, graph_identity(graph)))
    return next((name for name in names if not name.startswith(absent)), None)


def differences(saved: Any, current: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    """The names of values that differ between nested JSON values, each with both values."""
    if isinstance(saved, Mapping) and isinstance(current, Mapping):
        for key in [*saved, *(key for key in current if key not in saved)]:
            inner = f"{name}.{key}" if name else key
            yield from differences(saved.get(key, "absent"), current.get(key, "absent"), inner)
    elif saved != current:
        yield name, str(saved), str(current)


def _digest(array: Features, *, as_stated: bool = False) -> str:
    store, checksums = feature_store(array), array_checksums(array, as_stated=as_stated)
    return digest(f"{array.dtype} {[store.num_rows, *store.row_shape]} {checksums}".encode())
