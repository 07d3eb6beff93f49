"""Schedule: the steps of an epoch of a captured model over a chunk grid, before its blocks are placed in memory.

By default the forward goes by columns: all chunks into a destination interval, then the next stage on that interval. The
backward goes by rows: all chunks out of a source interval, then the previous stage on that interval. So a state is used while
it lies in memory (:mod:`sagann.plan.sweeps`).

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.1; Ma et al., NGra, 2018, Sec. 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import product

from sagann.compiler.model_program import BatchMeans, Gather
from sagann.compiler.vjp import BackwardPass
from sagann.plan.exchanges import Exchanges, travelling
from sagann.plan.sizes import BlockSizes
from sagann.plan.slices import assembling
from sagann.plan.step_blocks import StepBlocks
from sagann.plan.steps import ALL, Block, BlockKind, Exchanged, Step
from sagann.plan.sweeps import COLUMN, Pass, PassKey, Sweeps, Traversal, Walks, by_strips, no_steps


class Schedule:
    """Steps of an epoch.

    Where it is ``folded``, the loss is computed inside the last stage, and the result is never whole. The stages of ``saves``, by number
    and interval, save what their gradients read, instead of running again. With ``selects``, rows are picked for chunks where sizes allow
    it.
    """

    def __init__(
        self,
        sizes: BlockSizes,
        *,
        folded: bool = False,
        saves: frozenset[tuple[int, int]] = frozenset(),
        walks: Walks = COLUMN,
        selects: bool = False,
        traversal: Traversal | None = None,
    ) -> None:
        self.sizes = sizes
        self.program, self.hops, self.part, self.gradients = sizes.program, sizes.hops, sizes.part, sizes.gradients
        self.intervals = self.part.own
        self.folded = folded
        self.saves = saves
        self._walks = walks
        self.traversal = traversal or Traversal()
        self._exchanges, self._constant_exchanges = Exchanges(), Exchanges()
        if self.part.exchanges:
            self._exchanges = Exchanges.of(self.program, self.gradients)
            self._constant_exchanges = Exchanges.of(self.program, self.gradients, constant=True)
        self._last = len(self.program.links)
        # Undivided blocks that have rows of some intervals already.
        self._begun: set[Block] = set()
        self._blocks = StepBlocks(sizes, selects=selects)

    def changed(
        self,
        *,
        saves: frozenset[tuple[int, int]] | None = None,
        selects: bool | None = None,
        traversal: Traversal | None = None,
    ) -> Schedule:
        """The schedule with some settings replaced; None keeps a setting."""
        found = copy(self)
        found.saves = self.saves if saves is None else saves
        found._blocks = self._blocks if selects is None else self._blocks.selecting(selects)
        found.traversal = self.traversal if traversal is None else traversal
        return found

    @property
    def selects(self) -> bool:
        """Whether rows are picked for chunks."""
        return self._blocks.selects

    @property
    def all_saves(self) -> frozenset[tuple[int, int]]:
        """Every stage on every interval."""
        return frozenset(product(range(len(self.program.stages)), self.intervals))

    @property
    def kept(self) -> list[Block]:
        """The blocks that are the same in every epoch: gathered rows, and constant features of the halo that edges read."""
        names = [gather.result for gather in self.program.gathers if gather.constant]
        blocks = [self._blocks.block("value", name, interval) for name in names for interval in self.intervals]
        if self.program.reads_constant_x:
            blocks += [self._blocks.block("value", "x", interval) for interval in self.part.halo]
        return blocks

    def initial(self) -> list[Block]:
        """The blocks that exist before an epoch: features, factors, edges, and what is the same in every epoch."""
        blocks = [*self._given(["x", *self.program.factors]), *self.kept]
        for number in sorted({gather.hop for gather in self.program.gathers}):
            blocks += self._blocks.chunks(number)
        return blocks

    def _given(self, names: Iterable[str]) -> list[Block]:
        """The blocks of values that lie outside at the start."""
        return [self._blocks.block("value", *each) for each in product(names, self.intervals)]

    def upstream(self) -> list[Block]:
        """The gradient of the result, which the caller brings before the backward; none where the loss is folded."""
        return [] if self.folded else [self._blocks.grad(self.program.output, each) for each in self.intervals]

    @property
    def constant_bytes(self) -> int:
        """Bytes of what is the same in every epoch."""
        return sum(map(self.sizes.content_of, (*self.kept, *self._given(self.program.factors))))

    @property
    def edge_bytes(self) -> int:
        """Bytes of the edges, in both orders."""
        return sum(self.sizes.content_of(block) for block in self.initial() if block.kind == "edges")

    def epoch(self) -> Iterable[Step]:
        """The steps of forward, return to the caller, and backward."""
        return self._beside_exchanges(self._epoch())

    def forward(self) -> Iterable[Step]:
        """The steps of a forward without backward."""
        return self._beside_exchanges(self._forward(self._sweeps(), trains=False))

    def constants(self) -> Iterable[Step]:
        """The steps of what is the same in every epoch; gathers go by columns, whatever the order of epochs."""
        return self._beside_exchanges(self._constants())

    def _beside_exchanges(self, steps: Iterator[Step]) -> Iterable[Step]:
        self._begun = set()
        if self.part.slice_lanes:
            return assembling(steps, self.part.own)
        return travelling(steps) if self.part.exchanges else steps

    def _epoch(self) -> Iterator[Step]:
        sweeps = self._sweeps()
        yield from self._forward(sweeps, trains=True)
        yield Step("return", 0, 0)
        yield from self._backward(sweeps)

    def _constants(self) -> Iterator[Step]:
        sweeps = self._sweeps()
        exchanges = self._constant_exchanges
        for number, gather in enumerate(self.program.links):
            if not isinstance(gather, Gather):
                continue
            yield from self._exchange(sweeps, number, exchanges)
            if exchanges.before(number) and self.program.reads_constant_x:
                for interval in self.part.halo:
                    yield from self._store_constant(number, "x", interval)
            if gather.constant:
                work = self._gather(number, gather, partial(self._store_constant, number, gather.result), exchanges)
                yield from by_strips(sweeps, work)

    def _begun_of(self, writes: Sequence[Block]) -> tuple[Block, ...]:
        """Those of the blocks that a step writes in which it leaves the rows of other intervals as they are."""
        begun = tuple(block for block in writes if block in self._begun)
        self._begun.update(block for block in writes if block.interval == ALL)
        return begun

    def _sweeps(self) -> Sweeps:
        return Sweeps(self.traversal, len(self.intervals))

    def _store_constant(self, number: int, name: str, interval: int) -> Iterator[Step]:
        value = self._blocks.block("value", name, interval)
        yield Step("store_constant", number, interval, reads=(value,))

    def _forward(self, sweeps: Sweeps, *, trains: bool) -> Iterator[Step]:
        for interval in sweeps.intervals():
            yield from self._transform(0, interval, trains=trains)
        for number, link in enumerate(self.program.links):
            follow = partial(self._transform, number + 1, trains=trains)
            if isinstance(link, BatchMeans):
                for interval in sweeps.intervals():
                    yield self._means(number, link, interval)
                yield Step("share_means", number, 0)
            if isinstance(link, BatchMeans) or link.constant:
                for interval in sweeps.intervals():
                    yield from follow(interval)
            else:
                yield from self._exchange(sweeps, number, self._exchanges)
                yield from self._walks.walk(sweeps, self._gather(number, link, follow, self._exchanges))

    def _exchange(self, sweeps: Sweeps, number: int, exchanges: Exchanges) -> Iterator[Step]:
        """Complete the values that a gather is the first to read at sources."""
        for name in exchanges.before(number):
            if name not in exchanges.made:
                for interval in sweeps.intervals():
                    yield from self._collect(name, interval, number)
            sends = tuple(
                block for interval in self.part.own for block in self._blocks.for_peers("sent", name, interval)
            )
            receives = tuple(self._blocks.block("value", name, interval) for interval in self.part.halo)
            yield Step("exchange", number, 0, exchanged=Exchanged(name, sends, receives))

    def _collect_made(self, names: Sequence[str], interval: int, exchanges: Exchanges) -> Iterator[Step]:
        """Copy the rows that other workers need of values that a step has just made."""
        for name in names:
            if name in exchanges.made:
                yield from self._collect(name, interval, exchanges.first[name])

    def _collect(self, name: str, interval: int, number: int) -> Iterator[Step]:
        """Copy the rows that other workers need of a value; ``number`` is that of the first gather that reads the value."""
        if sent := self._blocks.for_peers("sent", name, interval):
            value = self._blocks.block("value", name, interval)
            yield Step("collect", number, interval, reads=(value,), writes=sent)

    def _transform(self, number: int, interval: int, *, trains: bool) -> Iterator[Step]:
        """A stage on an interval. After the last stage: the loss with its gradient, or the output."""
        stage = self.program.stages[number]
        if not stage.outputs:
            return
        reads = self._blocks.values(stage.inputs, interval)
        is_last = number == self._last
        if is_last and self.folded:
            given = self._inputs_with_grad(number) if trains else []
            grads = self._blocks.grads(given, interval)
            taken = self.sizes.transform_grad_bytes(number, interval, of_loss=True)
            yield Step("transform_loss", number, interval, reads=reads, writes=grads, temporary_bytes=taken)
            if trains:
                yield from self._prepare_grad(number - 1, interval, given)
            return
        saved = self._saved(number, interval) if trains else ()
        writes = (*self._blocks.values(stage.outputs, interval), *saved)
        reads += self._begun_of(writes)
        taken = self.sizes.transform_bytes(number, interval) + self.sizes.made_apart(writes, interval)
        yield Step("transform", number, interval, reads=reads, writes=writes, temporary_bytes=taken)
        yield from self._collect_made(stage.outputs, interval, self._exchanges)
        if is_last:
            out = self._blocks.block("value", self.program.output, interval)
            yield Step("output", number, interval, reads=(out,))

    def _backward(self, sweeps: Sweeps) -> Iterator[Step]:
        # Names of the values that have a gradient so far.
        reached = self._given_by(self._last) if self.folded else {self.program.output}
        # Names of the values whose gradients of the halo's rows have not been sent yet.
        pending = set[str]()
        if not self.folded:
            yield from self._transform_grads(sweeps, self._last, reached, pending)
        for number in reversed(range(self._last)):
            gather = self.program.links[number]
            if isinstance(gather, BatchMeans):
                if gather.result in reached:
                    yield Step("share_means_grad", number, 0)
                    for interval in sweeps.intervals():
                        yield self._means_grad(number, gather, interval, reached)
                    reached.update(gather.values)
                yield from self._transform_grads(sweeps, number, reached, pending)
                continue
            passes = self.gradients.passes(gather) if gather.result in reached else ()
            for backward_pass, step in enumerate(passes, 1):
                values = self._values_of(gather, step.results)
                known = reached & set(values)
                reached |= {*values, *self.gradients.of_means(self._read_as(gather, step.results))}
                walk = self._walks.csc_walk if step.function.at == "dst" else self._walks.walk
                grads = partial(self._gather_grad, number, gather, backward_pass, step, values)
                if step.function.at == "src" and self.part.exchanges:
                    # The halo comes first, so that own rows are complete when the steps that follow need them.
                    yield from walk(sweeps, grads(pending & set(values), no_steps, owns=self.part.halo))
                    pending |= set(values)
                follow = no_steps
                if backward_pass == len(passes):
                    returned = self._exchanges.due(number, pending)
                    yield from self._exchange_grads(number, returned)
                    pending.difference_update(returned)
                    follow = partial(self._transform_grad, number, reached=reached, returned=returned)
                yield from walk(sweeps, grads(known, follow))
            if passes:
                self._reach(number, reached)
            else:
                yield from self._transform_grads(sweeps, number, reached, pending)
        if self.gradients.wanted_x and "x" in reached:
            for interval in sweeps.intervals():
                yield Step("output_grad", 0, interval, reads=self._blocks.grads(["x"], interval))

    def _transform_grads(self, sweeps: Sweeps, number: int, reached: set[str], pending: set[str]) -> Iterator[Step]:
        returned = self._exchanges.due(number, pending)
        yield from self._exchange_grads(number, returned)
        pending.difference_update(returned)
        for interval in sweeps.intervals():
            yield from self._transform_grad(number, interval, reached, returned)
        self._reach(number, reached)

    def _exchange_grads(self, number: int, names: Sequence[str]) -> Iterator[Step]:
        """Send the gradients of the halo's rows to their owners, and receive those of own rows, of some values."""
        for name in names:
            sends = tuple(self._blocks.grad(name, interval) for interval in self.part.halo)
            receives = tuple(
                block for interval in self.part.own for block in self._blocks.for_peers("returned", name, interval)
            )
            yield Step("exchange_grad", number, 0, exchanged=Exchanged(name, sends, receives, is_grad=True))

    def _transform_grad(
        self, number: int, interval: int, reached: set[str], returned: Sequence[str]
    ) -> Iterator[Step]:
        """A stage's gradient on an interval, where one has reached its outputs, and what the gather before reads of it.

        The gradients of the values ``returned`` are complete once what other workers have sent is added.
        """
        for name in returned:
            if received := self._blocks.for_peers("returned", name, interval):
                grad = self._blocks.grad(name, interval)
                taken = self.sizes.of(grad)
                reads = (grad, *received)
                yield Step("collect_grad", number, interval, reads=reads, writes=(grad,), temporary_bytes=taken)
        stage, now = self.program.stages[number], set(reached)
        if arrived := [name for name in stage.outputs if name in reached]:
            given, saved = self._inputs_with_grad(number), self._saved(number, interval)
            known = [name for name in given if name in reached]
            reads = (
                *saved,
                *self._blocks.values(self.sizes.saved_results(number) if saved else (), interval),
                *self._blocks.values(stage.inputs, interval),
                *self._blocks.grads([*arrived, *known], interval),
            )
            grads = self._blocks.grads(given, interval)
            taken = self.sizes.transform_grad_bytes(number, interval, saved=bool(saved))
            yield Step("transform_grad", number, interval, reads=reads, writes=grads, temporary_bytes=taken)
            now |= set(given)
        yield from self._prepare_grad(number - 1, interval, now)

    def _saved(self, number: int, interval: int) -> tuple[Block, ...]:
        """The block that a stage saves for its gradient, if it does."""
        if (number, interval) not in self.saves or not self.gradients.leads_from(self.program.stages[number]):
            return ()
        return (self._blocks.block("stage_saved", "", interval, stage=number),)

    def _inputs_with_grad(self, number: int) -> list[str]:
        """Names of the values of vertices whose gradients a stage's backward gives."""
        stage = self.program.stages[number]
        return [name for name in stage.inputs if name not in self.gradients.shared and self.gradients.has(name)]

    def _reach(self, number: int, reached: set[str]) -> None:
        """Add the values that have a gradient once a stage's backward has run."""
        if any(name in reached for name in self.program.stages[number].outputs):
            reached |= self._given_by(number)

    def _given_by(self, number: int) -> set[str]:
        """Names of the values whose gradients a stage's backward gives, means over all rows among them."""
        return {*self._inputs_with_grad(number), *self.gradients.of_means(self.program.stages[number].inputs)}

    def _means(self, number: int, means: BatchMeans, interval: int) -> Step:
        """Add the rows of an interval, or what it has gathered, to means over all rows."""
        reads = self._blocks.values(means.values, interval)
        # Rows in half precision are widened; and the rows without their mean. Of moments, a sum and a spread take half of a row each.
        wide = max(self.sizes.widened_bytes(value, interval) for value in means.values)
        taken = wide + max(wide, *(self.sizes.rows_in(block, interval) for block in reads))
        return Step("means", number, interval, reads=reads, temporary_bytes=taken)

    def _means_grad(self, number: int, means: BatchMeans, interval: int, reached: Collection[str]) -> Step:
        """Add the gradient through means over all rows to the gradient of what an interval has added to them."""
        grads = self._blocks.grads(means.values, interval)
        reads = self._blocks.values(means.values, interval) + self._blocks.grads(
            [value for value in means.values if value in reached], interval
        )
        # Rows without their mean, which become what is added, and the sum.
        wide = max(self.sizes.widened_bytes(value, interval) for value in means.values)
        taken = 2 * wide + 2 * max(map(self.sizes.of, grads))
        return Step("means_grad", number, interval, reads=reads, writes=grads, temporary_bytes=taken)

    def _gather(
        self, number: int, gather: Gather, follow: Callable[[int], Iterator[Step]], exchanges: Exchanges
    ) -> Pass:
        """The pass of a gather's forward."""
        function = self.gradients.function(gather)
        # The state of each destination interval that has met a chunk.
        begun: dict[int, tuple[Block, ...]] = {}

        def chunk(dst: int, src: int) -> Iterator[Step]:
            if (src, dst) in self.hops[gather.hop].edges:
                reads = (*self._blocks.read_by_gather(gather, function, src, dst), *begun.get(dst, ()))
                if dst not in begun:
                    begun[dst] = (self._blocks.block("state", gather.result, dst),)
                taken = self.sizes.gather_bytes(gather, src, dst)
                yield Step("gather", number, src, dst, reads=reads, writes=begun[dst], temporary_bytes=taken)

        def finish(dst: int) -> Iterator[Step]:
            kinds: list[BlockKind] = ["value", "gather_saved"] if gather.edges.gathering.keeps else ["value"]
            writes = tuple(self._blocks.block(kind, gather.result, dst) for kind in kinds)
            reads = (*begun.get(dst, ()), *self._begun_of(writes))
            taken = self.sizes.made_apart(writes, dst)
            yield Step("finish", number, dst, reads=reads, writes=writes, temporary_bytes=taken)
            yield from self._collect_made([gather.result], dst, exchanges)

        return Pass(
            key=PassKey("gather", number),
            in_order=gather.edges.gathering.names_edges,
            chunk=chunk,
            finish=finish,
            follow=follow,
            owns=self.part.own,
            others=self._others(self.part.sources),
            late=frozenset(self.part.halo if exchanges.before(number) else ()),
        )

    def _prepare_grad(self, number: int, interval: int, reached: Collection[str]) -> Iterator[Step]:
        """Compute the tensors that a gather's backward reads of a destination interval, whose gradient is complete."""
        if number < 0:
            return
        gather = self.program.links[number]
        if isinstance(gather, BatchMeans) or gather.result not in reached or not self.gradients.passes(gather):
            return
        gathering = gather.edges.gathering
        kinds: list[BlockKind] = ["grad"]
        kinds += ["gather_saved"] if gathering.keeps and not gathering.passes_kept else []
        kinds += ["value"] if gathering.reads_result else []
        reads = tuple(self._blocks.block(kind, gather.result, interval) for kind in kinds)
        writes = (self._blocks.block("grad_inputs", gather.result, interval),)
        reads += self._begun_of(writes)
        taken = self.sizes.prepare_grad_bytes(gather, interval) + self.sizes.made_apart(writes, interval)
        yield Step("prepare_grad", number, interval, reads=reads, writes=writes, temporary_bytes=taken)

    def _gather_grad(
        self,
        number: int,
        gather: Gather,
        backward_pass: int,
        work: BackwardPass,
        values: Sequence[str],
        known: set[str],
        follow: Callable[[int], Iterator[Step]],
        *,
        owns: Sequence[int] | None = None,
    ) -> Pass:
        """A pass of a gather's backward; over sources, ``owns`` are intervals of some of them, by default of own vertices."""
        at_dst = work.function.at == "dst"
        of_edges = any(output.reduce == "edge" for output in work.function.outputs)
        of_rows = any(output.reduce != "edge" for output in work.function.outputs)
        # The state of each interval of the pass's rows that has met a chunk.
        begun: dict[int, tuple[Block, ...]] = {}

        def chunk(own: int, other: int) -> Iterator[Step]:
            src, dst = (other, own) if at_dst else (own, other)
            if (src, dst) not in self.hops[gather.hop].edges:
                return
            reads = (*self._blocks.read_by_grad(gather, work.function, src, dst), *begun.get(own, ()))
            if of_rows and own not in begun:
                begun[own] = (self._blocks.block("state", gather.result, own, backward_pass=backward_pass),)
            writes = begun.get(own, ())
            if of_edges:
                writes = (self._blocks.block("edge_grad", gather.result, src, dst), *writes)
            taken = self.sizes.gather_bytes(gather, src, dst, backward_pass)
            yield Step(
                "gather_grad", number, src, dst, backward_pass, reads=reads, writes=writes, temporary_bytes=taken
            )

        def finish(own: int) -> Iterator[Step]:
            grads = self._blocks.grads(values, own)
            reads = (*self._blocks.grads([value for value in values if value in known], own), *begun.get(own, ()))
            taken = sum(self.sizes.of(block) for block in grads)
            yield Step(
                "finish_grad",
                number,
                own,
                backward_pass=backward_pass,
                reads=reads,
                writes=grads,
                temporary_bytes=taken,
            )

        return Pass(
            key=PassKey("gather_grad", number, backward_pass),
            in_order=False,
            chunk=chunk,
            finish=finish,
            follow=follow,
            owns=self.part.own if owns is None else owns,
            others=self._others(self.part.sources if at_dst else self.part.own),
        )

    def _others(self, intervals: Sequence[int]) -> Sequence[int]:
        """The other ends of a pass: some intervals, or all of them undivided."""
        return [ALL] if self.part.undivided else intervals

    def _values_of(self, gather: Gather, results: Sequence[str]) -> list[str]:
        """Names of the values whose gradients a backward pass gives."""
        read = self._read_as(gather, results)
        return list(dict.fromkeys(name for name in read if name not in self.gradients.shared))

    def _read_as(self, gather: Gather, results: Sequence[str]) -> list[str]:
        """Names in the program of those inputs of a gather's edges whose gradients a backward pass gives."""
        found = dict(zip(gather.edges.stage.inputs, gather.inputs, strict=True))
        return [found[name] for name in results if name in found]
