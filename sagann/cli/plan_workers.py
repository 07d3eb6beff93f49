"""The work of ``sagann plan --workers``: how the graph is divided among workers, and what a run has learned of their seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sagann.cli.options import Shared
from sagann.cli.prepare import open_checked, require_vertices, with_task
from sagann.config import RunConfig
from sagann.errors import CheckpointError, first_line
from sagann.graph.topology import Topology
from sagann.nn import build_model
from sagann.partition import part_of, vertex_ranges
from sagann.report.workers_text import PlannedPart, cost_model_table, parts_table, policies_text, speeds_text
from sagann.train.agreement import require_divisible
from sagann.train.learned import learned_costs
from sagann.train.preparation import features_as, parameter_dtype, prepared_by


def show_workers(settings: RunConfig, shared: Shared, *, learned: Path | None, run_dir: Path | None) -> None:
    """Print the parts of the workers, and the cost model of the run ``learned``, or of the run in ``run_dir`` that the settings are of."""
    terminal = shared.terminal()
    require_divisible(settings.train, balance=settings.balance)
    if settings.train.memory is not None:
        terminal.say(
            "What a worker streams is not planned: without --workers, a plan within --memory is of one process."
        )
    costs = None if learned is None else learned_costs(learned)
    if costs is None and run_dir is not None and settings.balance == "cost":
        try:
            costs = learned_costs(run_dir)
        except CheckpointError as error:
            terminal.say(f"The run gives no cost model: {first_line(error)}")
    graph = with_task(
        open_checked(settings.data, keep_splits=False), settings.data, settings.train.task, terminal.say
    )
    require_vertices(graph, "--workers")
    shared.load_compiler()
    model = build_model(settings.model, graph)
    topology = prepared_by(model, features_as(graph, parameter_dtype(model))).topology
    size, balance = settings.workers, settings.balance
    if costs is None:
        if balance == "cost":
            terminal.say(
                "No cost model is given (--learned): parts begin with equal edges, and move after some epochs."
            )
        parts = planned_parts(topology, vertex_ranges(topology.indptr, size, balance), (None,) * size)
        terminal.show(parts_table(parts, balance=balance))
        return
    features, fitting = costs.count(topology), costs.for_workers(size).model
    divisions: dict[str, tuple[int, ...]] = {
        name: vertex_ranges(topology.indptr, size, by=name) for name in ("edges", "vertices")
    }
    divisions["cost"] = costs.bounds(features, size)
    seconds = {
        name: fitting.seconds_of_parts(features, costs.operations, bounds) for name, bounds in divisions.items()
    }
    terminal.show(parts_table(planned_parts(topology, divisions[balance], seconds[balance]), balance=balance))
    terminal.show(policies_text({name: max(each) for name, each in seconds.items()}))
    terminal.show(cost_model_table(costs.model, costs.operations))
    terminal.show(speeds_text(costs.model))
    if not costs.knows(size):
        terminal.say(costs.unknown_text(size))


def planned_parts(topology: Topology, bounds: Sequence[int], seconds: Sequence[float | None]) -> list[PlannedPart]:
    """The part of each worker, with its predicted seconds."""
    parts = [part_of(topology, bounds, rank) for rank in range(len(bounds) - 1)]
    return [
        PlannedPart(vertices=part.num_own, edges=len(part.indices), halo=len(part.halo), seconds=predicted)
        for part, predicted in zip(parts, seconds, strict=True)
    ]
