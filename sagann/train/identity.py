"""Identity: what must be the same where a run is resumed, and at all workers that train together; the first difference is refused.

The identity of a run covers the model (class, every field of its ModelConfig, a digest of a user's own file, the shape of every tensor), the
graph (sizes, and a digest of every array), the task, the loss, the optimizer, the scheduler, the class of the engine, and the training
options that change the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from sagann import processes
from sagann.config import FREE_OPTIONS, TrainConfig, class_in_file
from sagann.errors import CheckpointError, InputError
from sagann.graph import Graph
from sagann.graph.feature_store import feature_store
from sagann.graph.graph import named_arrays
from sagann.nn import ModelConfig
from sagann.nn.model_call import class_of
from sagann.nn.user_model import imported_files
from sagann.runtime.team import START_TIMEOUT_S, Team
from sagann.saga.engine import current_engine
from sagann.storage.verify import array_checksums
from sagann.train.checkpoint import digest
from sagann.train.resources import resolve_device, versions

if TYPE_CHECKING:
    from sagann.train.predictor import Predictor
    from sagann.train.session import TrainSession


def identity_of(
    session: TrainSession, predictor: Predictor, graph: Graph, model_config: ModelConfig | None
) -> dict[str, Any]:
    """The identity of a run as nested JSON values. ``graph`` is the graph before it was prepared."""
    model, config, scheduler, optimizer = session.model, session.config, session.scheduler, session.optimizer
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    # The task and the loss have entries of their own.
    others = (*FREE_OPTIONS, "task", "loss", "class_weights")
    options = {name: value for name, value in config.to_json().items() if name not in others}
    options["device"] = session.device.type
    if config.sample is not None:
        options["batch_size"] = config.seeds_per_batch
    elif graph.answers.unit == "graph":
        options["batch_size"] = config.graphs_per_batch
    if predictor.streaming is not None and predictor.streaming.devices:
        # Each adds the gradients of its part of the vertices.
        options["num_devices"] = len(predictor.streaming.devices)
    identity = {
        "model": {
            "class": class_of(model).__qualname__,
            **config_identity(model_config),
            "tensors": {name: f"{value.dtype} {list(value.shape)}" for name, value in tensors.items()},
        },
        "graph": graph_identity(graph),
        "optimizer": {"class": type(optimizer).__name__, "num_groups": len(optimizer.param_groups)},
        "scheduler": {"class": None if scheduler is None else type(scheduler).__name__},
        "train": options,
        "param_groups": {
            at: {name: value for name, value in group.items() if isinstance(value, int | float | tuple)}
            | {"num_parameters": len(group["params"])}
            for at, group in enumerate(optimizer.param_groups)
        },
        "task": predictor.contract.kind,
        "loss": predictor.mean_loss.to_json(),
        # Engines add in different orders. The options of an engine do not matter.
        "engine": type(current_engine()).__name__,
    }
    # As run.json gives it back: a tuple among the options becomes a list.
    found: dict[str, Any] = json.loads(json.dumps(identity))
    return found


def config_identity(config: ModelConfig | None) -> dict[str, Any]:
    """The fields that a model was built from. Of a user's file, its name, its content, and that of the files beside it that it imports."""
    if config is None:
        return {}
    fields = asdict(config)
    if (named := class_in_file(config.model)) is None:
        return {"config": fields}
    path, class_name = named
    return {
        "config": {**fields, "model": f"{path.name}:{class_name}"},
        "file": digest(path.read_bytes()),
        "imports": {str(each.relative_to(path.parent)): digest(each.read_bytes()) for each in imported_files(path)},
    }


def graph_identity(graph: Graph, *, as_stated: bool = False) -> dict[str, Any]:
    """Sizes of ``graph``, and a digest of the type, shape and checksums of each of its arrays.

    With ``as_stated``, arrays that are mapped from a dataset have the checksums that its manifest states, and are not read.
    """
    sizes = ("num_vertices", "num_edges", "num_features", "num_classes", "num_edge_types")
    found: dict[str, Any] = {name: getattr(graph, name) for name in sizes}
    if graph.feature_names:
        found["feature_names"] = list(graph.feature_names)
    for name, array in named_arrays(graph):
        store, checksums = feature_store(array), array_checksums(array, as_stated=as_stated)
        found[name] = digest(f"{array.dtype} {[store.num_rows, *store.row_shape]} {checksums}".encode())
    return found


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
    """The first size or array of ``graph`` that differs from a saved :func:`graph_identity`, if any. Splits that it lacks are not compared."""
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


def device_together(name: str, team: Team, say: Callable[[str | None], None] = lambda text: None) -> torch.device:
    """The device that this process computes on; of several workers, connected with the others' devices. All call this at the same time.

    Where 'auto' is a processor on one machine, it is on all. ``say`` gets the reason why CUDA devices are not used, if any.
    """
    if team.size == 1:
        return resolve_device(name)
    from sagann.runtime.workers import Workers
    from sagann.runtime.workers.carriers import device_of_worker, left_alone, name_for_workers

    assert isinstance(team, Workers)
    num_local = processes.num_local_workers()
    chosen = name_for_workers(name, num_local=num_local)
    doing = "choosing a device"
    # The first worker may be checking a large graph.
    if team.any(name == "auto" and chosen == "cpu", doing, timeout_s=START_TIMEOUT_S) and name == "auto":
        chosen = "cpu"
    with team.together(doing):
        device = device_of_worker(chosen, local_rank=processes.local_rank(), num_local=num_local)
    require_same(team, {"device": device.type})
    team.compute_on(device)
    say(left_alone(name, device))
    return device


def require_agreement(
    team: Team, config: TrainConfig, graph: Graph, predictor: Predictor, model_config: ModelConfig | None
) -> None:
    """Require that all workers have the same versions, options, graph, loss, model and weights. All workers call this at the same time."""
    model = predictor.model
    # LBFGS asks for another pass by sums that other threads round differently. Else every worker adds the same gradients.
    may_differ = "" if config.optimizer == "LBFGS" else "threads"
    weights = dict[str, str]()
    for name, value in model.state_dict().items():
        if is_lazy(value):
            weights[name] = "none yet"
        elif isinstance(value, Tensor):
            checksums = array_checksums(value.detach().reshape(-1))
            weights[name] = digest(f"{value.dtype} {list(value.shape)} {checksums}".encode())
    values = {
        "versions": {name: value for name, value in versions().items() if name != may_differ},
        "train": config.to_json(),
        "loss": predictor.mean_loss.to_json(),
        "workers": {"timeout_s": team.timeout_s, "balance": team.balance},
        "graph": graph_identity(graph, as_stated=not team.is_first),
        "model": {"class": class_of(model).__qualname__, **config_identity(model_config), "weights": weights},
    }
    require_same(team, values)


def require_same_run(team: Team, *, resume: bool) -> None:
    """Require that all workers start, or resume, a run by the same engine: others exchange other rows."""
    engine = current_engine()
    options = {"lean": getattr(engine, "lean", None), "options": repr(getattr(engine, "options", None))}
    require_same(team, {"engine": {"name": type(engine).__name__, **options}, "resume": resume})


def require_same(team: Team, values: Mapping[str, Any]) -> None:
    """Require that all workers call this with the same JSON values; an InputError names the first difference from worker 0."""
    found = [json.loads(text) for text in team.texts(json.dumps(values), "comparing versions, data and options")]
    for rank, theirs in enumerate(found):
        for name, first, other in differences(found[0], theirs):
            raise InputError(
                f"the workers disagree: {name} is {first} at worker 0, and {other} at worker {rank} (in worker "
                f"{team.rank} of {team.size})",
                hint="Start every worker with the same versions, data, model and options.",
            )
