"""Run a captured model interval by interval, chunk by chunk, forward and backward, with the numbers of a dense run.

Forward, in column order: for each destination interval the chunks into it are accumulated by source interval, and what
was gathered goes through the next stage at once. Backward, in row order: each stage is run again on its interval and
differentiated; the gradients of sources are accumulated over the chunks out of an interval, those of destinations over
the chunks into it. Kept between the two are what stages give and what was gathered, nothing else.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2 (column order forward, row order backward); NGra, 2018, Sec. 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sagann.compiler.capture import Gather, ModelProgram, capture
from sagann.compiler.options import CompilerOptions
from sagann.compiler.program import EdgeWork
from sagann.compiler.stages import Stage
from sagann.compiler.trace import tensors_of
from sagann.compiler.vjp import ARGUMENT, DELTA, GRAD, LSE
from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.state import GatherState
from sagann.kernels.first_order import first_order_only
from sagann.plan.grid import ChunkGrid, EdgeChunk
from sagann.plan.intervals import sizes
from sagann.runtime.dialects import dialect_for, run_pass
from sagann.runtime.rows import compute_rows

Block = tuple[str, int]
"A named value restricted to an interval."
_SEEDS = 2**31


class StreamedModel(nn.Module):
    """A model over one graph, run by intervals: ``streamed(x)`` is ``model(hops, x)``, and trains as that does.

    Args:
        model: an ordinary module of SAGA layers and operators on rows. Its parameters stay its own.
        hops: the topologies that it walks; for a whole graph ``graph.hops(k)``.
        bounds: of the intervals, as :mod:`sagann.plan.intervals` gives them; (0, n) is the dense run.
        options: what the compiler may do to a layer.
        dialect: kernels of the edges.

    Raises:
        LayerError: the model mixes vertices between its layers, or has a layer that cannot be fused.
    """

    def __init__(
        self,
        model: nn.Module,
        hops: Sequence[Topology],
        bounds: Sequence[int],
        *,
        options: CompilerOptions | None = None,
        dialect: str = "auto",
    ) -> None:
        super().__init__()
        self.model = model
        self.hops = list(hops)
        self.options = options
        self.dialect = dialect
        grids = {id(topology): ChunkGrid(topology, bounds) for topology in self.hops}
        self.grids = [grids[id(topology)] for topology in self.hops]
        self._programs: dict[tuple[object, ...], ModelProgram] = {}

    def forward(self, x: Tensor) -> Tensor:
        """The model's result for all vertices: [num_vertices, ...]."""
        program = self._captured(x)
        named = tensors_of(self.model)
        seed = int(torch.randint(_SEEDS, ()))
        run = _Run(program, self.grids, self.dialect, x.device, seed)
        out: Tensor = _Streamed.apply(run, x, *(named[name] for _, name in program.parameters))  # type: ignore[no-untyped-call]
        return out

    def _captured(self, x: Tensor) -> ModelProgram:
        modes = tuple(module.training for module in self.model.modules())
        key = (modes, x.shape[1:], x.dtype, x.device)
        if key not in self._programs:
            program = capture(self.model, self.hops, x, options=self.options)
            _require_fused(program)
            self._programs[key] = program
        return self._programs[key]


def _require_fused(program: ModelProgram) -> None:
    for gather in program.gathers:
        if gather.edges.function is None or gather.edges.accumulator == "concat":
            raise LayerError(
                "a layer cannot be streamed",
                value=f"its edges are no fused pass (accumulator {gather.edges.accumulator})",
                where=f"hop {gather.hop}",
                fix="`sagann plan --show program` says why. Use operators that fuse, and another accumulator than concat.",
            )


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x, *parameters)
        return run.forward(x, parameters)

    @staticmethod
    @first_order_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *parameters = ctx.saved_tensors
        wanted_x, *wanted = ctx.needs_input_grad[1:]
        of_x, of_parameters = ctx.run.backward(x, parameters, grad, wanted_x, wanted)
        return None, of_x, *of_parameters


class _Run:
    """One forward, and the backward that belongs to it."""

    def __init__(
        self, program: ModelProgram, grids: Sequence[ChunkGrid], dialect: str, device: torch.device, seed: int
    ) -> None:
        self.program = program
        self.grids = grids
        self.bounds = grids[0].bounds
        self.device = device
        self.seed = seed
        chosen = dialect_for(device.type, dialect)
        self.run_edges = partial(run_pass, chosen)
        self.run_rows: Callable[[EdgeWork, Sequence[Tensor]], Tensor] = partial(compute_rows, dialect=chosen)
        self.blocks: dict[Block, Tensor] = {}
        self.extras: dict[Block, tuple[Tensor, ...]] = {}

    @property
    def intervals(self) -> range:
        """Numbers of the intervals."""
        return range(len(self.bounds) - 1)

    def forward(self, x: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """Run all stages and gathers, and keep what the backward reads."""
        shared = self._parameters(parameters)
        for interval in self.intervals:
            self.blocks["x", interval] = x[self.bounds[interval] : self.bounds[interval + 1]]
            self._run_stage(0, interval, shared)
        for number, gather in enumerate(self.program.gathers):
            for interval in self.intervals:
                self._gather(gather, interval, shared)
                self._run_stage(number + 1, interval, shared)
        return torch.cat([self.blocks[self.program.output, interval] for interval in self.intervals])

    def _parameters(self, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        """Parameters, buffers and what depends on them alone, by name."""
        named = {name: tensor for (name, _), tensor in zip(self.program.parameters, parameters, strict=True)}
        return named | self.program.param.run(named, self.run_rows)

    def _run_stage(self, number: int, interval: int, shared: Mapping[str, Tensor]) -> None:
        stage = self.program.stages[number]
        with self._random_numbers(number, interval):
            for name, value in stage.run(self._inputs(stage, interval, shared), self.run_rows).items():
                self.blocks[name, interval] = value

    def _inputs(self, stage: Stage, interval: int, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: shared[name] if name in shared else self.blocks[name, interval] for name in stage.inputs}

    def _random_numbers(self, stage: int, interval: int) -> Any:
        """The same random numbers whenever a stage is run on an interval."""
        return _seeded(self.seed + stage * len(self.intervals) + interval, self.device)

    def _gather(self, gather: Gather, interval: int, shared: Mapping[str, Tensor]) -> None:
        function = gather.edges.function
        assert function is not None
        state = self._state(function, gather, interval)
        for chunk in self.grids[gather.hop].into(interval):
            self._accumulate(state, gather, chunk, self._edge_inputs(gather, chunk, shared))
        result, *rest = state.finish()
        if gather.edges.accumulator == "mean":
            result = result / self._degrees(gather, interval, result)
        self.blocks[gather.result, interval] = result.to(gather.edges.dtype)
        self.extras[gather.result, interval] = tuple(rest)

    def _state(self, function: EdgeFunction, gather: Gather, interval: int) -> GatherState:
        num_rows = sizes(self.bounds)[interval]
        num_edges = self.grids[gather.hop].num_edges
        return GatherState(function, num_rows=num_rows, num_edges=num_edges, device=self.device)

    def _accumulate(
        self, state: GatherState, gather: Gather, chunk: EdgeChunk, arrays: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        read = {given.name: arrays[given.name] for given in state.function.inputs}
        seed = self.seed + gather.hop
        return state.accumulate(self.run_edges, chunk.topology, read, seed=seed, edge_offset=chunk.first_edge)

    def _edge_inputs(self, gather: Gather, chunk: EdgeChunk, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The arrays that the chunk's edges read, by the names of the edges' own stage."""
        arrays = {}
        work = gather.edges
        for name, side, value in zip(work.stage.inputs, work.sides, gather.inputs, strict=True):
            if side == "param":
                arrays[name] = shared[value]
            elif side == "edge":
                arrays[name] = chunk.topology.edge_data[value]
            else:
                arrays[name] = self.blocks[value, chunk.src if side == "src" else chunk.dst]
        return arrays

    def _degrees(self, gather: Gather, interval: int, like: Tensor) -> Tensor:
        chunks = self.grids[gather.hop].into(interval)
        degrees = sum((chunk.topology.in_degrees() for chunk in chunks), torch.zeros(len(like), dtype=torch.int64))
        return degrees.clamp(min=1).to(like).reshape(-1, *(1,) * (like.ndim - 1))

    def backward(
        self,
        x: Tensor,
        parameters: Sequence[Tensor],
        grad: Tensor,
        wanted_x: bool,
        wanted: Sequence[bool],
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """The gradients of x and of the parameters."""
        leaves = [tensor.detach().requires_grad_(on) for tensor, on in zip(parameters, wanted, strict=True)]
        with torch.enable_grad():
            shared = self._parameters(leaves)
        gradients = _Gradients()
        for interval in self.intervals:
            gradients.add((self.program.output, interval), grad[self.bounds[interval] : self.bounds[interval + 1]])
        # Those of derived parameters go through their own stage at the end.
        of_shared: dict[str, Tensor] = {}
        for number in reversed(range(len(self.program.stages))):
            for interval in self.intervals:
                self._stage_backward(number, interval, shared, wanted_x, gradients, of_shared)
            if number:
                self._gather_backward(self.program.gathers[number - 1], shared, gradients, of_shared)
        of_x = [gradients.take(("x", interval)) for interval in self.intervals] if wanted_x else []
        whole = _joined(of_x, x, self.bounds) if wanted_x else None
        return whole, _parameter_gradients(self.program, leaves, shared, of_shared)

    def _stage_backward(
        self,
        number: int,
        interval: int,
        shared: Mapping[str, Tensor],
        wanted_x: bool,
        gradients: _Gradients,
        of_shared: dict[str, Tensor],
    ) -> None:
        stage = self.program.stages[number]
        upstream = {name: gradients.take((name, interval)) for name in stage.outputs}
        upstream = {name: grad for name, grad in upstream.items() if grad is not None}
        if not upstream:
            return
        inputs = {}
        for name, value in self._inputs(stage, interval, shared).items():
            wanted = (
                value.requires_grad if name in shared else value.is_floating_point() and (name != "x" or wanted_x)
            )
            inputs[name] = value.detach().requires_grad_(wanted)
        with torch.enable_grad(), self._random_numbers(number, interval):
            outputs = stage.run(inputs, self.run_rows)
        reached = [name for name in upstream if outputs[name].requires_grad]
        leaves = {name: value for name, value in inputs.items() if value.requires_grad}
        if not reached or not leaves:
            return
        found = torch.autograd.grad(
            [outputs[name] for name in reached],
            list(leaves.values()),
            [upstream[name] for name in reached],
            allow_unused=True,
        )
        for name, grad in zip(leaves, found, strict=True):
            if grad is not None and name in shared:
                of_shared[name] = of_shared[name] + grad if name in of_shared else grad
            elif grad is not None:
                gradients.add((name, interval), grad)

    def _gather_backward(
        self, gather: Gather, shared: Mapping[str, Tensor], gradients: _Gradients, of_shared: dict[str, Tensor]
    ) -> None:
        work = gather.edges
        assert work.backward is not None
        incoming = {interval: self._incoming(gather, interval, gradients) for interval in self.intervals}
        values = dict(zip(work.stage.inputs, gather.inputs, strict=True))
        wanted = tuple(name for name in work.stage.inputs if self._is_wanted(gather, name, shared))
        handed: dict[tuple[int, int], dict[str, Tensor]] = {}
        for step in work.backward.passes(wanted):
            at_dst = step.function.at == "dst"
            of_edges = [output.reduce == "edge" for output in step.function.outputs]
            names = [name for name, edge in zip(step.results, of_edges, strict=True) if not edge]
            names_of_edges = [name for name, edge in zip(step.results, of_edges, strict=True) if edge]
            for interval in self.intervals:
                state = self._state(step.function, gather, interval)
                grid = self.grids[gather.hop]
                for chunk in grid.into(interval) if at_dst else grid.out_of(interval):
                    at = (chunk.src, chunk.dst)
                    arrays = self._edge_inputs(gather, chunk, shared) | incoming[chunk.dst] | handed.get(at, {})
                    edges = self._accumulate(state, gather, chunk, arrays)
                    handed.setdefault(at, {}).update(zip(names_of_edges, edges, strict=True))
                for name, result in zip(names, state.finish(), strict=True):
                    value = values[name]
                    if value in shared:
                        of_shared[value] = of_shared[value] + result if value in of_shared else result
                    else:
                        gradients.add((value, interval), result)

    def _is_wanted(self, gather: Gather, name: str, shared: Mapping[str, Tensor]) -> bool:
        index = gather.edges.stage.inputs.index(name)
        side, value = gather.edges.sides[index], gather.inputs[index]
        if side == "edge":
            return False
        if side == "param":
            return shared[value].requires_grad
        return self.program.forms[value].dtype.is_floating_point

    def _incoming(self, gather: Gather, interval: int, gradients: _Gradients) -> dict[str, Tensor]:
        """What the backward's passes read of a destination interval, besides what the forward read."""
        result = self.blocks[gather.result, interval]
        grad = gradients.take((gather.result, interval))
        grad = torch.zeros_like(result) if grad is None else grad
        extra = self.extras[gather.result, interval]
        accumulator = gather.edges.accumulator
        if accumulator == "mean":
            grad = grad / self._degrees(gather, interval, grad)
        given = {GRAD: grad}
        if accumulator in ("max", "min"):
            given[ARGUMENT] = extra[0]
        if accumulator == "softmax":
            (lse,) = extra
            given[LSE] = lse
            agreement = grad * result
            given[DELTA] = agreement.flatten(lse.ndim).sum(-1) if agreement.ndim > lse.ndim else agreement
        return given


class _Gradients:
    """Gradients of blocks, summed as they come."""

    def __init__(self) -> None:
        self._known: dict[Block, Tensor] = {}

    def add(self, block: Block, grad: Tensor) -> None:
        """Add to a block's gradient."""
        self._known[block] = self._known[block] + grad if block in self._known else grad

    def take(self, block: Block) -> Tensor | None:
        """The gradient of a block, which is forgotten; None where there is none."""
        return self._known.pop(block, None)


def _joined(parts: Iterable[Tensor | None], x: Tensor, bounds: Sequence[int]) -> Tensor:
    return torch.cat(
        [
            x.new_zeros(size, *x.shape[1:]) if part is None else part
            for part, size in zip(parts, sizes(tuple(bounds)), strict=True)
        ]
    )


def _parameter_gradients(
    program: ModelProgram, leaves: Sequence[Tensor], shared: Mapping[str, Tensor], of_shared: Mapping[str, Tensor]
) -> list[Tensor | None]:
    """The gradients of the parameters, those of derived values taken back to them."""
    derived = [name for name in program.param.outputs if name in of_shared]
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    through: dict[int, Tensor] = {}
    if derived:
        found = torch.autograd.grad(
            [shared[name] for name in derived], wanted, [of_shared[name] for name in derived], allow_unused=True
        )
        through = {id(leaf): grad for leaf, grad in zip(wanted, found, strict=True) if grad is not None}
    gradients: list[Tensor | None] = []
    for (name, _), leaf in zip(program.parameters, leaves, strict=True):
        parts = [part for part in (of_shared.get(name), through.get(id(leaf))) if part is not None]
        gradients.append(sum(parts[1:], parts[0]) if parts else None)
    return gradients


class _seeded:  # noqa: N801 - a context manager, as `torch.random.fork_rng` is.
    """Random numbers from a seed inside the ``with`` block, and the ones before it after it."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self.fork = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        self.seed = seed % _SEEDS

    def __enter__(self) -> None:
        self.fork.__enter__()
        torch.manual_seed(self.seed)

    def __exit__(self, *error: Any) -> None:
        self.fork.__exit__(*error)
