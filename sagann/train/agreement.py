"""Agreement: workers train only if they have the same program, data, model and options, and begin with the same state.

A difference is refused before the first epoch, with the values of both workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from sagann import torchrun
from sagann.config import TrainConfig
from sagann.errors import InputError
from sagann.graph import Graph
from sagann.nn import ModelConfig
from sagann.nn.model_call import class_of
from sagann.options import refuse
from sagann.runtime.team import START_TIMEOUT_S, Team
from sagann.saga.engine import current_engine
from sagann.storage.verify import array_checksums
from sagann.train.atomic import digest
from sagann.train.identity import config_identity, differences, graph_identity
from sagann.train.plain_state import pack, unpack
from sagann.train.predictor import Predictor
from sagann.train.reporter import EpochRecord
from sagann.train.resources import resolve_device, versions
from sagann.train.session import TrainSession

_OF_MACHINE = ("threads",)
"Versions that may differ between workers: every worker adds the same gradients."


def require_divisible(config: TrainConfig, *, balance: str) -> None:
    """Refuse what several workers, whose parts are balanced by a policy, cannot train yet."""
    if balance == "cost" and config.memory is not None:
        raise InputError(
            f"vertices do not move between workers that stream: balance is 'cost', memory is {config.memory!r} "
            "(in TrainConfig.memory)",
            hint="Balance by edges or vertices (--balance edges), or leave memory out.",
        )
    if balance == "cost" and config.sample is not None:
        raise InputError(
            f"mini-batches are divided equally among workers: balance is 'cost', sample is {list(config.sample)} (in TrainConfig.sample)",
            hint="Balance by edges or vertices (--balance edges), or leave sample out.",
        )
    refuse(
        config,
        ["devices", "profile"],
        "several workers train, which have a device each and write no profile",
        "train with one worker",
    )


def device_together(name: str, team: Team, say: Callable[[str | None], None] = lambda text: None) -> torch.device:
    """The device that this process computes on; of several workers, connected with the others' devices. All call this at the same time.

    Where 'auto' is a processor on one machine, it is on all.

    Args:
        name: 'cpu', 'cuda', 'cuda:N' or 'auto', as the configuration has it.
        team: all workers.
        say: is told why CUDA devices are left alone, if they are.
    Raises:
        InputError: a worker has no device of that name of its own, or workers have devices of several types.
    """
    if team.size == 1:
        return resolve_device(name)
    # Imported here: most runs have no workers, and it loads Numba.
    from sagann.runtime.workers import Workers
    from sagann.runtime.workers.carriers import device_of_worker, left_alone, name_for_workers

    assert isinstance(team, Workers)
    num_local = torchrun.num_local_workers()
    chosen = name_for_workers(name, num_local=num_local)
    doing = "choosing a device"
    # The first worker may be checking a large graph.
    if team.any(name == "auto" and chosen == "cpu", doing, timeout_s=START_TIMEOUT_S) and name == "auto":
        chosen = "cpu"
    with team.together(doing):
        device = device_of_worker(chosen, local_rank=torchrun.local_rank(), num_local=num_local)
    require_same(team, {"device": device.type})
    team.compute_on(device)
    say(left_alone(name, device))
    return device


def require_agreement(
    team: Team, config: TrainConfig, graph: Graph, predictor: Predictor, model_config: ModelConfig | None
) -> None:
    """Require that all workers have the same versions, options, graph, loss, model and weights. All workers call this at the same time.

    Arrays that are mapped from a dataset are told apart by the checksums that its manifest states.

    Raises:
        InputError: a worker differs from the first one; the message has both values.
    """
    model = predictor.model
    # LBFGS asks for another pass by sums that other threads round differently.
    may_differ = () if config.optimizer == "LBFGS" else _OF_MACHINE
    weights = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    values = {
        "versions": {name: value for name, value in versions().items() if name not in may_differ},
        "train": config.to_json(),
        "loss": predictor.mean_loss.to_json(),
        "workers": {"timeout_s": team.timeout_s, "balance": team.balance},
        "graph": graph_identity(graph, as_stated=not team.is_first),
        "model": {
            "class": class_of(model).__qualname__,
            **config_identity(model_config),
            "weights": {name: _digest(value) for name, value in weights.items()},
        },
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


def continue_together(session: TrainSession) -> None:
    """Bring every worker's session to the state of the first worker's. No other worker reads the run folder."""
    content, team = None, session.team
    if team.is_first:
        history = [record.to_json() for record in session.history]
        content = pack({"state": session.state_dict(run="", history_bytes=0), "history": history})
    content = team.from_first(content, "sharing the checkpoint")
    if not team.is_first:
        found = unpack(content)
        session.restore(found["state"], [EpochRecord.from_json(line) for line in found["history"]])


def _digest(value: Tensor) -> str:
    if is_lazy(value):
        return "none yet"
    return digest(f"{value.dtype} {list(value.shape)} {array_checksums(value.detach().reshape(-1))}".encode())
