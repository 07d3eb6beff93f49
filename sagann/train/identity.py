"""Identity of a run: what must be the same for a resume to make sense, and the first thing that differs.

Covers the model (class, every field of its ModelConfig, a digest of a user's own file, and every tensor's shape),
the graph (sizes, and a digest of every array), the
optimizer, the scheduler, the class of the engine, and those training options that change the numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sagann.errors import CheckpointError
from sagann.graph import Graph
from sagann.graph.feature_store import Features, feature_store, read_slice
from sagann.graph.rows import is_sparse
from sagann.nn import ModelConfig
from sagann.saga.engine import current_engine
from sagann.train.config import TrainConfig

FREE_OPTIONS = ("epochs", "checkpoint_every", "keep_checkpoints", "tensorboard", "spill", "profile")
"""Training options that a resume may change: none of them changes the numbers of an epoch."""

# Left out where they are unset, as they are in runs from before there were these.
_LATER_OPTIONS = ("memory",)
_DIGEST_ROWS_BYTES = 64 * 2**20


def identity_of(
    model: nn.Module,
    graph: Graph,
    config: TrainConfig,
    *,
    model_config: ModelConfig | None,
    device: torch.device,
    optimizer: torch.optim.Optimizer,
    scheduler: object | None,
) -> dict[str, Any]:
    """The identity of a run as nested JSON values; reads every array of ``graph`` once."""
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    unset = {name for name in _LATER_OPTIONS if getattr(config, name) is None}
    options = {name: value for name, value in config.to_json().items() if name not in {*FREE_OPTIONS, *unset}}
    identity = {
        "model": {
            "class": type(model).__qualname__,
            **_config_identity(model_config),
            "tensors": {name: f"{value.dtype} {list(value.shape)}" for name, value in tensors.items()},
        },
        "graph": graph_identity(graph),
        "optimizer": {"class": type(optimizer).__name__, "num_groups": len(optimizer.param_groups)},
        "scheduler": {"class": None if scheduler is None else type(scheduler).__name__},
        "train": {**options, "device": device.type},
        # Engines add up in other orders; how one of them is set up does not matter.
        "engine": type(current_engine()).__name__,
    }
    # As it comes back from run.json: a tuple among the options is a list there.
    found: dict[str, Any] = json.loads(json.dumps(identity))
    return found


def _config_identity(config: ModelConfig | None) -> dict[str, Any]:
    """The fields that a model was built from; a user's file by its name and content, since it may be moved."""
    if config is None:
        return {}
    fields = asdict(config)
    filename, _, class_name = config.model.rpartition(":")
    if not filename:
        return {"config": fields}
    path = Path(filename)
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return {"config": {**fields, "model": f"{path.name}:{class_name}"}, "file": digest}


def graph_identity(graph: Graph) -> dict[str, Any]:
    """Sizes of ``graph`` and a BLAKE2b digest of each of its arrays."""
    sizes = ("num_vertices", "num_edges", "num_features", "num_classes", "num_edge_types")
    found: dict[str, Any] = {name: getattr(graph, name) for name in sizes}
    return found | {name: _digest(array) for name, array in _arrays(graph)}


def digest_of(identity: Mapping[str, Any]) -> str:
    """A short digest of an identity; every checkpoint carries it."""
    text = json.dumps(identity, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def check_same(saved: Mapping[str, Any], current: Mapping[str, Any], *, where: str) -> None:
    """Check that a run is continued with what it was started with.

    Raises:
        CheckpointError: something differs; the message names the first difference.
    """
    difference = next(_differences(saved, current, ""), None)
    if difference is None:
        return
    name, before, now = difference
    raise CheckpointError(
        "the run was started differently",
        value=f"{name} was {before}, is {now}",
        where=where,
        fix=f"Resume with the same model, graph, engine and options (only {', '.join(FREE_OPTIONS)} may change), "
        "or start a new run in another folder.",
    )


def graph_difference(saved: Mapping[str, Any], graph: Graph) -> str | None:
    """Name the first size or array of ``graph`` that is not what a :func:`graph_identity` says; None where all are.

    Splits that ``graph`` does not have are not asked for. Reads every array once.
    """
    current = graph_identity(graph)
    for name in [*saved, *(key for key in current if key not in saved)]:
        is_dropped_split = name.startswith("split ") and not graph.splits
        if saved.get(name) != current.get(name) and not is_dropped_split:
            return str(name)
    return None


def _differences(saved: Any, current: Any, name: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(saved, Mapping) and isinstance(current, Mapping):
        for key in [*saved, *(key for key in current if key not in saved)]:
            inner = f"{name}.{key}" if name else key
            yield from _differences(saved.get(key, "absent"), current.get(key, "absent"), inner)
    elif saved != current:
        yield name, str(saved), str(current)


def _arrays(graph: Graph) -> Iterator[tuple[str, Features]]:
    yield "indptr", graph.topology.indptr
    yield "indices", graph.topology.indices
    for name, rows in sorted(graph.topology.edge_data.items()):
        yield f"edge data '{name}'", rows
    if is_sparse(graph.features):
        yield "features.crow_indices", graph.features.crow_indices()
        yield "features.col_indices", graph.features.col_indices()
        yield "features.values", graph.features.values()
    elif graph.features is not None:
        yield "features", graph.features
    if graph.labels is not None:
        yield "labels", graph.labels
    for name, mask in sorted(graph.splits.items()):
        yield f"split '{name}'", mask


def _digest(array: Features) -> str:
    store = feature_store(array)
    num_rows, row_shape = store.num_rows, store.row_shape
    state = hashlib.blake2b(f"{array.dtype} {[num_rows, *row_shape]}".encode(), digest_size=16)
    row_bytes = math.prod(row_shape) * array.dtype.itemsize
    if row_bytes == 0:
        return state.hexdigest()
    # In pieces, so that an array larger than memory can be read.
    step = max(1, _DIGEST_ROWS_BYTES // row_bytes)
    for start in range(0, num_rows, step):
        part = read_slice(store, start, min(start + step, num_rows))
        state.update(part.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return state.hexdigest()
