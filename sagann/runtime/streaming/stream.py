"""Streaming: capture a model, fit the number of intervals to a memory budget, and run the model interval by interval."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor, nn

from sagann.compiler.model_program import Gather, ModelProgram
from sagann.errors import InputError, require_choice, require_type
from sagann.graph.feature_store import Features, TensorRows
from sagann.graph.graph import Graph
from sagann.graph.rows import is_sparse
from sagann.graph.topology import Topology
from sagann.kernels.edge.work import DEVICE_GRAIN
from sagann.machines import published_machine
from sagann.plan.dealing import Route
from sagann.plan.epoch import MemoryPolicy, Planned, dense_peak_bytes, plan_epoch
from sagann.plan.fit import MOST_INTERVALS, cutter, fitted_intervals, hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.intervals import PartIntervals, cut_graph, dealing
from sagann.plan.machine import Machine
from sagann.plan.routes import Routed, routed
from sagann.plan.selection import ALWAYS, NEVER, Select, Selection
from sagann.plan.steps import UNLIMITED, Beside
from sagann.runtime.backend import backend_of
from sagann.runtime.blocks.residents import Exchange
from sagann.runtime.forecasting.forecast import work_of
from sagann.runtime.forecasting.probe import measured_selection
from sagann.runtime.places import devices_named, require_on_host, require_places
from sagann.runtime.streaming.capturing import are_constant, captured, like_on, needs_gradient, trained_in
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga.layer import SagaLayer, count_hops
from sagann.saga.shared_lock import MODELS
from sagann.storage.mapped import positioned

if TYPE_CHECKING:
    from sagann.runtime.workers import WorkerPart


def stream(
    model: nn.Module,
    graph: Graph | WorkerPart,
    *,
    budget_bytes: int,
    spill: str | os.PathLike[str] | None = None,
    trains: bool = True,
    num_intervals: int | None = None,
    select: Select = "auto",
    memory_policy: MemoryPolicy = "belady",
    device: torch.device | str = "cpu",
) -> StreamedModel:
    """Make a model run over ``graph`` inside a memory budget.

    Args:
        model: of SAGA layers and operators on rows, with ``num_hops``; it keeps its parameters, which lie on ``device``.
        graph: prepared for the model, with features; on the CPU. Features and edges may be mapped from files. Or a worker's part of one:
            all workers stream theirs, each with a budget and intervals of its own, and call the model at the same time.
        budget_bytes: most bytes of vertex data, edges and temporary memory together. Data that is read where it lies takes none.
        spill: folder for blocks that are not in use; without it, they lie in memory, beyond the budget.
        trains: whether the model is trained. Without training it takes less memory and fewer intervals, its ``loss`` may
            need more than the budget, and it may have a BatchNorm with running statistics.
        num_intervals: number of intervals, P. By default the least that fits the budget; where copies run beside steps (with a
            spill folder, on a device), the least that leaves room to load ahead, if there is one.
        select: whether the host picks the rows that a chunk needs, where these are few (:mod:`sagann.plan.selection`).
        memory_policy: which blocks the device keeps (:data:`sagann.plan.epoch.MemoryPolicy`).
        device: device that computes, whose memory has the budget: 'cpu', 'cuda' or 'cuda:N'. Several, as 'cuda:0,cuda:1', share the steps, and
            each has the budget; the model and the result lie on the first one.

    Returns:
        A module that trains in the usual loop: ``z = streamed(graph.features)``, on ``device``.

    Raises:
        BudgetError: the budget is too small; the message says the smallest one that fits, and offers a useful one.
        InputError: the device does not exist, or the graph or the model lies elsewhere.
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
    require_type(model, nn.Module, where="stream.model", hint="Pass a torch.nn.Module.")
    exchange = getattr(graph, "blocks", None)
    if not isinstance(exchange, Exchange):
        require_type(
            graph, Graph, where="stream.graph", hint="Open it with sagann.load_graph, or make a sagann.Graph."
        )
        exchange = Exchange()
    elif select == "auto":
        select = "never"
    require_type(budget_bytes, int, where="stream.budget_bytes", hint="Pass an integer, as 2 << 30.")
    require_choice(select, get_args(Select), what="unknown policy of picking rows", where="stream.select")
    require_type(spill, (str, os.PathLike), where="stream.spill", hint="Pass a path.", optional=True)
    require_type(num_intervals, int, where="stream.num_intervals", hint="Pass an integer.", optional=True)
    backend = backend_of(*devices_named(device))
    if len(backend.devices) > 1 and not isinstance(graph, Graph):
        raise InputError(
            f"a worker streams its part to one device: '{device}' names {len(backend.devices)} (in stream.device)",
            hint="Name one device for each worker, or stream the whole graph from one process.",
        )
    beside = backend.beside(on_disk=spill is not None)
    hops, program = _captured_on(model, graph, backend.device, factored=beside.copies_beside, trains=trains)
    if num_intervals is None:
        intervals = fitted_intervals(
            program,
            hops,
            budget_bytes,
            # Whatever is trained later.
            gradients=Gradients(program, wanted_x=needs_gradient(graph.features)),
            trains=trains,
            beside=beside,
            cut_part=dealing(exchange.cut, backend.names),
            is_square=select == "always",
        )
    elif 1 <= num_intervals <= MOST_INTERVALS:
        cut = exchange.cut(num_intervals, cutter(program, hops[0]))
        intervals = replace(cut, devices=backend.names)
    else:
        raise InputError(
            f"the number of intervals is out of range: {num_intervals}, expected 1 to {MOST_INTERVALS} (in "
            "stream.num_intervals)",
            hint="Pass a number in the range, or leave it out to get one that fits the budget.",
        )
    streamed = StreamedModel(
        model,
        hops,
        intervals.bounds,
        budget_bytes=budget_bytes,
        spill=None if spill is None else Path(spill),
        trains=trains,
        memory_policy=memory_policy,
        selection=_selection(select, budget_bytes, intervals, backend.device, on_disk=spill is not None),
        backend=backend,
        part=intervals,
        exchange=exchange,
    )
    # Cut now, so that too little room on the disk is found now.
    streamed.chunks_of(program)
    return streamed


def foretell(
    model: nn.Module,
    graph: Graph,
    *,
    budget_bytes: int,
    folded: bool = True,
    select: Select = "auto",
    device: torch.device | str = "cpu",
    on_disk: bool = False,
) -> Planned:
    """What :func:`stream` would plan for an epoch, without cutting the graph.

    The epoch is one of :meth:`StreamedModel.loss` if ``folded``, else a call; with a spill folder if ``on_disk``.
    """
    backend = backend_of(*devices_named(device))
    beside = backend.beside(on_disk=on_disk)
    hops, program = _captured_on(model, graph, backend.device, factored=beside.copies_beside)
    part = fitted_intervals(
        program,
        hops,
        budget_bytes,
        gradients=Gradients(program, wanted_x=needs_gradient(graph.features)),
        beside=beside,
        cut_part=dealing(cut_graph, backend.names),
        is_square=select == "always",
    )
    selection = _selection(select, budget_bytes, part, backend.device, on_disk=on_disk)
    return plan_epoch(
        program,
        hop_sizes(program, hops, part, selection, beside.grain),
        part,
        budget_bytes,
        gradients=_gradients(program, model, graph),
        folded=folded,
        selection=selection,
        beside=beside,
        route=backend.route,
        has_mapped_x=not beside.has_engines and not isinstance(positioned(_features_of(graph)), TensorRows),
    )


def foretell_devices(
    model: nn.Module,
    graph: Graph,
    *,
    budget_bytes: int,
    folded: bool = True,
    machine: Machine,
    devices: Sequence[str],
) -> list[Routed]:
    """What an epoch is planned to be on some devices of a described machine, by every route that it has, the fastest first.

    Each device has the budget. Blocks that are not in use lie in the host's memory.
    """
    beside = Beside(copies_beside=True, has_engines=True, grain=DEVICE_GRAIN, machine=published_machine("h100"))
    hops, program = _captured_on(model, graph, torch.device("cpu"), factored=True)
    part = fitted_intervals(
        program,
        hops,
        budget_bytes,
        gradients=Gradients(program, wanted_x=needs_gradient(graph.features)),
        beside=beside,
        cut_part=dealing(cut_graph, devices),
    )
    sizes = hop_sizes(program, hops, part, grain=beside.grain)

    def plan_by(route: Route) -> Planned:
        return plan_epoch(
            program,
            sizes,
            part,
            budget_bytes,
            gradients=_gradients(program, model, graph),
            folded=folded,
            beside=beside,
            route=route,
        )

    return routed(plan_by, machine, devices, lambda planned: work_of(planned, graph.features))


def _selection(
    select: Select, budget_bytes: int, part: PartIntervals, device: torch.device, *, on_disk: bool
) -> Selection:
    """The selection of rows that are picked; none where nothing is moved."""
    if select == "never" or budget_bytes >= UNLIMITED or len(part.bounds) == 2 or part.undivided:
        return NEVER
    if select == "always":
        return ALWAYS
    # To pick rows, a small file would be read as a whole, once for every chunk.
    return NEVER if on_disk else measured_selection(device)


def dense_bytes(model: nn.Module, graph: Graph, *, trains: bool = True) -> int:
    """Bytes that an epoch takes with everything in memory, beside the graph: those of a plan with one interval, and about those of the
    edges' tensors of layers that run as they are written.

    Without ``trains``, the bytes of an evaluation.

    Raises:
        LayerError: the model cannot be streamed, so its memory is unknown.
    """
    hops, program = _captured_on(model, graph, torch.device("cpu"), factored=False, trains=trains)
    planned_bytes = dense_peak_bytes(program, hops, gradients=_gradients(program, model, graph), trains=trains)
    return planned_bytes + _edge_tensor_bytes(model, program, hops)


def _edge_tensor_bytes(model: nn.Module, program: ModelProgram, hops: Sequence[Topology]) -> int:
    """About the bytes of the edges' tensors in memory, where layers have BatchNorms that compute means over all rows."""
    norms = tuple(link.norm for link in program.means)
    layers = [name for name, module in model.named_modules() if isinstance(module, SagaLayer)]
    if not any(norm.startswith(f"{name}.") for norm in norms for name in layers):
        return 0
    moments = {value for link in program.means if link.edge_shape is not None for value in link.values}
    sizes = hop_sizes(program, hops, PartIntervals.of_graph((0, hops[0].num_src)))
    return sum(
        sum(sizes[gather.hop].edges.values()) * max(gather.edges.tensor_bytes, _read_bytes(gather))
        for gather in program.gathers
        if gather.result not in moments
    )


def _read_bytes(gather: Gather) -> int:
    """Bytes that an edge reads, without those of parameters."""
    assert gather.edges.function is not None
    return sum(
        math.prod(given.shape) * given.dtype.itemsize
        for given in gather.edges.function.inputs
        if given.side != "param"
    )


def _gradients(program: ModelProgram, model: nn.Module, graph: Graph) -> Gradients:
    return Gradients(program, wanted_x=needs_gradient(graph.features), trained=trained_in(program, model))


def _features_of(graph: Graph | WorkerPart) -> Features:
    features = graph.features
    if features is None or (
        isinstance(features, Tensor) and features.layout not in (torch.strided, torch.sparse_csr)
    ):
        found = "there are none" if features is None else f"they are {features.layout}"
        raise InputError(
            f"a graph that is streamed needs features: {found} (in stream)",
            hint="Give the graph features [num_vertices, F], dense or torch.sparse_csr.",
        )
    return features


def _captured_on(
    model: nn.Module, graph: Graph | WorkerPart, device: torch.device, *, factored: bool, trains: bool = True
) -> tuple[list[Topology], ModelProgram]:
    features = _features_of(graph)
    if is_sparse(features) and device.type != "cpu":
        raise InputError(
            f"sparse features are streamed on the CPU alone: the model is on {device} (in stream)",
            hint="Stream it on the CPU (--device cpu), or make the features dense.",
        )
    hops = list(graph.hops(count_hops(model)))
    if not hops:
        raise InputError(
            f"a model without a SAGA layer cannot be streamed: it walks no hop (in {type(model).__name__})",
            hint="Train it by batches of rows; it needs no graph.",
        )
    if isinstance(features, Tensor):
        require_on_host(features.device, "features")
    require_places(model, hops, device)
    with MODELS.changing():
        # Training takes more memory than evaluation, so its plan fits both.
        modes = {module: module.training for module in model.modules()}
        try:
            like = like_on(features, device)
            is_constant = are_constant(features)
            return hops, captured(model.train(trains), hops, like, x_is_constant=is_constant, factored=factored)
        finally:
            for module, mode in modes.items():
                module.training = mode
