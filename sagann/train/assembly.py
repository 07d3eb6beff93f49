"""Assembly of a run: its model, graph and configuration are checked against each other, and put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from torch import nn

from sagann.config import TrainConfig
from sagann.errors import MissingDependencyError
from sagann.graph import Graph, for_task
from sagann.graph.task import left_out, task_of
from sagann.graph.validate import validate_labels
from sagann.interop.pyg_model import from_pyg_model, is_written_for_pyg
from sagann.nn import ModelConfig, build_model
from sagann.runtime.team import Team
from sagann.storage.verify import check_graph
from sagann.train.agreement import device_together, require_agreement, require_divisible
from sagann.train.best import resolve_monitor
from sagann.train.contract import Contract, require_names
from sagann.train.losses import LossFunction, build_loss
from sagann.train.own_metrics import OwnMetrics
from sagann.train.policies import DECAY_POLICIES, OptimizerFactory, ParamGroups, SchedulerFactory, try_policies
from sagann.train.predictor import Predictor
from sagann.train.resources import seeded
from sagann.train.run_parts import RunParts, streaming_of
from sagann.train.trainable import check_sampled, check_trainable, learned_as_well


def assemble(
    model: nn.Module | ModelConfig,
    graph: Graph,
    config: TrainConfig,
    *,
    source: str | None,
    class_names: Sequence[str],
    loss: LossFunction | None,
    metrics: OwnMetrics | None,
    optimizer: OptimizerFactory | None,
    scheduler: SchedulerFactory | None,
    param_groups: ParamGroups | None,
    validate: bool,
    team: Team,
    spill_dir: Path | None,
    say: Callable[[str], None],
) -> RunParts:
    """The parts of a run, with its graph prepared. ``spill_dir`` and ``say`` are those of RunParts, the rest is as for Trainer.

    Raises:
        InputError: the graph, the model or the configuration cannot be trained as it is.
    """
    everything, graph = graph, for_task(graph, config.task, where="TrainConfig.task")
    if said := left_out(everything, task_of(graph)):
        say(said)
    answers, contract = graph.answers, Contract.of(graph)
    names = require_names(
        class_names or graph.class_names[: contract.num_classes], contract.num_classes, where="Trainer.class_names"
    )
    if optimizer is None and scheduler is None:
        try_policies(config)
    # The first of several workers checks every value, and the others wait for what it finds.
    with team.together("checking the graph"):
        if validate:
            check_graph(graph)
        else:
            validate_labels(graph)
    check_trainable(graph)
    if said := learned_as_well(graph):
        say(said)
    config.require_effect(of_graphs=contract.unit == "graph", of_links=contract.unit == "link")
    if config.tensorboard and find_spec("tensorboard") is None:
        raise MissingDependencyError("tensorboard", extra="tensorboard", feature="TrainConfig.tensorboard")
    named = "cpu" if config.devices else config.device
    device = device_together(named, team)
    if team.size > 1:
        # Imported here: most runs have no workers, and it loads Numba.
        from sagann.runtime.workers.devices import left_alone

        if alone := left_alone(named, device):
            say(alone)
    with seeded(config.seed, device):
        mean_loss = build_loss(
            contract.kind, answers, name=config.loss, class_weights=config.class_weights, function=loss
        )
        num_columns = 1 + config.negatives if contract.unit == "link" else contract.num_outputs
        mean_loss.try_out(answers, num_columns, device)
    monitor = resolve_monitor(config, contract, answers.splits)
    model_config = model if isinstance(model, ModelConfig) else None
    if isinstance(model, ModelConfig):
        if said := model.without_effect(of_graphs=contract.unit == "graph"):
            say(said)
        with seeded(config.seed, device):
            model = build_model(model, graph)
    if is_written_for_pyg(model):
        model = from_pyg_model(model, graph)
        if said := model.left_out(graph):
            say(said)
    if config.sample is not None:
        check_sampled(model, graph, config.sample)
    streaming = streaming_of(config, spill_dir, device)
    predictor = Predictor(
        model, contract, device=device, loss=mean_loss, metrics=metrics, streaming=streaming, workers=team
    )
    parts = RunParts(
        config=config,
        graph=graph,
        predictor=predictor,
        model_config=model_config,
        monitor=monitor,
        weights=config.weights or ("best" if monitor.startswith("val/") else "last"),
        source=source or graph.name,
        class_names=names,
        optimizer=optimizer,
        scheduler=scheduler,
        param_groups=param_groups or DECAY_POLICIES[config.decay],
        team=team,
        spill_dir=spill_dir,
        say=say,
    )
    if team.size > 1:
        require_divisible(config, balance=team.balance)
        require_agreement(team, config, graph, predictor, model_config)
    parts.prepare()
    return parts
