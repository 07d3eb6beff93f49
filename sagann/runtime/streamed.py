"""A model over one graph that is run by intervals, inside a memory budget, with the numbers of a dense run.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2; Ma et al., NGra, 2018, Sec. 3.1. No public system does this for an
    ordinary model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from sagann.compiler.capture import capture
from sagann.compiler.model_program import ModelProgram
from sagann.compiler.options import CompilerOptions
from sagann.compiler.trace import tensors_of
from sagann.errors import InputError, LayerError
from sagann.graph.graph import Graph
from sagann.graph.topology import Topology
from sagann.kernels.first_order import first_order_only
from sagann.plan.fit import hop_size, least_count, needed_bytes
from sagann.plan.grid import ChunkGrid
from sagann.plan.intervals import equal_edges, equal_vertices, sizes
from sagann.plan.residency import place
from sagann.plan.schedule import CSC, CSR, Schedule, chunk_bytes
from sagann.plan.steps import Plan
from sagann.runtime.chunks import Chunks
from sagann.runtime.configuration import configuration, has_hooks
from sagann.runtime.executor import Epoch, Executor
from sagann.runtime.host import Host, RamHost
from sagann.runtime.random_numbers import NUM_SEEDS
from sagann.runtime.spill import DiskHost, SpillFolder

Cut = Literal["edges", "vertices"]
"What intervals have equally many of."
UNLIMITED = 1 << 62
"A budget that everything fits."


class Planned(NamedTuple):
    """What a call does."""

    program: ModelProgram
    "The captured model."
    schedule: Schedule
    "Its steps, and the sizes of blocks."
    plan: Plan
    "Steps and moves within the budget."


class StreamedModel(nn.Module):
    """A model over one graph, run by intervals: ``streamed(x)`` is ``model(hops, x)``, and trains as that does.

    Args:
        model: an ordinary module of SAGA layers and operators on rows. Its parameters stay its own.
        hops: the topologies that it walks; for a whole graph ``graph.hops(k)``.
        bounds: of the intervals, as :mod:`sagann.plan.intervals` gives them; (0, n) is the dense run.
        spill: a folder for what is not in use; without it, that lies in memory too, beyond the budget.
        budget_bytes: what blocks and temporaries may take together; parameters, and what lies on the host, come on top.
        options: what the compiler may do to a layer.
        dialect: kernels of the edges.

    Raises:
        LayerError: the model mixes vertices between its layers, or has a layer that cannot be fused.
        BudgetError: a step needs more than the budget.
    """

    def __init__(
        self,
        model: nn.Module,
        hops: Sequence[Topology],
        bounds: Sequence[int],
        *,
        budget_bytes: int = UNLIMITED,
        spill: Path | None = None,
        options: CompilerOptions | None = None,
        dialect: str = "auto",
    ) -> None:
        super().__init__()
        self.model = model
        self.hops = list(hops)
        self.bounds = tuple(bounds)
        self.budget_bytes = budget_bytes
        self.options = options
        self.dialect = dialect
        self._folder = None if spill is None else SpillFolder(spill, _edges_bytes(self.hops, self.bounds))
        host = self._new_host()
        chunks: dict[int, Chunks] = {}
        for number, topology in enumerate(self.hops):
            if id(topology) not in chunks:
                chunks[id(topology)] = Chunks(ChunkGrid(topology, bounds), host, number)
        self._chunks = [chunks[id(topology)] for topology in self.hops]
        self._programs: dict[object, ModelProgram] = {}
        self._plans: dict[object, Planned] = {}

    def forward(self, x: Tensor) -> Tensor:
        """The model's result for all vertices: [num_vertices, ...]."""
        program, schedule, plan = self.plan(x)
        named = tensors_of(self.model)
        executor = Executor(
            program,
            schedule,
            plan,
            chunks=self._chunks,
            host=self._new_host(),
            dialect=self.dialect,
            seed=int(torch.randint(NUM_SEEDS, ())),
        )
        parameters = [named[name] for _, name in program.parameters]
        out: Tensor = _Streamed.apply(executor, x, *parameters)  # type: ignore[no-untyped-call]
        if not out.requires_grad:
            executor.close()
        return out

    def plan(self, x: Tensor) -> Planned:
        """What a call with such features does: an epoch where gradients are recorded, else a forward."""
        program = self._captured(x)
        named = tensors_of(self.model)
        trained = frozenset(name for name, known in program.parameters if named[known].requires_grad)
        epoch = torch.is_grad_enabled() and (x.requires_grad or bool(trained))
        key = (x.requires_grad, trained, epoch)
        if key not in self._plans:
            self._plans[key] = self._planned(program, x.requires_grad, trained, epoch)
        return self._plans[key]

    def _planned(self, program: ModelProgram, wanted_x: bool, trained: frozenset[str], epoch: bool) -> Planned:
        hops = [chunks.size for chunks in self._chunks]
        schedule = Schedule(program, hops, self.bounds, wanted_x=wanted_x, trained=trained)
        plan = place(
            list(schedule.epoch() if epoch else schedule.forward()),
            bytes_of=schedule.bytes_of,
            on_host=[*schedule.initial(), *(schedule.upstream() if epoch else [])],
            bounds=self.bounds,
            budget_bytes=self.budget_bytes,
        )
        if self._folder is not None:
            self._folder.require(plan.spilled_bytes)
        return Planned(program, schedule, plan)

    def close(self) -> None:
        """Remove what was spilled; the model cannot run by intervals after that."""
        if self._folder is not None:
            self._folder.close()

    def _new_host(self) -> Host:
        return RamHost() if self._folder is None else DiskHost(self._folder)

    def _captured(self, x: Tensor) -> ModelProgram:
        if has_hooks(self.model.modules()):
            raise LayerError(
                "a model that is streamed cannot have hooks",
                value="a module has one",
                where=type(self.model).__name__,
                fix="Remove it: the model's own forward does not run.",
            )
        key = (configuration(self.model), x.shape[1:], x.dtype, x.device)
        if key not in self._programs:
            program = capture(self.model, self.hops, x, options=self.options)
            _require_fused(program)
            self._programs, self._plans = {key: program}, {}
        return self._programs[key]


def _edges_bytes(hops: Sequence[Topology], bounds: Sequence[int]) -> int:
    """What the chunks of all hops take in both orders."""
    total = 0
    for topology in {id(topology): topology for topology in hops}.values():
        hop, rows = hop_size(topology, bounds), sizes(tuple(bounds))
        total += sum(chunk_bytes(hop, rows, *at, form) for at in hop.edges for form in (CSC, CSR))
    return total


def _require_fused(program: ModelProgram) -> None:
    for gather in program.gathers:
        if gather.edges.function is None or gather.edges.accumulator == "concat":
            raise LayerError(
                "a layer cannot be streamed",
                value=f"its edges are no fused pass (accumulator {gather.edges.accumulator})",
                where=f"hop {gather.hop}",
                fix="`sagann plan --show program` says why. Use operators that fuse, and another accumulator than concat.",
            )


def stream(
    model: nn.Module,
    graph: Graph,
    *,
    budget_bytes: int,
    spill: Path | None = None,
    cut: Cut = "vertices",
    num_intervals: int | None = None,
) -> StreamedModel:
    """Make a model run over ``graph`` inside a memory budget.

    Args:
        model: of SAGA layers and operators on rows, with ``num_hops``; it keeps its parameters.
        graph: prepared for the model, with features. Features and edges may be mapped from files.
        budget_bytes: what vertex data, edges and temporaries may take together.
        spill: a folder for what is not in use; without it, that lies in memory too, beyond the budget.
        cut: whether intervals have equally many "vertices" or "edges".
        num_intervals: P; by default the least that fits the budget.

    Returns:
        A module that trains in the usual loop: ``z = streamed(graph.features)``.

    Raises:
        BudgetError: the budget cannot be met; the message says by which it could.
        LayerError: the model cannot be streamed; the message says why.
        SpillError: there is too little room to spill.

    Example:
        >>> from sagann.graph.demo import demo_graph
        >>> from sagann.nn import GNN, SAGE
        >>> graph = demo_graph()
        >>> model = GNN([SAGE(graph.num_features, 16), SAGE(16, graph.num_classes)])
        >>> streamed = stream(model, graph, budget_bytes=1 << 20)
        >>> z = streamed(graph.features)
        >>> torch.allclose(z, model(graph.hops(2), graph.features), atol=1e-4)
        True
    """
    features = graph.features
    if features is None or features.layout != torch.strided:
        raise InputError(
            "a graph that is streamed needs dense features",
            value="there are none" if features is None else f"they are {features.layout}",
            where="stream",
            fix="Convert them with .to_dense(), or import the dataset with dense features.",
        )
    hops = graph.hops(int(getattr(model, "num_hops", 1)))
    program = capture(model, hops, features)
    topologies = {id(topology): topology for topology in hops}

    def bounds_of(count: int) -> tuple[int, ...]:
        topology = graph.topology
        return equal_edges(topology.indptr, count) if cut == "edges" else equal_vertices(topology.num_dst, count)

    def needed(count: int) -> int:
        bounds = bounds_of(count)
        found = {key: hop_size(topology, bounds) for key, topology in topologies.items()}
        schedule = Schedule(program, [found[id(topology)] for topology in hops], bounds)
        return needed_bytes(schedule, list(schedule.epoch()))

    count = num_intervals or least_count(needed, budget_bytes, max(1, graph.topology.num_dst))
    return StreamedModel(model, hops, bounds_of(count), budget_bytes=budget_bytes, spill=spill)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, executor: Executor, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.executor = executor
        ctx.save_for_backward(x, *parameters)
        return executor.forward(Epoch(x=x, parameters=parameters))

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        leaves = [tensor.detach().requires_grad_(on) for tensor, on in zip(parameters, wanted, strict=True)]
        epoch = Epoch(x=x, parameters=leaves, upstream=grad)
        ctx.executor.backward(epoch)
        return None, epoch.of_x, *_parameter_gradients(ctx.executor.program, leaves, epoch)


def _parameter_gradients(program: ModelProgram, leaves: Sequence[Tensor], epoch: Epoch) -> list[Tensor | None]:
    """The gradients of the parameters, those of derived values taken back to them."""
    derived = [name for name in program.param.outputs if name in epoch.of_shared]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    through: dict[int, Tensor] = {}
    if derived and wanted:
        found = torch.autograd.grad(
            [epoch.shared[name] for name in derived],
            wanted,
            [epoch.of_shared[name] for name in derived],
            allow_unused=True,
        )
        through = {id(leaf): grad for leaf, grad in zip(wanted, found, strict=True) if grad is not None}
    gradients: list[Tensor | None] = []
    for (name, _), leaf in zip(program.parameters, leaves, strict=True):
        parts = [part for part in (epoch.of_shared.get(name), through.get(id(leaf))) if part is not None]
        gradients.append(sum(parts[1:], parts[0]) if parts and leaf.requires_grad else None)
    return gradients
