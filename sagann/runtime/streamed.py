"""A model over one graph that is run by intervals, inside a memory budget, with the numbers of a dense run.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2; Ma et al., NGra, 2018, Sec. 3.1. No public system does this for an
    ordinary model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sagann.compiler.capture import capture
from sagann.compiler.model_program import ModelProgram
from sagann.compiler.options import CompilerOptions
from sagann.compiler.trace import tensors_of
from sagann.errors import InputError, LayerError
from sagann.graph.graph import Graph
from sagann.graph.topology import Topology
from sagann.kernels.first_order import first_order_only
from sagann.plan.gradients import Gradients
from sagann.plan.grid import ChunkGrid
from sagann.plan.intervals import equal_vertices
from sagann.plan.steps import UNLIMITED
from sagann.runtime.chunks import Chunks
from sagann.runtime.configuration import configuration, has_hooks
from sagann.runtime.epoch import Epoch, LossOf
from sagann.runtime.executor import Executor
from sagann.runtime.host import Host, RamHost
from sagann.runtime.planning import Cut, Planned, edges_bytes, fitted_bounds, hop_sizes, planned
from sagann.runtime.random_numbers import NUM_SEEDS
from sagann.runtime.spill import DiskHost, SpillFolder
from sagann.saga.hops import count_hops


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
        self._folder = None if spill is None else SpillFolder(spill, edges_bytes(self.hops, self.bounds))
        host = self._new_host()
        chunks: dict[int, Chunks] = {}
        for number, topology in enumerate(self.hops):
            if id(topology) not in chunks:
                kept = None if budget_bytes >= UNLIMITED and spill is None else host
                chunks[id(topology)] = Chunks(ChunkGrid(topology, bounds), kept, number)
        self._chunks = [chunks[id(topology)] for topology in self.hops]
        self._programs: dict[object, ModelProgram] = {}
        self._plans: dict[object, Planned] = {}

    def forward(self, x: Tensor) -> Tensor:
        """The model's result for all vertices: [num_vertices, ...]."""
        return self._run(x, None)

    def loss(self, x: Tensor, loss_of: LossOf) -> Tensor:
        """A loss that is a sum over vertices, without the model's result ever being whole in memory.

        Args:
            x: vertex features.
            loss_of: gives the loss of some vertices, a scalar, from their rows of the result and their range of ids.
                It may read nothing that is trained but these rows.
        Returns:
            The sum over all intervals; its backward is as that of any loss.
        Raises:
            InputError: ``loss_of`` reads something else that is trained.

        Example:
            >>> from sagann.graph.demo import demo_graph
            >>> from sagann.nn import GNN, SAGE
            >>> graph = demo_graph()
            >>> streamed = stream(GNN([SAGE(graph.num_features, graph.num_classes)]), graph, budget_bytes=1 << 20)
            >>> def loss_of(z: Tensor, vertices: slice) -> Tensor:
            ...     return torch.nn.functional.cross_entropy(z, graph.labels[vertices], reduction="sum") / len(graph.labels)
            >>> streamed.loss(graph.features, loss_of).backward()
        """
        return self._run(x, loss_of)

    def plan(self, x: Tensor, *, folded: bool = False) -> Planned:
        """What a call with such features does: an epoch where gradients are recorded, else a forward.

        Args:
            x: vertex features.
            folded: whether :meth:`loss` is what is called.
        """
        program = self._captured(x)
        trained = self._trained(program)
        trains = torch.is_grad_enabled() and (x.requires_grad or bool(trained))
        key = (x.requires_grad, trained, trains, folded)
        if key not in self._plans:
            gradients = Gradients(program, wanted_x=x.requires_grad, trained=trained)
            sizes = [chunks.size for chunks in self._chunks]
            self._plans[key] = planned(
                program, sizes, self.bounds, self.budget_bytes, gradients=gradients, trains=trains, folded=folded
            )
            if self._folder is not None:
                self._folder.require(self._plans[key].plan.spilled_bytes)
        return self._plans[key]

    def _run(self, x: Tensor, loss_of: LossOf | None) -> Tensor:
        program, schedule, plan = self.plan(x, folded=loss_of is not None)
        named = tensors_of(self.model)
        parameters = [named[name] for _, name in program.parameters]
        trains = torch.is_grad_enabled() and any(each.requires_grad for each in (x, *parameters))
        leaves = [each.detach().requires_grad_(trains and each.requires_grad) for each in parameters]
        executor = Executor(
            program,
            schedule,
            plan,
            chunks=self._chunks,
            host=self._new_host(),
            dialect=self.dialect,
            seed=int(torch.randint(NUM_SEEDS, ())),
            epoch=Epoch(x=x.detach(), parameters=leaves, trains=trains, loss_of=loss_of),
        )
        out: Tensor = _Streamed.apply(executor, x, *parameters)  # type: ignore[no-untyped-call]
        if not out.requires_grad:
            executor.close()
        return out

    def _trained(self, program: ModelProgram) -> frozenset[str]:
        named = tensors_of(self.model)
        return frozenset(name for name, known in program.parameters if named[known].requires_grad)

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
            program = captured(self.model, self.hops, x, self.options)
            self._programs, self._plans = {key: program}, {}
        return self._programs[key]


def captured(
    model: nn.Module, hops: Sequence[Topology], x: Tensor, options: CompilerOptions | None = None
) -> ModelProgram:
    """The captured model.

    Raises:
        LayerError: it cannot be streamed; the message says why.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            raise LayerError(
                "a model that is streamed must treat vertices independently between its layers",
                value=f"the {type(module).__name__} '{name}' computes a mean over all of them",
                where=type(model).__name__,
                fix="Use LayerNorm instead of BatchNorm.",
            )
    program = capture(model, hops, x, options=options)
    for gather in program.gathers:
        if gather.edges.function is None or gather.edges.accumulator == "concat":
            raise LayerError(
                "a layer cannot be streamed",
                value=f"its edges are no fused pass (accumulator {gather.edges.accumulator})",
                where=f"hop {gather.hop}",
                fix="`sagann plan --show program` says why. Use operators that fuse, and another accumulator than concat.",
            )
    return program


def stream(
    model: nn.Module,
    graph: Graph,
    *,
    budget_bytes: int,
    spill: Path | None = None,
    cut: Cut = "bytes",
    num_intervals: int | None = None,
) -> StreamedModel:
    """Make a model run over ``graph`` inside a memory budget.

    Args:
        model: of SAGA layers and operators on rows, with ``num_hops``; it keeps its parameters.
        graph: prepared for the model, with features. Features and edges may be mapped from files.
        budget_bytes: what vertex data, edges and temporaries may take together.
        spill: a folder for what is not in use; without it, that lies in memory too, beyond the budget.
        cut: what intervals have equally many of.
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
    hops, program = _captured_on(model, graph)
    if num_intervals is None:
        bounds = fitted_bounds(program, hops, budget_bytes, cut=cut)
    else:
        bounds = equal_vertices(graph.num_vertices, num_intervals)
    return StreamedModel(model, hops, bounds, budget_bytes=budget_bytes, spill=spill)


def foretell(
    model: nn.Module, graph: Graph, *, budget_bytes: int, cut: Cut = "bytes", folded: bool = True
) -> Planned:
    """What :func:`stream` would plan for an epoch, without cutting the graph.

    Args:
        model: as for :func:`stream`.
        graph: as for :func:`stream`.
        budget_bytes: as for :func:`stream`.
        cut: as for :func:`stream`.
        folded: whether of :meth:`StreamedModel.loss`, or of a call.
    """
    hops, program = _captured_on(model, graph)
    bounds = fitted_bounds(program, hops, budget_bytes, cut=cut)
    return planned(
        program, hop_sizes(hops, bounds), bounds, budget_bytes, gradients=Gradients(program), folded=folded
    )


def _captured_on(model: nn.Module, graph: Graph) -> tuple[list[Topology], ModelProgram]:
    features = graph.features
    if graph.topology.device.type != "cpu":
        raise InputError(
            "streaming to a device that is no CPU is not built yet",
            value=f"the graph is on {graph.topology.device}",
            where="stream",
            fix="Train with device='cpu', or without a memory budget.",
        )
    if features is None or features.layout != torch.strided:
        raise InputError(
            "a graph that is streamed needs dense features",
            value="there are none" if features is None else f"they are {features.layout}",
            where="stream",
            fix="Convert them with .to_dense(), or import the dataset with dense features.",
        )
    hops = list(graph.hops(count_hops(model)))
    if not hops:
        raise InputError(
            "a model without a SAGA layer cannot be streamed",
            value="it walks no hop",
            where=type(model).__name__,
            fix="Train it by batches of rows; it needs no graph.",
        )
    # In training there is more to keep than in evaluation.
    modes = {module: module.training for module in model.modules()}
    try:
        return hops, captured(model.train(), hops, features)
    finally:
        for module, mode in modes.items():
            module.training = mode


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, executor: Executor, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.executor = executor
        ctx.save_for_backward(x, *parameters)
        return executor.forward()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        # PyTorch refuses here what was changed in place since the forward.
        assert ctx.saved_tensors
        executor: Executor = ctx.executor
        epoch, program = executor.epoch, executor.program
        if epoch.loss_of is None:
            epoch.upstream = grad
        executor.backward()
        names = [name for name, _ in program.parameters]
        gradients = [epoch.of_x, *epoch.parameter_gradients(names, program.param.outputs)]
        if epoch.loss_of is not None:
            gradients = [None if gradient is None else gradient * grad for gradient in gradients]
        return None, *gradients
