"""Schedule: the steps of an epoch of a captured model over a chunk grid, before anything is placed.

By default the forward goes by columns: all chunks into a destination interval, then the next stage on it at once. The
backward goes by rows: all chunks out of a source interval, then the stage before on it at once. In this way a state, and
what follows from it, is made while it lies in memory. :mod:`sagann.plan.orders` has the other orders.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.1; Ma et al., NGra, 2018, Sec. 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from sagann.compiler.model_program import Gather, ModelProgram
from sagann.compiler.vjp import BackwardPass
from sagann.kernels.edge.function import EdgeFunction
from sagann.plan.gradients import Gradients
from sagann.plan.intervals import sizes as interval_sizes
from sagann.plan.orders import POLICIES, Order, Pass
from sagann.plan.selection import as_read
from sagann.plan.sizes import CSC, CSR, NUMBERED, PICKED, BlockSizes, HopSize
from sagann.plan.steps import Block, Step
from sagann.plan.visits import PassKey, Sweeps, Visits


class Schedule:
    """Steps of an epoch.

    Args:
        program: the model.
        hops: sizes of what its gathers go over, by numbers of hops.
        bounds: of the intervals.
        gradients: what the backward computes; by default of all parameters.
        folded: whether the loss is a function of an interval's rows, summed over the intervals. Its gradient is computed
            where the rows are made, and the result never exists whole.
        saves: numbers of the stages that keep for their gradient what they make, instead of running once more.
        order: in which passes go through the chunk grid.
        selects: whether chunks of which the hops say so read picked rows.
        visits: in which order passes go over the intervals.
        sizes: of a schedule of the same program, hops, bounds and gradients, so that no block is measured twice.
    """

    def __init__(
        self,
        program: ModelProgram,
        hops: Mapping[int, HopSize],
        bounds: Sequence[int],
        *,
        gradients: Gradients | None = None,
        folded: bool = False,
        saves: frozenset[int] = frozenset(),
        order: Order = "column",
        selects: bool = False,
        visits: Visits | None = None,
        sizes: BlockSizes | None = None,
    ) -> None:
        self.program = program
        self.hops = hops
        self.gradients = gradients or Gradients(program)
        self.folded = folded
        self.saves = saves
        self.selects = selects
        self.order = order
        self._policy = POLICIES[order]
        self.visits = visits or Visits()
        "In which order passes go over the intervals."
        self.intervals = range(len(bounds) - 1)
        "Numbers of the intervals."
        self.sizes = sizes or BlockSizes(program, hops, interval_sizes(tuple(bounds)), self.gradients)
        self._last = len(program.gathers)
        self._by_source = self._forms_by_source()

    def initial(self) -> list[Block]:
        """The blocks that exist before an epoch: features, edges, and what is the same in every epoch."""
        names = ["x", *(gather.result for gather in self.program.gathers if gather.constant)]
        blocks = [Block("value", name, interval) for name in names for interval in self.intervals]
        for number in sorted({gather.hop for gather in self.program.gathers}):
            for src, dst in self.hops[number].edges:
                blocks += [self._chunk(form, src, dst, number) for form in (CSC, self._by_source[number])]
        return blocks

    def _forms_by_source(self) -> dict[int, str]:
        """For each hop, the form of the chunks that its passes over sources read: one, so that none is loaded twice."""
        forms = dict.fromkeys(self.hops, CSR)
        for gather in self.program.gathers:
            functions = [step.function for step in self.gradients.passes(gather)]
            if any(function.at == "src" and function.asks_for_ids for function in functions):
                forms[gather.hop] = NUMBERED
        return forms

    @property
    def constant_bytes(self) -> int:
        """Of what is the same in every epoch."""
        names = {gather.result for gather in self.program.gathers if gather.constant}
        return sum(self.sizes.content_of(block) for block in self.initial() if block.name in names)

    @property
    def edge_bytes(self) -> int:
        """Of the edges, in both orders."""
        return sum(self.sizes.content_of(block) for block in self.initial() if block.kind == "edges")

    def upstream(self) -> list[Block]:
        """The gradient of the result, where the caller brings it, before the backward."""
        return [] if self.folded else [Block("grad", self.program.output, interval) for interval in self.intervals]

    def epoch(self) -> Iterator[Step]:
        """Forward, return to the caller, and backward."""
        sweeps = self._sweeps()
        yield from self._forward(sweeps, trains=True)
        yield Step(kind="return", number=0, interval=0, reads=(), writes=())
        yield from self._backward(sweeps)

    def forward(self) -> Iterator[Step]:
        """The steps of a forward without backward."""
        yield from self._forward(self._sweeps(), trains=False)

    def _sweeps(self) -> Sweeps:
        return self.visits.sweeps(len(self.intervals))

    def constants(self) -> Iterator[Step]:
        """The steps that compute once what is the same in every epoch; by columns, whatever the order of epochs."""
        sweeps = self._sweeps()
        for number, gather in enumerate(self.program.gathers):
            if gather.constant:
                work = self._gather(number, gather, partial(self._store_constant, number, gather))
                yield from POLICIES["column"].walk(sweeps, work)

    def _store_constant(self, number: int, gather: Gather, interval: int) -> Iterator[Step]:
        value = Block("value", gather.result, interval)
        yield Step(kind="store_constant", number=number, interval=interval, reads=(value,), writes=())

    def _forward(self, sweeps: Sweeps, *, trains: bool) -> Iterator[Step]:
        for interval in sweeps.intervals():
            yield from self._vertices(0, interval, trains=trains)
        for number, gather in enumerate(self.program.gathers):
            follow = partial(self._vertices, number + 1, trains=trains)
            if gather.constant:
                for interval in sweeps.intervals():
                    yield from follow(interval)
            else:
                yield from self._policy.walk(sweeps, self._gather(number, gather, follow))

    def _vertices(self, number: int, interval: int, *, trains: bool) -> Iterator[Step]:
        """A stage on an interval, and what becomes of the result."""
        stage = self.program.stages[number]
        if not stage.outputs:
            return
        is_last = number == self._last
        if is_last and self.folded:
            yield self._transform_loss(interval, trains=trains)
            if trains:
                yield from self._prepare_grad(number - 1, interval, self._given_back(number))
            return
        saved = [Block("stage_saved", "", interval, number=number)] if trains and self._keeps(number) else []
        yield Step(
            kind="transform",
            number=number,
            interval=interval,
            reads=tuple(self._values(stage.inputs, interval)),
            writes=(*self._values(stage.outputs, interval), *saved),
            temporary_bytes=self.sizes.running(number, interval),
        )
        if is_last:
            out = Block("value", self.program.output, interval)
            yield Step(kind="output", number=number, interval=interval, reads=(out,), writes=())

    def _backward(self, sweeps: Sweeps) -> Iterator[Step]:
        if self.folded:
            reached = set(self._given_back(self._last))
        else:
            reached = {self.program.output}
            yield from self._stages_backward(sweeps, self._last, reached)
        for number in reversed(range(self._last)):
            gather = self.program.gathers[number]
            passes = self.gradients.passes(gather) if gather.result in reached else ()
            for part, step in enumerate(passes):
                values = self._values_of(gather, step.results)
                known = reached & set(values)
                reached |= set(values)
                is_last = part == len(passes) - 1
                follow = partial(self._vertices_backward, number, reached=reached) if is_last else _nothing
                walk = self._policy.csc_walk if step.function.at == "dst" else self._policy.walk
                yield from walk(sweeps, self._gather_grad(number, gather, part, step, values, known, follow))
            if passes:
                self._reach(number, reached)
            else:
                yield from self._stages_backward(sweeps, number, reached)
        if self.gradients.wanted_x and "x" in reached:
            for interval in sweeps.intervals():
                read = (Block("grad", "x", interval),)
                yield Step(kind="output_grad", number=0, interval=interval, reads=read, writes=())

    def _stages_backward(self, sweeps: Sweeps, number: int, reached: set[str]) -> Iterator[Step]:
        for interval in sweeps.intervals():
            yield from self._vertices_backward(number, interval, reached)
        self._reach(number, reached)

    def _vertices_backward(self, number: int, interval: int, reached: set[str]) -> Iterator[Step]:
        """The gradient of a stage on an interval, and of what was gathered before it."""
        now = set(reached)
        if any(name in reached for name in self.program.stages[number].outputs):
            yield self._transform_grad(number, interval, reached)
            now |= set(self._given_back(number))
        yield from self._prepare_grad(number - 1, interval, now)

    def _transform_loss(self, interval: int, *, trains: bool) -> Step:
        stage = self.program.stages[self._last]
        return Step(
            kind="transform_loss",
            number=self._last,
            interval=interval,
            reads=tuple(self._values(stage.inputs, interval)),
            writes=tuple(Block("grad", name, interval) for name in self._given_back(self._last) if trains),
            temporary_bytes=self.sizes.differentiating(self._last, interval, of_loss=True),
        )

    def _transform_grad(self, number: int, interval: int, reached: set[str]) -> Step:
        stage = self.program.stages[number]
        found = self._given_back(number)
        upstream = [name for name in stage.outputs if name in reached]
        known = [name for name in found if name in reached]
        is_saved = self._keeps(number)
        saved = [Block("stage_saved", "", interval, number=number)] if is_saved else []
        return Step(
            kind="transform_grad",
            number=number,
            interval=interval,
            reads=(
                *saved,
                *self._values(stage.inputs, interval),
                *(Block("grad", name, interval) for name in (*upstream, *known)),
            ),
            writes=tuple(Block("grad", name, interval) for name in found),
            temporary_bytes=self.sizes.differentiating(number, interval, saved=is_saved),
        )

    def _keeps(self, number: int) -> bool:
        """Whether a stage keeps what its gradient reads."""
        return number in self.saves and self.gradients.leads_from(self.program.stages[number])

    def _given_back(self, number: int) -> list[str]:
        """The values of vertices that a stage's backward gives gradients of."""
        stage = self.program.stages[number]
        return [name for name in stage.inputs if name not in self.gradients.shared and self.gradients.has(name)]

    def _reach(self, number: int, reached: set[str]) -> None:
        """Note what has a gradient once a stage's backward has run."""
        if any(name in reached for name in self.program.stages[number].outputs):
            reached |= set(self._given_back(number))

    def _gather(self, number: int, gather: Gather, follow: Callable[[int], Iterator[Step]]) -> Pass:
        """A gather: its chunks, what they give each destination interval, and what follows."""
        function = gather.edges.function
        assert function is not None
        begun: set[int] = set()

        def chunk(dst: int, src: int) -> Iterator[Step]:
            if (src, dst) in self.hops[gather.hop].edges:
                edges = self._chunk(CSC, src, dst, gather.hop)
                state = Block("state", gather.result, dst)
                reads = (edges, *self._edge_values(gather, function, edges))
                yield Step(
                    kind="gather",
                    number=number,
                    interval=src,
                    dst_interval=dst,
                    reads=(*reads, state) if dst in begun else reads,
                    writes=(state,),
                    temporary_bytes=self.sizes.walking(gather, src, dst),
                )
                begun.add(dst)

        def finish(dst: int) -> Iterator[Step]:
            extra = [Block("gather_saved", gather.result, dst)] if gather.edges.gathering.keeps else []
            yield Step(
                kind="finish",
                number=number,
                interval=dst,
                reads=(Block("state", gather.result, dst),) if dst in begun else (),
                writes=(Block("value", gather.result, dst), *extra),
            )

        in_order = gather.edges.gathering.names_edges
        return Pass(key=PassKey("gather", number), in_order=in_order, chunk=chunk, finish=finish, follow=follow)

    def _prepare_grad(self, number: int, interval: int, reached: set[str] | Sequence[str]) -> Iterator[Step]:
        """What a gather's backward reads of a destination interval, made when its gradient is complete."""
        if number < 0:
            return
        gather = self.program.gathers[number]
        if gather.result not in reached or not self.gradients.passes(gather):
            return
        gathering = gather.edges.gathering
        reads = [Block("grad", gather.result, interval)]
        reads += [Block("gather_saved", gather.result, interval)] if gathering.keeps else []
        reads += [Block("value", gather.result, interval)] if gathering.reads_result else []
        yield Step(
            kind="prepare_grad",
            number=number,
            interval=interval,
            reads=tuple(reads),
            writes=(Block("grad_inputs", gather.result, interval),),
            temporary_bytes=self.sizes.arriving(gather, interval),
        )

    def _gather_grad(
        self,
        number: int,
        gather: Gather,
        part: int,
        work: BackwardPass,
        values: Sequence[str],
        known: set[str],
        follow: Callable[[int], Iterator[Step]],
    ) -> Pass:
        """A backward pass: its chunks, the gradients that they give each interval of its rows, and what follows."""
        at_dst = work.function.at == "dst"
        of_edges = any(output.reduce == "edge" for output in work.function.outputs)
        of_rows = any(output.reduce != "edge" for output in work.function.outputs)
        begun: set[int] = set()

        def chunk(own: int, other: int) -> Iterator[Step]:
            src, dst = (other, own) if at_dst else (own, other)
            if (src, dst) not in self.hops[gather.hop].edges:
                return
            state = Block("state", gather.result, own, number=part + 1)
            handed = Block("edge_grad", gather.result, src, dst)
            reads = self._read_by_chunk(gather, work.function, src, dst)
            yield Step(
                kind="gather_grad",
                number=number,
                interval=src,
                dst_interval=dst,
                part=part,
                reads=(*reads, state) if own in begun else reads,
                writes=(*([handed] if of_edges else []), *([state] if of_rows else [])),
                temporary_bytes=self.sizes.walking(gather, src, dst, part + 1),
            )
            if of_rows:
                begun.add(own)

        def finish(own: int) -> Iterator[Step]:
            grads = [Block("grad", value, own) for value in values]
            reads = [Block("grad", value, own) for value in values if value in known]
            if own in begun:
                reads.append(Block("state", gather.result, own, number=part + 1))
            yield Step(
                kind="finish_grad",
                number=number,
                interval=own,
                part=part,
                reads=tuple(reads),
                writes=tuple(grads),
                temporary_bytes=sum(self.sizes.of(block) for block in grads),
            )

        key = PassKey("gather_grad", number, part)
        return Pass(key=key, in_order=False, chunk=chunk, finish=finish, follow=follow)

    def _read_by_chunk(self, gather: Gather, function: EdgeFunction, src: int, dst: int) -> tuple[Block, ...]:
        """The blocks that a backward pass reads for a chunk, but for the state."""
        chunk = self._chunk(CSC if function.at == "dst" else self._by_source[gather.hop], src, dst, gather.hop)
        blocks = [chunk, *self._edge_values(gather, function, chunk)]
        blocks.append(as_read(Block("grad_inputs", gather.result, dst), chunk, "dst"))
        if any(given.name.endswith("_at_edges") for given in function.inputs):
            blocks.append(Block("edge_grad", gather.result, src, dst))
        return tuple(blocks)

    def _values_of(self, gather: Gather, results: Sequence[str]) -> list[str]:
        """The values whose gradients a pass of the backward gives."""
        found = dict(zip(gather.edges.stage.inputs, gather.inputs, strict=True))
        values = [found[name] for name in results if name in found and found[name] not in self.gradients.shared]
        return list(dict.fromkeys(values))

    def _values(self, names: Sequence[str], interval: int) -> list[Block]:
        return [Block("value", name, interval) for name in names if name not in self.gradients.shared]

    def _chunk(self, form: str, src: int, dst: int, hop: int) -> Block:
        """The edges of a chunk, as a pass reads them."""
        if self.selects:
            picked = Block("edges", PICKED[form], src, dst, hop)
            if self.hops[hop].may_pick(picked):
                return picked
        return Block("edges", form, src, dst, hop)

    def _edge_values(self, gather: Gather, function: EdgeFunction, chunk: Block) -> list[Block]:
        """The blocks that a pass over a chunk's edges reads."""
        read = {given.name for given in function.inputs}
        blocks = []
        for name, side, value in zip(gather.edges.stage.inputs, gather.edges.sides, gather.inputs, strict=True):
            if side in ("src", "dst") and name in read:
                interval = chunk.interval if side == "src" else chunk.dst_interval
                blocks.append(as_read(Block("value", value, interval), chunk, side))
        return list(dict.fromkeys(blocks))


def _nothing(interval: int) -> Iterator[Step]:
    """What follows where nothing does."""
    yield from ()
