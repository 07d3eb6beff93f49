"""A model over one graph that is run by intervals, inside a memory budget, with the numbers of a dense run.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2; Ma et al., NGra, 2018, Sec. 3.1. No public system does this for an
    ordinary model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sagann.compiler.capture import ModelProgram, capture
from sagann.compiler.options import CompilerOptions
from sagann.compiler.trace import tensors_of
from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.kernels.first_order import first_order_only
from sagann.plan.grid import ChunkGrid
from sagann.plan.residency import place
from sagann.plan.schedule import Schedule, hop_size
from sagann.plan.steps import Plan
from sagann.runtime.executor import Epoch, Executor
from sagann.runtime.host import RamHost
from sagann.runtime.random_numbers import NUM_SEEDS

UNLIMITED = 1 << 62
"A budget that everything fits."


class StreamedModel(nn.Module):
    """A model over one graph, run by intervals: ``streamed(x)`` is ``model(hops, x)``, and trains as that does.

    Args:
        model: an ordinary module of SAGA layers and operators on rows. Its parameters stay its own.
        hops: the topologies that it walks; for a whole graph ``graph.hops(k)``.
        bounds: of the intervals, as :mod:`sagann.plan.intervals` gives them; (0, n) is the dense run.
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
        grids = {id(topology): ChunkGrid(topology, bounds) for topology in self.hops}
        self.grids = [grids[id(topology)] for topology in self.hops]
        self._programs: dict[tuple[object, ...], ModelProgram] = {}

    def forward(self, x: Tensor) -> Tensor:
        """The model's result for all vertices: [num_vertices, ...]."""
        program, schedule, plan = self.plan(x)
        named = tensors_of(self.model)
        executor = Executor(
            program,
            schedule,
            plan,
            grids=self.grids,
            host=RamHost(),
            dialect=self.dialect,
            seed=int(torch.randint(NUM_SEEDS, ())),
        )
        parameters = [named[name] for _, name in program.parameters]
        out: Tensor = _Streamed.apply(executor, x, *parameters)  # type: ignore[no-untyped-call]
        if not out.requires_grad:
            executor.close()
        return out

    def plan(self, x: Tensor) -> tuple[ModelProgram, Schedule, Plan]:
        """What a call with such features does: an epoch where gradients are recorded, else a forward."""
        program = self._captured(x)
        named = tensors_of(self.model)
        trained = frozenset(name for name, known in program.parameters if named[known].requires_grad)
        sizes = [hop_size(grid) for grid in self.grids]
        schedule = Schedule(program, sizes, self.bounds, wanted_x=x.requires_grad, trained=trained)
        epoch = torch.is_grad_enabled() and (x.requires_grad or bool(trained))
        on_host = [*schedule.initial(), *(schedule.upstream() if epoch else [])]
        steps = list(schedule.epoch() if epoch else schedule.forward())
        return (
            program,
            schedule,
            place(
                steps,
                bytes_of=schedule.bytes_of,
                on_host=on_host,
                bounds=self.bounds,
                budget_bytes=self.budget_bytes,
            ),
        )

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
