"""Executor: obeys a plan for one epoch of a captured model.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2: chunks are copied while others are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.model_program import Gather, ModelProgram
from sagann.compiler.program import EdgeWork, Stage
from sagann.compiler.vjp import ARGUMENT, DELTA, GRAD, LSE
from sagann.errors import InputError
from sagann.graph.topology import Topology
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.state import GatherState
from sagann.plan.intervals import sizes
from sagann.plan.schedule import Schedule
from sagann.plan.steps import Block, Move, Plan, Step
from sagann.runtime.chunks import Chunks
from sagann.runtime.dialects import dialect_for, run_pass
from sagann.runtime.host import Host, copied
from sagann.runtime.random_numbers import NUM_SEEDS, seeded
from sagann.runtime.rows import compute_rows

# Sizes in the pool are rounded up by an eighth at most.
_MOST_SPARE = 1.125
_PAGE_BYTES = 4096


@dataclass(kw_only=True, slots=True)
class Epoch:
    """What an epoch's steps read and write besides blocks."""

    x: Tensor
    "Features, outside of the device's memory."
    parameters: Sequence[Tensor]
    "In the program's order."
    shared: dict[str, Tensor] = field(default_factory=dict)
    "Parameters and what depends on them alone, by name."
    out: Tensor | None = None
    "The result, once it is complete."
    upstream: Tensor | None = None
    "The result's gradient."
    of_x: Tensor | None = None
    "The features' gradient."
    of_shared: dict[str, Tensor] = field(default_factory=dict)
    "Gradients of parameters and derived values, so far."


class Executor:
    """Obeys a plan. Forward and backward of one epoch belong to one executor.

    Args:
        program: the captured model.
        schedule: whose steps the plan places.
        plan: what to do.
        chunks: of each hop.
        host: where blocks lie that are not on the device.
        dialect: kernels of the edges.
        seed: of the epoch's random numbers.
    """

    def __init__(
        self,
        program: ModelProgram,
        schedule: Schedule,
        plan: Plan,
        *,
        chunks: Sequence[Chunks],
        host: Host,
        dialect: str,
        seed: int,
    ) -> None:
        self.program = program
        self.schedule = schedule
        self.chunks = chunks
        self.host = host
        self.seed = seed
        self.bounds = plan.bounds
        self.operations = iter(plan.operations)
        self.dialect = dialect
        self.device = torch.device("cpu")
        self.resident: dict[Block, Any] = {}
        self.pending: dict[Block, Future[Any]] = {}
        self._is_done = False
        self._copies = ThreadPoolExecutor(max_workers=2, thread_name_prefix="sagann-copy")

    def forward(self, epoch: Epoch) -> Tensor:
        """Run the plan until the result is there."""
        self.device = epoch.x.device
        self._share(epoch, epoch.parameters)
        self._run_until("loss", epoch)
        assert epoch.out is not None
        return epoch.out

    def backward(self, epoch: Epoch) -> None:
        """Run the rest; once, for nothing is kept for a second time.

        Raises:
            InputError: it has run before.
        """
        if self._is_done:
            raise InputError(
                "a backward of a streamed model ran twice",
                value="retain_graph = True, or gradients of several losses",
                where="StreamedModel",
                fix="Add the losses up before the backward, or call the model again.",
            )
        self._is_done = True
        with torch.enable_grad():
            self._share(epoch, epoch.parameters)
        self._run_until("", epoch)
        self.close()

    def close(self) -> None:
        """Wait for the copies under way, and forget all blocks."""
        self._copies.shutdown(wait=True)
        self.resident.clear()
        self.host.close()

    def _share(self, epoch: Epoch, parameters: Sequence[Tensor]) -> None:
        named = {name: tensor for (name, _), tensor in zip(self.program.parameters, parameters, strict=True)}
        with seeded(self.seed - 1, self.device):
            epoch.shared = named | self.program.param.run(named, self._rows)

    def _run_until(self, kind: str, epoch: Epoch) -> None:
        run: Mapping[str, Callable[[Step, Epoch], None]] = {
            "transform": self._transform,
            "gather": self._gather,
            "finish": self._finish,
            "emit": self._emit,
            "arrive": self._arrive,
            "transform_grad": self._transform_grad,
            "gather_grad": self._gather_grad,
            "finish_grad": self._finish_grad,
            "emit_grad": self._emit_grad,
        }
        for operation in self.operations:
            if isinstance(operation, Move):
                self._move(operation, epoch)
                continue
            if operation.kind == kind:
                return
            for block in (*operation.reads, *operation.writes):
                self._await(block)
            run[operation.kind](operation, epoch)

    def _move(self, move: Move, epoch: Epoch) -> None:
        block = move.block
        if move.kind == "load":
            self.pending[block] = self._copies.submit(self._loaded, block, epoch)
            self.resident[block] = None
        elif move.kind == "store":
            self._await(block)
            self.pending[block] = self._copies.submit(self.host.put, block, _payload(self.resident[block]))
        else:
            self._await(block)
            self.resident.pop(block, None)

    def _await(self, block: Block) -> None:
        """Wait for the copy of a block that is under way."""
        if (copy := self.pending.pop(block, None)) is not None:
            value = copy.result()
            if value is not None:
                self.resident[block] = value

    def _loaded(self, block: Block, epoch: Epoch) -> Any:
        if block.kind == "edges":
            return self.chunks[block.number].load(block)
        if block == Block("value", "x", block.interval):
            return copied(epoch.x[self._interval(block.interval)])
        if block.kind == "grad" and block.name == self.program.output and epoch.upstream is not None:
            return copied(epoch.upstream[self._interval(block.interval)])
        payload = self.host.get(block)
        return payload.get("", payload)

    def _interval(self, number: int) -> slice:
        return slice(self.bounds[number], self.bounds[number + 1])

    def _rows(self, work: EdgeWork, arrays: Sequence[Tensor]) -> Tensor:
        return compute_rows(work, arrays, dialect_for(self.device.type, self.dialect))

    def _value(self, name: str, interval: int) -> Tensor:
        value: Tensor = self.resident[Block("value", name, interval)]
        return value

    def _inputs(self, stage: Stage, interval: int, epoch: Epoch) -> dict[str, Tensor]:
        return {
            name: epoch.shared[name] if name in epoch.shared else self._value(name, interval)
            for name in stage.inputs
        }

    def _transform(self, step: Step, epoch: Epoch) -> None:
        stage = self.program.stages[step.number]
        with self._random_numbers(step):
            results = stage.run(self._inputs(stage, step.interval, epoch), self._rows)
        for name, value in results.items():
            self.resident[Block("value", name, step.interval)] = _alone(value)

    def _random_numbers(self, step: Step) -> Any:
        """The same random numbers whenever a stage is run on an interval."""
        return seeded(self.seed + step.number * len(self.bounds) + step.interval, self.device)

    def _gather(self, step: Step, epoch: Epoch) -> None:
        gather = self.program.gathers[step.number]
        assert gather.edges.function is not None
        (at,) = step.writes
        state = self._state(at, gather.edges.function, gather, step.other)
        self._accumulate(state, gather, step, self._edge_inputs(gather, step, epoch))

    def _state(self, at: Block, function: EdgeFunction, gather: Gather, interval: int) -> GatherState:
        if self.resident.get(at) is None:
            self.resident[at] = GatherState(
                function,
                num_rows=sizes(self.bounds)[interval],
                num_edges=self.chunks[gather.hop].num_edges,
                device=self.device,
            )
        state: GatherState = self.resident[at]
        return state

    def _accumulate(
        self, state: GatherState, gather: Gather, step: Step, arrays: Mapping[str, Tensor]
    ) -> tuple[Tensor, ...]:
        read = {given.name: arrays[given.name] for given in state.function.inputs}
        return state.accumulate(
            partial(run_pass, dialect_for(self.device.type, self.dialect)),
            self.resident[step.reads[0]],
            read,
            seed=(self.seed + step.number) % NUM_SEEDS,
            edge_offset=self.chunks[gather.hop].first_edge[step.interval, step.other],
        )

    def _edge_inputs(self, gather: Gather, step: Step, epoch: Epoch) -> dict[str, Tensor]:
        """The arrays that the chunk's edges read, by the names of the edges' own stage."""
        arrays = {}
        work = gather.edges
        topology: Topology = self.resident[step.reads[0]]
        for name, side, value in zip(work.stage.inputs, work.sides, gather.inputs, strict=True):
            if side == "param":
                arrays[name] = epoch.shared[value].detach()
            elif side == "edge":
                arrays[name] = topology.edge_data[value]
            else:
                block = Block("value", value, step.interval if side == "src" else step.other)
                if block in step.reads:
                    arrays[name] = self.resident[block]
        return arrays

    def _finish(self, step: Step, epoch: Epoch) -> None:
        gather = self.program.gathers[step.number]
        assert gather.edges.function is not None
        at = Block("state", gather.result, step.interval)
        result, *rest = self._state(at, gather.edges.function, gather, step.interval).finish()
        self.resident.pop(at)
        if gather.edges.accumulator == "mean":
            result.div_(self._degrees(gather, step.interval, result))
        self.resident[Block("value", gather.result, step.interval)] = result.to(gather.edges.dtype)
        if rest:
            name = LSE if gather.edges.accumulator == "softmax" else ARGUMENT
            self.resident[Block("extra", gather.result, step.interval)] = {name: rest[0]}

    def _degrees(self, gather: Gather, interval: int, like: Tensor) -> Tensor:
        degrees = self.chunks[gather.hop].in_degrees[self._interval(interval)]
        return degrees.clamp(min=1).to(like).reshape(-1, *(1,) * (like.ndim - 1))

    def _emit(self, step: Step, epoch: Epoch) -> None:
        rows = self._value(self.program.output, step.interval)
        if epoch.out is None:
            epoch.out = rows.new_empty(self.bounds[-1], *rows.shape[1:])
        epoch.out[self._interval(step.interval)] = rows

    def _transform_grad(self, step: Step, epoch: Epoch) -> None:
        stage = self.program.stages[step.number]
        found = {block.name for block in step.writes}
        inputs = {}
        for name, value in self._inputs(stage, step.interval, epoch).items():
            wanted = value.requires_grad if name in epoch.shared else name in found
            inputs[name] = value.detach().requires_grad_(wanted)
        with torch.enable_grad(), self._random_numbers(step):
            outputs = stage.run(inputs, self._rows)
        upstream = {
            block.name: self.resident[block]
            for block in step.reads
            if block.kind == "grad" and block.name in outputs and outputs[block.name].requires_grad
        }
        leaves = {name: value for name, value in inputs.items() if value.requires_grad}
        grads: Sequence[Tensor | None] = [None] * len(leaves)
        if upstream and leaves:
            grads = torch.autograd.grad(
                [outputs[name] for name in upstream],
                list(leaves.values()),
                list(upstream.values()),
                allow_unused=True,
            )
        for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
            if name in epoch.shared:
                _add(epoch.of_shared, name, grad)
            else:
                self._add_gradient(name, step.interval, torch.zeros_like(leaf) if grad is None else grad)

    def _add_gradient(self, name: str, interval: int, grad: Tensor) -> None:
        _add(self.resident, Block("grad", name, interval), _alone(grad.to(self.program.forms[name].dtype)))

    def _arrive(self, step: Step, epoch: Epoch) -> None:
        """What the backward's passes read of a destination interval, besides what the forward read."""
        gather = self.program.gathers[step.number]
        grad: Tensor = self.resident[Block("grad", gather.result, step.interval)]
        if gather.edges.accumulator == "mean":
            grad = grad / self._degrees(gather, step.interval, grad)
        given = {GRAD: grad}
        if gather.edges.accumulator == "softmax":
            result = self._value(gather.result, step.interval)
            heads = gather.edges.function.value(gather.edges.function.outputs[0].values[0]).shape  # type: ignore[union-attr]
            agreement = grad * result
            given[DELTA] = (
                agreement.flatten(1 + len(heads)).sum(-1) if agreement.ndim > 1 + len(heads) else agreement
            )
        self.resident[Block("incoming", gather.result, step.interval)] = given

    def _gather_grad(self, step: Step, epoch: Epoch) -> None:
        gather = self.program.gathers[step.number]
        assert gather.edges.backward is not None
        work = gather.edges.backward.passes(self.schedule.wanted(gather))[step.part]
        arrays = (
            self._edge_inputs(gather, step, epoch) | self.resident[Block("incoming", gather.result, step.other)]
        )
        handed = Block("handed", gather.result, step.interval, step.other)
        for block in step.reads:
            if block.kind in ("extra", "handed"):
                arrays |= self.resident[block]
        row = step.other if work.function.at == "dst" else step.interval
        at = Block("state", gather.result, row, number=step.part + 1)
        edges = self._accumulate(self._state(at, work.function, gather, row), gather, step, arrays)
        outputs = zip(work.results, work.function.outputs, strict=True)
        names = [name for name, output in outputs if output.reduce == "edge"]
        if names:
            self.resident[handed] = dict(zip(names, edges, strict=True))

    def _finish_grad(self, step: Step, epoch: Epoch) -> None:
        gather = self.program.gathers[step.number]
        assert gather.edges.backward is not None
        work = gather.edges.backward.passes(self.schedule.wanted(gather))[step.part]
        at = Block("state", gather.result, step.interval, number=step.part + 1)
        results = self._state(at, work.function, gather, step.interval).finish()
        self.resident.pop(at)
        values = dict(zip(gather.edges.stage.inputs, gather.inputs, strict=True))
        outputs = zip(work.results, work.function.outputs, strict=True)
        names = [name for name, output in outputs if output.reduce != "edge"]
        for name, result in zip(names, results, strict=True):
            value = values[name]
            if value in epoch.shared:
                _add(epoch.of_shared, value, result.to(epoch.shared[value].dtype))
            else:
                self._add_gradient(value, step.interval, result)

    def _emit_grad(self, step: Step, epoch: Epoch) -> None:
        rows = self.resident[Block("grad", "x", step.interval)]
        if epoch.of_x is None:
            epoch.of_x = torch.zeros_like(epoch.x)
        epoch.of_x[self._interval(step.interval)] = rows


def _add(known: dict[Any, Any], key: Any, grad: Tensor | None) -> None:
    if grad is not None:
        known[key] = known[key] + grad if known.get(key) is not None else grad


def _alone(value: Tensor) -> Tensor:
    """The value, on memory of its own where it is a part of much more."""
    return value.clone() if value.untyped_storage().nbytes() > _MOST_SPARE * value.nbytes + _PAGE_BYTES else value


def _payload(value: Any) -> dict[str, Tensor]:
    return {"": value} if isinstance(value, Tensor) else value
