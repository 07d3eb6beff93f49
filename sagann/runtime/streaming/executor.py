"""Executor: runs a plan for one epoch of a captured model.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2: chunks are copied while others are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.model_program import Gather
from sagann.errors import InputError, LayerError
from sagann.kernels.accumulators import Counts
from sagann.kernels.edge import dialect_for
from sagann.kernels.edge.pass_edges import Edges
from sagann.kernels.edge.state import GatherState
from sagann.kernels.memory import POOL, empty
from sagann.kernels.row_dropout import rows_of
from sagann.kernels.seeds import NUM_SEEDS, seeded
from sagann.plan.epoch import Planned
from sagann.plan.selection import as_read
from sagann.plan.steps import DEVICE, Beside, Block, BlockKind, Move, Step
from sagann.runtime.backend import Backend
from sagann.runtime.blocks.chunks import Chunks
from sagann.runtime.blocks.host import Host
from sagann.runtime.blocks.residents import Exchange, tensors_of
from sagann.runtime.blocks.sources import Sources, Stayed
from sagann.runtime.gather import ChunkedGather, compute_rows, divisors
from sagann.runtime.moments import Groups, Moments
from sagann.runtime.recorder import Recorder
from sagann.runtime.streaming.epoch import Epoch, Replica, Sums, loss_of_rows, stage_on, summed
from sagann.runtime.streaming.tape import Tape
from sagann.saga.batch_norms import too_few_rows

# The pool rounds sizes up by an eighth at most.
_MOST_SPARE = 1.125
_PAGE_BYTES = 4096
# More seeds than an epoch has stages on intervals.
_SEEDS_OF_WORKER = 1 << 20


class Executor:
    """Runs the forward and the backward of one epoch. One thread queues the steps and copies of all devices.

    The host keeps the blocks of this epoch that are not on the device, ``constants`` those that are the same in every epoch.
    """

    def __init__(
        self,
        planned: Planned,
        *,
        chunks: Mapping[int, Chunks],
        host: Host,
        constants: Host,
        dialect: str,
        epoch: Epoch,
        backend: Backend,
        beside: Beside,
        timeline: Recorder | None,
        exchange: Exchange,
        stayed: Stayed,
    ) -> None:
        self.program, schedule, self.plan = planned
        self.part, self.exchange = schedule.part, exchange
        self._first_seed = self.part.rank * _SEEDS_OF_WORKER
        self.gradients, self._sizes = schedule.gradients, schedule.sizes
        self.chunks = chunks
        self.epoch = epoch
        first, *others = backend.devices
        replicas = [Replica(device=first, stages=self.program.stages)]
        replicas += [
            Replica(device=at, stages=[stage_on(each, at) for each in self.program.stages]) for at in others
        ]
        epoch.replicas = dict(zip(backend.names, replicas, strict=True))
        epoch.sums = [Sums() for _ in self.part.devices]
        # Of the step that runs: its device, what that has besides blocks, and the sums that the step adds to.
        self._owner, self._here, self._sums = DEVICE, epoch.first, epoch.sums[0]
        self.device = backend.device
        self.dialect = dialect_for(self.device.type, dialect)
        self._rows = partial(compute_rows, dialect=self.dialect)
        sources = Sources(
            planned, chunks=chunks, host=host, constants=constants, epoch=epoch, beside=beside, stayed=stayed
        )
        self._constants = constants
        self.resident = backend.residents(self.plan, sources, schedule.sizes.of, timeline, beside)
        self._exchanges = self.exchange.steps(planned, host, self.resident)
        self._operations = enumerate(self.plan.operations)
        self._tapes: dict[Block, Tape] = {}
        self._is_done = False

    def keep_constants(self) -> None:
        """Run a plan of the constants."""
        self._share()
        self._run_until("")
        self.close()

    def forward(self) -> Tensor:
        """Run the plan up to the result, or the loss."""
        self._share()
        self._run_until("return")
        if self.epoch.loss_of is None:
            # Autograd makes the result refer to the epoch.
            result, self.epoch.out = self.epoch.out, None
            assert result is not None
            return result
        parts = [{} if each.loss is None else {"loss": each.loss} for each in self.epoch.sums]
        for each in self.epoch.sums:
            each.loss = None
        return self._added(parts)["loss"].to(self.epoch.loss_dtype)

    def _added(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The sums, on the first device, of what each of the epoch's sums has; of tensors of the same names, in the order of the devices."""
        return summed(self.resident.bring(zip(self.part.devices, parts, strict=True), DEVICE))

    def _spread(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[Replica, Mapping[str, Tensor]]]:
        """What each device has, with tensors of the first device in its memory."""
        for name, each in self.epoch.replicas.items():
            (here,) = self.resident.bring([(DEVICE, tensors)], name)
            yield each, here

    def backward(self) -> None:
        """Run the rest of the plan, once: its blocks are not kept."""
        if self._is_done:
            raise InputError(
                "a backward of a streamed model ran twice: retain_graph = True, or gradients of several losses "
                "(in StreamedModel)",
                hint="Add the losses up before the backward, or call the model again.",
            )
        self._is_done = True
        self._run_until("")
        self.close()

    def close(self) -> None:
        """Wait for the copies under way, end exchanges that nobody has waited for, and forget all blocks."""
        try:
            self._exchanges.close()
        finally:
            self.resident.close()

    def _share(self) -> None:
        """Give each device the parameters, and what depends on them alone."""
        names = [name for name, _ in self.program.parameters]
        named = dict(zip(names, self.epoch.parameters, strict=True))
        with torch.enable_grad(), self._drawing(-1, self.device):
            shared = named | self.program.param.run(named, self._rows)
        if len(self.epoch.replicas) > 1 and any(each.kind == "output" for each in self.plan.operations):
            form = self.program.forms[self.program.output]
            self.epoch.result((self.part.num_vertices, *form.shape), form.dtype)
        seeds = {f"seed {at}": seed for at, seed in enumerate(self.epoch.seeds) if isinstance(seed, Tensor)}
        for each, here in self._spread(shared | seeds):
            is_first = each is self.epoch.first
            each.shared = shared if is_first else _leaves_like(shared, here)
            each.seeds = [here.get(f"seed {at}", seed) for at, seed in enumerate(self.epoch.seeds)]

    def _drawing(self, number: int, device: torch.device) -> AbstractContextManager[None]:
        """Inside the ``with`` block, operators draw the same random numbers each time, if any draws some."""
        return seeded(self.epoch.seed + number, device) if self.program.draws_more else nullcontext()

    def _run_until(self, kind: str) -> None:
        try:
            with POOL.limited(self.resident.pool_bytes):
                self.resident.stay()
                for number, operation in self._operations:
                    self.resident.turn(number, operation)
                    if isinstance(operation, Move):
                        self.resident.move(number, operation)
                        continue
                    if operation.kind == kind:
                        return
                    self.resident.begin(number, operation)
                    with self.resident.running(operation):
                        self._run(operation)
                self.resident.turn_back()
        except BaseException:
            # Also after Ctrl-C: no thread may go on copying.
            self.close()
            raise

    def _run(self, step: Step) -> None:
        """Run a step by the method of its kind, with what its device has."""
        self._owner, self._here = step.owner, self.epoch.replicas[step.owner]
        self._sums = self.epoch.sums[self.part.place_of(step.interval)]
        run = getattr(self._exchanges, step.kind, None) or getattr(self, f"_{step.kind}")
        run(step)

    def _block(
        self, kind: BlockKind, name: str, interval: int, dst_interval: int = -1, *, backward_pass: int = 0
    ) -> Block:
        """A block in the memory of the device that runs the step."""
        return Block(kind, name, interval, dst_interval, backward_pass=backward_pass, owner=self._owner)

    def _rows_of(self, kind: BlockKind, name: str, interval: int) -> Any:
        """An interval's rows of a kind and name: a tensor, or several by name."""
        at = self.part.holding(kind, name, interval)
        content = self.resident[self._block(kind, name, at)]
        if at == interval:
            return content
        rows = self.plan.vertices(interval)
        return _mapped(content, lambda tensor: tensor[rows])

    def _give(self, kind: BlockKind, name: str, interval: int, content: Any) -> None:
        """Make an interval's rows the content of their block, or a part of it where it is undivided."""
        block = self._block(kind, name, self.part.holding(kind, name, interval))
        if block.interval == interval:
            self.resident[block] = _mapped(content, _alone)
        else:
            self._put(block, interval, content)

    def _put(self, block: Block, interval: int, content: Any) -> None:
        """Make an interval's rows a part of an undivided block."""
        rows = self.plan.vertices(interval)
        if self.resident.get(block) is None:
            num_rows = self.part.num_vertices
            self.resident[block] = _mapped(
                content, lambda tensor: empty((num_rows, *tensor.shape[1:]), tensor.dtype, tensor.device)
            )
        whole = tensors_of(self.resident[block])
        for each, tensor in tensors_of(content).items():
            whole[each][rows] = tensor

    def _value(self, name: str, interval: int) -> Tensor:
        value: Tensor = self._rows_of("value", name, interval)
        return value

    def _transform(self, step: Step) -> None:
        saved = [block for block in step.writes if block.kind == "stage_saved"]
        if saved:
            tape, results = self._taped(step)
            tape.leave_out({name: results[name] for name in self._sizes.saved_results(step.number)})
            self.resident[saved[0]] = tape.made
            tape.forget()
            self._tapes[saved[0]] = tape
        else:
            with torch.no_grad():
                results = self._run_stage(step, self._inputs(step))
        for name, value in results.items():
            # Contiguous, as after a store and a load.
            self._give("value", name, step.interval, value.detach().contiguous())

    def _inputs(self, step: Step) -> dict[str, Tensor]:
        shared = self._here.shared
        return {
            name: shared[name] if name in shared else self._value(name, step.interval)
            for name in self.program.stages[step.number].inputs
        }

    def _run_stage(self, step: Step, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run a stage on an interval, with the same random numbers each time."""
        number = step.number * self.plan.num_intervals + step.interval + self._first_seed
        others = self._drawing(number, self._here.device)
        first, own = self.exchange.first_vertex, self.plan.vertices(step.interval)
        vertices = slice(first + own.start, first + own.stop)
        with others, rows_of(vertices, self._here.seeds, first_value=self.exchange.first_value):
            return self._here.stages[step.number].run(inputs, self._rows)

    def _taped(self, step: Step) -> tuple[Tape, dict[str, Tensor]]:
        """Run a stage; returns its results, and the tape for their gradient."""
        shared, given = self._here.shared, self._inputs(step)
        tape = Tape(self._of_vertices(given), shared.values())
        with tape.recording():
            inputs = {}
            for name, value in given.items():
                if name in shared:
                    inputs[name] = value.detach().requires_grad_(value.requires_grad)
                else:
                    inputs[name] = tape.enter(value) if self.epoch.trains and self.gradients.has(name) else value
            results = self._run_stage(step, inputs)
        tape.leave(inputs, results)
        return tape, results

    def _of_vertices(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value for name, value in inputs.items() if name not in self._here.shared}

    def _transform_loss(self, step: Step) -> None:
        """Run the last stage and the loss on an interval, and their gradients where any are wanted."""
        tape, results = self._taped(step)
        name = self.program.output
        assert self.epoch.loss_of is not None
        self._require_gradient(tape)
        given = {
            value.untyped_storage().data_ptr() for value in self._inputs(step).values() if isinstance(value, Tensor)
        }
        rows = results[name].detach()
        if rows.untyped_storage().data_ptr() in given:
            # The caller may modify the rows, so they must not be a view of a block.
            rows = rows.clone()
        rows.requires_grad_(tape.leads_from(name))
        loss = loss_of_rows(self.epoch.loss_of, rows, self.plan.vertices(step.interval))
        self.epoch.loss_dtype = loss.dtype
        self._sums.add_loss(loss)
        upstream = {}
        if loss.requires_grad:
            (upstream[name],) = torch.autograd.grad(loss, [rows])
        self._give_back(step, tape, tape.made, upstream, {})

    def _transform_grad(self, step: Step) -> None:
        saved = [block for block in step.reads if block.kind == "stage_saved"]
        tape = self._tapes.pop(saved[0]) if saved else self._taped(step)[0]
        outputs = self.program.stages[step.number].outputs
        if self.program.output in outputs:
            self._require_gradient(tape)
        upstream = {
            block.name: self.resident[block]
            for block in step.reads
            if block.kind == "grad" and block.name in outputs
        }
        left_out = {name: self._value(name, step.interval) for name in tape.left_out}
        self._give_back(step, tape, self.resident[saved[0]] if saved else tape.made, upstream, left_out)

    def _require_gradient(self, tape: Tape) -> None:
        if self.epoch.trains and not tape.leads_from(self.program.output):
            raise LayerError(
                "the model's output cannot be differentiated: no gradient leads from it to what is trained (in "
                "StreamedModel)",
                hint="Leave out detach(), torch.no_grad() and whatever else cuts the gradient between parameters and output.",
            )

    def _give_back(
        self,
        step: Step,
        tape: Tape,
        made: Mapping[str, Tensor],
        upstream: Mapping[str, Tensor],
        left_out: Mapping[str, Tensor],
    ) -> None:
        given = self._of_vertices(self._inputs(step))
        for name, grad in tape.gradients({**given, **left_out}, made, upstream).items():
            if name in self._here.shared:
                self._sums.add_shared(name, grad)
            else:
                self._add_gradient(name, step.interval, torch.zeros_like(given[name]) if grad is None else grad)

    def _add_gradient(self, name: str, interval: int, grad: Tensor) -> None:
        at = self._block("grad", name, interval)
        grad = _alone(grad.to(self.program.forms[name].dtype))
        known: Tensor | None = self.resident.get(at)
        self.resident[at] = (
            grad if known is None else torch.add(known, grad, out=empty(grad.shape, grad.dtype, grad.device))
        )

    def _output(self, step: Step) -> None:
        rows = self._value(self.program.output, step.interval)
        result = self.epoch.result((self.part.num_vertices, *rows.shape[1:]), rows.dtype)
        self.resident.give(result[self.plan.vertices(step.interval)], rows, step.owner)

    def _gather(self, step: Step) -> None:
        """Add a chunk to the state of a gather, or of a pass of its backward."""
        gather, chunked = self._gather_of(step)
        _, state = self._state(step, gather, chunked)
        # The edges of each worker are numbered from 0.
        first_edge = self.chunks[gather.hop].first_edge[step.interval, step.dst_interval]
        arrays = self._edge_inputs(gather, step)
        of_edges = chunked.add(state, self.resident[step.reads[0]], arrays, first_edge)
        if of_edges:
            handed = self._block("edge_grad", gather.result, step.interval, step.dst_interval)
            names = self.gradients.passes(gather)[step.backward_pass - 1].names(of_edges=True)
            self.resident[handed] = dict(zip(names, of_edges, strict=True))

    _gather_grad = _gather

    def _gather_of(self, step: Step) -> tuple[Gather, ChunkedGather]:
        """The gather of a step, and its meaning."""
        gather = self.program.gather(step.number)
        return gather, ChunkedGather(
            gathering=gather.edges.gathering,
            function=self.gradients.function(gather),
            dialect=self.dialect,
            num_edges=self.chunks[gather.hop].num_edges,
            device=self._here.device,
            seed=(self._here.seeds[gather.seed] + self._first_seed) % NUM_SEEDS if gather.edges.random else 0,
        )

    def _state(self, step: Step, gather: Gather, chunked: ChunkedGather) -> tuple[Block, GatherState]:
        """The state that a step changes or finishes."""
        function = self.gradients.function(gather, step.backward_pass)
        of_dst = function.at == "dst" and step.dst_interval >= 0
        interval = step.dst_interval if of_dst else step.interval
        at = self._block("state", gather.result, interval, backward_pass=step.backward_pass)
        held = self.resident.get(at)
        if not isinstance(held, GatherState):
            rows = self.plan.vertices(interval)
            # A state that was loaded continues from its tensors.
            held = self.resident[at] = chunked.begin(function, rows.stop - rows.start, held)
        return at, held

    def _edge_inputs(self, gather: Gather, step: Step) -> dict[str, Tensor]:
        """The arrays that a chunk's edges read, by name."""
        arrays = {}
        work = gather.edges
        edges: Edges = self.resident[step.reads[0]]
        chunk = step.reads[0].outside
        for name, side, value in zip(work.stage.inputs, work.sides, gather.inputs, strict=True):
            if side == "param":
                arrays[name] = self._here.shared[value].detach()
            elif side == "edge":
                # A chunk has no data that passes of its form do not read.
                if value in edges.edge_data:
                    arrays[name] = edges.edge_data[value]
            else:
                interval = step.interval if side == "src" else step.dst_interval
                at = self.part.holding("value", value, interval)
                block = as_read(self._block("value", value, at), chunk, side)
                if block in step.reads:
                    rows = self.resident[block]
                    arrays[name] = rows if at == interval else rows[self.plan.vertices(interval)]
        for block in step.reads:
            if block.kind == "edge_grad" or (block.needed_by is not None and block.kind != "value"):
                arrays |= self.resident[block]
            elif block.kind in ("grad_inputs", "gather_saved"):
                arrays |= self._rows_of(block.kind, block.name, step.dst_interval)
        return arrays

    def _finish(self, step: Step) -> None:
        gather, chunked = self._gather_of(step)
        at, state = self._state(step, gather, chunked)
        self.resident.discard(at)
        result, kept = chunked.finish(state, self._counts(gather, step))
        # The tensors of a loaded state share one piece of memory.
        self._give("value", gather.result, step.interval, result.to(gather.edges.dtype))
        names = gather.edges.gathering.kept_names(chunked.function)
        if names:
            # The result is a block of its own.
            self._give("gather_saved", gather.result, step.interval, dict(zip(names, kept, strict=False)))

    def _assemble(self, step: Step) -> None:
        self._put(step.writes[0], step.interval, self.resident[step.reads[0]])

    def _share_grads(self, step: Step) -> None:
        """Add the gradients of what is shared of all devices."""
        self.epoch.sums = [Sums(of_shared=self._added([each.of_shared for each in self.epoch.sums]))]

    def _store_constant(self, step: Step) -> None:
        (block,) = step.reads
        self._constants.put(block.outside, {"": self.resident[block].cpu()})

    def _counts(self, gather: Gather, step: Step) -> Counts:
        return lambda like: divisors(self.chunks[gather.hop].in_degrees(self.plan.vertices(step.interval)), like)

    def _prepare_grad(self, step: Step) -> None:
        """Make the arrays of a destination interval that only the backward's passes read."""
        gather, chunked = self._gather_of(step)
        grad = self.resident[self._block("grad", gather.result, step.interval)]
        saved = []
        if any(block.kind == "gather_saved" for block in step.reads):
            saved = list(self._rows_of("gather_saved", gather.result, step.interval).values())
        if chunked.gathering.reads_result:
            saved.append(self._value(gather.result, step.interval))
        inputs = chunked.arrive(grad, saved, self._counts(gather, step))
        # The tensors of a loaded block share one piece of memory, which ends with that block.
        self._give("grad_inputs", gather.result, step.interval, inputs)

    def _finish_grad(self, step: Step) -> None:
        gather, chunked = self._gather_of(step)
        work = self.gradients.passes(gather)[step.backward_pass - 1]
        at, state = self._state(step, gather, chunked)
        values = dict(zip(gather.edges.stage.inputs, gather.inputs, strict=True))
        for name, result in zip(work.names(of_edges=False), state.finish(), strict=True):
            value = values[name]
            if value in self._here.shared:
                self._sums.add_shared(value, _alone(result))
            else:
                self._add_gradient(value, step.interval, result)
        self.resident.discard(at)

    def _means(self, step: Step) -> None:
        """Add the rows of an interval, or the moments of edges that it has gathered, to the means of all rows."""
        link, moments = self.program.mean(step.number), self._sums.moments
        for name in link.values:
            rows = self._value(name, step.interval)
            with torch.no_grad():
                if link.edge_shape is None:
                    moments.setdefault(step.number, Moments(rows, link.eps)).add(rows)
                else:
                    groups = Groups(rows=rows, shape=link.edge_shape)
                    moments.setdefault(step.number, Moments(groups.sums, link.eps)).add_groups(groups)

    def _share_means(self, step: Step) -> None:
        """Let the stages and gathers that follow read the means, once all intervals are added."""
        link, known = self.program.mean(step.number), [each.moments.get(step.number) for each in self.epoch.sums]
        parts = zip(self.part.devices, [{} if each is None else each.tensors() for each in known], strict=True)
        here = zip(known, self.resident.bring(parts, DEVICE), strict=True)
        moments, *others = [each.of(tensors) for each, tensors in here if each is not None]
        with torch.no_grad():
            for other in others:
                moments.add_moments(other)
            if self.part.exchanges:
                moments.merge(partial(self.exchange.add_up, doing="adding means of a BatchNorm"))
            if moments.count == 1:
                raise too_few_rows(link.norm)
            means = moments.shared()
        wanted = self.epoch.trains and any(map(self.gradients.has, link.values))
        for each, there in self._spread(moments.tensors() | {"means": means.detach()}):
            each.moments[step.number] = moments.of(there)
            named = zip((link.result, link.scales), there["means"], strict=True)
            each.shared |= {name: mean.detach().requires_grad_(wanted) for name, mean in named}

    def _share_means_grad(self, step: Step) -> None:
        """Complete the gradient of the means, which is 0 where no gradient has come to them, as after detach()."""
        link, shared = self.program.mean(step.number), self.epoch.first.shared
        names = link.result, link.scales
        of_shared = [each.of_shared for each in self.epoch.sums]
        totals = self._added([{name: each[name] for name in names if name in each} for each in of_shared])
        grad = torch.stack([totals[name] if name in totals else torch.zeros_like(shared[name]) for name in names])
        grad = self.exchange.add_up(grad.flatten(), "adding gradients of a BatchNorm's means").view_as(grad)
        for each, here in self._spread({"": grad}):
            each.of_moments[step.number] = here[""]

    def _means_grad(self, step: Step) -> None:
        link = self.program.mean(step.number)
        moments, of_shared = self._here.moments[step.number], self._here.of_moments[step.number]
        for name in link.values:
            rows = self._value(name, step.interval)
            if link.edge_shape is None:
                grad = moments.gradient(rows, of_shared)
            else:
                grad = moments.gradient_of_groups(Groups(rows=rows, shape=link.edge_shape), of_shared)
            self._add_gradient(name, step.interval, grad)

    def _output_grad(self, step: Step) -> None:
        rows = self.resident[self._block("grad", "x", step.interval)]
        if self.epoch.of_x is None:
            x = self.epoch.x
            self.epoch.of_x = torch.zeros((x.num_rows, *x.row_shape), dtype=x.dtype)
        self.epoch.of_x[self.plan.vertices(step.interval)] = rows


def _leaves_like(shared: Mapping[str, Tensor], copies: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leaves of the copies, which want a gradient as the tensors do."""
    return {name: copies[name].detach().requires_grad_(each.requires_grad) for name, each in shared.items()}


def _mapped(content: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return (
        change(content) if isinstance(content, Tensor) else {name: change(each) for name, each in content.items()}
    )


def _alone(value: Tensor) -> Tensor:
    """The value; a copy where the value is a small part of its storage."""
    return value.clone() if value.untyped_storage().nbytes() > _MOST_SPARE * value.nbytes + _PAGE_BYTES else value
