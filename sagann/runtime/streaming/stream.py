"""Streaming a model over a graph: capture it, fit the number of intervals to a budget, and run it by them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from sagann.compiler.model_program import ModelProgram
from sagann.errors import InputError, require_type
from sagann.graph.graph import Graph
from sagann.graph.topology import Topology
from sagann.plan.choose_intervals import MOST_INTERVALS, Cut, cutter, fitted_bounds, hop_sizes
from sagann.plan.epoch import Planned, dense_peak_bytes, plan_epoch
from sagann.plan.gradients import Gradients
from sagann.plan.orders import Order, require_order
from sagann.plan.selection import ALWAYS, NEVER, Select, Selection, require_select
from sagann.plan.steps import UNLIMITED, MemoryPolicy
from sagann.runtime.blocks.backend import Backend
from sagann.runtime.device.backend import backend_of
from sagann.runtime.forecasting.probe import measured_selection
from sagann.runtime.places import device_named, require_on_host, require_places
from sagann.runtime.streaming.capturing import captured, like_on, trained_in
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga.hops import count_hops
from sagann.saga.shared_lock import MODELS
from sagann.storage.mapped import mapped_rows


def stream(
    model: nn.Module,
    graph: Graph,
    *,
    budget_bytes: int,
    spill: str | os.PathLike[str] | None = None,
    trains: bool = True,
    cut: Cut = "bytes",
    num_intervals: int | None = None,
    order: Order = "column",
    select: Select = "auto",
    memory_policy: MemoryPolicy = "belady",
    device: torch.device | str = "cpu",
) -> StreamedModel:
    """Make a model run over ``graph`` inside a memory budget.

    Args:
        model: of SAGA layers and operators on rows, with ``num_hops``; it keeps its parameters, which lie on ``device``.
        graph: prepared for the model, with features; on the CPU. Features and edges may be mapped from files.
        budget_bytes: what vertex data, edges and temporaries may take together; what is read where it lies takes nothing.
        spill: a folder for what is not in use; without it, that lies in memory too, beyond the budget.
        trains: whether it is trained. A model that is called in evaluation mode and without gradients alone takes less memory,
            and fewer intervals; its ``loss`` may need more than the budget. The model may have a BatchNorm with running statistics, which
            then looks across no vertices.
        cut: what intervals have equally many of.
        num_intervals: P; by default the least that fits the budget, and where copies run beside steps (with a spill folder,
            on a device) the least that leaves room to load ahead, if there is one.
        order: in which passes go through the chunk grid; the others are there to compare (:mod:`sagann.plan.orders`).
        select: whether for a chunk that needs few rows of an interval the host picks these; "never" is there to compare
            (:mod:`sagann.plan.selection`).
        memory_policy: which blocks the device keeps; "none" is there to compare (:mod:`sagann.plan.memory`).
        device: what computes, whose memory the budget is of: 'cpu', 'cuda' or 'cuda:N'.

    Returns:
        A module that trains in the usual loop: ``z = streamed(graph.features)``, on ``device``.

    Raises:
        BudgetError: the budget cannot be met; the message says by which it could.
        InputError: there is no such device, or graph or model lie elsewhere.
        LayerError: the model cannot be streamed; the message says why.
        SpillError: there is too little room to spill.

    Example:
        >>> from sagann.graph import demo_graph
        >>> from sagann.nn import GNN, SAGE
        >>> graph = demo_graph()
        >>> model = GNN([SAGE(graph.num_features, 16), SAGE(16, graph.num_classes)])
        >>> streamed = stream(model, graph, budget_bytes=1 << 20)
        >>> z = streamed(graph.features)
        >>> torch.allclose(z, model(graph.hops(2), graph.features), atol=1e-4)
        True
    """
    _check(model, graph, budget_bytes, cut, order, select)
    require_type(spill, (str, os.PathLike), where="stream.spill", fix="Pass a path.", optional=True)
    require_type(num_intervals, int, where="stream.num_intervals", fix="Pass an integer.", optional=True)
    backend = backend_of(device_named(device))
    hops, program = _captured_on(model, graph, backend.device, trains=trains)
    if num_intervals is None:
        on_disk = spill is not None
        bounds = _fitted(program, hops, graph, budget_bytes, backend, cut, order, on_disk=on_disk, trains=trains)
    else:
        _require_count(num_intervals)
        bounds = cutter(program, hops[0], cut)(num_intervals)
    spill = None if spill is None else Path(spill)
    streamed = StreamedModel(
        model,
        hops,
        bounds,
        budget_bytes=budget_bytes,
        spill=spill,
        trains=trains,
        order=order,
        memory_policy=memory_policy,
        selection=_selection(select, budget_bytes, bounds, backend.device, on_disk=spill is not None),
        cut=cut,
        backend=backend,
    )
    # Where there is too little room, that is found out now.
    streamed.chunks_of(program)
    return streamed


def foretell(
    model: nn.Module,
    graph: Graph,
    *,
    budget_bytes: int,
    cut: Cut = "bytes",
    folded: bool = True,
    order: Order = "column",
    select: Select = "auto",
    memory_policy: MemoryPolicy = "belady",
    device: torch.device | str = "cpu",
    on_disk: bool = False,
) -> Planned:
    """What :func:`stream` would plan for an epoch, without cutting the graph.

    Args:
        model: as for :func:`stream`.
        graph: as for :func:`stream`.
        budget_bytes: as for :func:`stream`.
        cut: as for :func:`stream`.
        folded: whether of :meth:`StreamedModel.loss`, or of a call.
        order: as for :func:`stream`.
        select: as for :func:`stream`.
        memory_policy: as for :func:`stream`.
        device: as for :func:`stream`.
        on_disk: whether :func:`stream` has a spill folder.
    """
    _check(model, graph, budget_bytes, cut, order, select)
    backend = backend_of(device_named(device))
    hops, program = _captured_on(model, graph, backend.device)
    bounds = _fitted(program, hops, graph, budget_bytes, backend, cut, order, on_disk=on_disk)
    selection = _selection(select, budget_bytes, bounds, backend.device, on_disk=on_disk)
    same_memory = backend.shares_memory(on_disk=on_disk)
    return plan_epoch(
        program,
        hop_sizes(program, hops, bounds, selection, backend.grain),
        bounds,
        budget_bytes,
        gradients=_gradients(program, model, graph),
        folded=folded,
        order=order,
        memory_policy=memory_policy,
        selection=selection,
        same_memory=same_memory,
        has_mapped_x=same_memory
        and graph.features is not None
        and mapped_rows(graph.features.detach()) is not None,
    )


def _fitted(
    program: ModelProgram,
    hops: Sequence[Topology],
    graph: Graph,
    budget_bytes: int,
    backend: Backend,
    cut: Cut,
    order: Order,
    *,
    on_disk: bool,
    trains: bool = True,
) -> tuple[int, ...]:
    """The bounds of the fewest intervals that fit the budget where the model runs."""
    return fitted_bounds(
        program,
        hops,
        budget_bytes,
        # Whatever is trained later.
        gradients=Gradients(program, wanted_x=_wants_x(graph)),
        trains=trains,
        cut=cut,
        order=order,
        grain=backend.grain,
        same_memory=backend.shares_memory(on_disk=on_disk),
    )


def _selection(
    select: Select, budget_bytes: int, bounds: Sequence[int], device: torch.device, *, on_disk: bool
) -> Selection:
    """Which rows are picked; where nothing is moved, none are."""
    if select == "never" or budget_bytes >= UNLIMITED or len(bounds) == 2:
        return NEVER
    if select == "always":
        return ALWAYS
    # Of a small file all is read for some of its rows, and for every chunk anew.
    return NEVER if on_disk else measured_selection(device)


def dense_bytes(model: nn.Module, graph: Graph) -> int:
    """What an epoch takes with everything in memory, beside the graph itself: as planned for one interval.

    Args:
        model: as for :func:`stream`.
        graph: as for :func:`stream`.
    Raises:
        LayerError: the model cannot be streamed, and nothing is known of it.
    """
    hops, program = _captured_on(model, graph, torch.device("cpu"))
    return dense_peak_bytes(program, hops, gradients=_gradients(program, model, graph))


def _check(model: object, graph: object, budget_bytes: object, cut: object, order: object, select: object) -> None:
    require_type(model, nn.Module, where="stream.model", fix="Pass a torch.nn.Module.")
    require_type(graph, Graph, where="stream.graph", fix="Open it with sagann.load_graph, or make a sagann.Graph.")
    require_type(budget_bytes, int, where="stream.budget_bytes", fix="Pass an integer, as 2 << 30.")
    if cut not in get_args(Cut):
        raise InputError(
            "unknown way to cut a graph",
            value=f"{cut!r}, expected one of {', '.join(get_args(Cut))}",
            where="stream.cut",
            fix="Choose one of these.",
        )
    require_order(order)
    require_select(select)


def _require_count(num_intervals: int) -> None:
    if not 1 <= num_intervals <= MOST_INTERVALS:
        raise InputError(
            "the number of intervals is out of range",
            value=f"{num_intervals}, expected 1 to {MOST_INTERVALS}",
            where="stream.num_intervals",
            fix="Pass a number in the range, or leave it out: one that fits the budget is taken then.",
        )


def _gradients(program: ModelProgram, model: nn.Module, graph: Graph) -> Gradients:
    return Gradients(program, wanted_x=_wants_x(graph), trained=trained_in(program, model))


def _wants_x(graph: Graph) -> bool:
    return graph.features is not None and graph.features.requires_grad


def _captured_on(
    model: nn.Module, graph: Graph, device: torch.device, *, trains: bool = True
) -> tuple[list[Topology], ModelProgram]:
    features = graph.features
    if features is None or features.layout not in (torch.strided, torch.sparse_csr):
        raise InputError(
            "a graph that is streamed needs features",
            value="there are none" if features is None else f"they are {features.layout}",
            where="stream",
            fix="Give the graph features [num_vertices, F], dense or torch.sparse_csr.",
        )
    if features.layout == torch.sparse_csr and device.type != "cpu":
        raise InputError(
            "sparse features are streamed on the CPU alone",
            value=f"the model is on {device}",
            where="stream",
            fix="Stream it on the CPU (--device cpu), or make the features dense.",
        )
    hops = list(graph.hops(count_hops(model)))
    if not hops:
        raise InputError(
            "a model without a SAGA layer cannot be streamed",
            value="it walks no hop",
            where=type(model).__name__,
            fix="Train it by batches of rows; it needs no graph.",
        )
    require_on_host(features.device, "features")
    require_places(model, hops, device)
    with MODELS.changing():
        # In training there is more to keep than in evaluation, which is then planned as well.
        modes = {module: module.training for module in model.modules()}
        try:
            like = like_on(features, device)
            constant = not features.requires_grad and not features.is_inference()
            return hops, captured(model.train(trains), hops, like, x_is_constant=constant)
        finally:
            for module, mode in modes.items():
                module.training = mode
