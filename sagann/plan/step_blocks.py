"""Step blocks: the blocks that the steps of an epoch read and write, by their names."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from sagann.compiler.model_program import Gather
from sagann.kernels.edge.function import EdgeFunction
from sagann.plan.hops import CSC, CSR, NUMBERED, PICKED, kept_forms
from sagann.plan.selection import as_read
from sagann.plan.sizes import BlockSizes
from sagann.plan.steps import Block, BlockKind, uncut_ends


class StepBlocks:
    """Blocks of a captured model's values, gradients and edges over a chunk grid, where rows are picked for chunks or not.

    A block is one object in all steps: a plan has millions of references to blocks.
    """

    def __init__(self, sizes: BlockSizes, *, selects: bool) -> None:
        self._hops, self._gradients, self._part = sizes.hops, sizes.gradients, sizes.part
        self.selects = selects
        self._by_source = self._forms_by_source(sizes.program.gathers)
        self._known: dict[Block, Block] = {}

    def selecting(self, selects: bool) -> StepBlocks:
        """The same blocks, where rows are picked or not."""
        found = copy(self)
        found.selects = selects
        return found

    def block(
        self,
        kind: BlockKind,
        name: str,
        interval: int,
        dst_interval: int = -1,
        *,
        hop: int = 0,
        backward_pass: int = 0,
        stage: int = -1,
    ) -> Block:
        """The block that has an interval's rows, by its name; the same object each time."""
        interval = self._part.holding(kind, name, interval)
        block = Block(kind, name, interval, dst_interval, hop, backward_pass, stage)
        return self._known.setdefault(block, block)

    def values(self, names: Sequence[str], interval: int) -> tuple[Block, ...]:
        """The blocks of values of an interval; values that all intervals share are in none."""
        return tuple(self.block("value", name, interval) for name in names if name not in self._gradients.shared)

    def grads(self, names: Sequence[str], interval: int) -> tuple[Block, ...]:
        """The blocks of the gradients of values of an interval."""
        return tuple(self.grad(name, interval) for name in names)

    def grad(self, name: str, interval: int) -> Block:
        """The block of the gradient of a value of an interval."""
        return self.block("grad", name, interval)

    def for_peers(self, kind: BlockKind, name: str, interval: int) -> tuple[Block, ...]:
        """For each worker that needs rows of an interval, the block of these rows, or of their gradients."""
        return tuple(self.block(kind, name, interval, rank) for rank in self._part.sent_by(interval))

    def chunks(self, number: int) -> list[Block]:
        """The edges of all chunks of a hop, in the forms that passes read."""
        kept = kept_forms(self._part)
        return [
            self._chunk(CSC if form == CSC else self._by_source[number], *at, number)
            for at in self._hops[number].edges
            for form in kept.get(uncut_ends(*at), ())
        ]

    def read_by_gather(self, gather: Gather, function: EdgeFunction, src: int, dst: int) -> tuple[Block, ...]:
        """The blocks that a gather reads for a chunk, without the state."""
        chunk = self._chunk(CSC, src, dst, gather.hop)
        return (chunk, *self._edge_values(gather, function, chunk))

    def read_by_grad(self, gather: Gather, function: EdgeFunction, src: int, dst: int) -> tuple[Block, ...]:
        """The blocks that a pass of a gather's backward reads for a chunk, without the state."""
        chunk = self._chunk(CSC if function.at == "dst" else self._by_source[gather.hop], src, dst, gather.hop)
        blocks = [chunk, *self._edge_values(gather, function, chunk)]
        blocks.append(self._rows_for(self.block("grad_inputs", gather.result, dst), chunk, "dst"))
        if gather.edges.gathering.passes_kept:
            blocks.append(self._rows_for(self.block("gather_saved", gather.result, dst), chunk, "dst"))
        if any(given.name.endswith("_at_edges") for given in function.inputs):
            blocks.append(self.block("edge_grad", gather.result, src, dst))
        return tuple(blocks)

    def _edge_values(self, gather: Gather, function: EdgeFunction, chunk: Block) -> list[Block]:
        """The blocks of values that a pass over a chunk's edges reads."""
        read = {given.name for given in function.inputs}
        blocks = []
        for name, side, value in zip(gather.edges.stage.inputs, gather.edges.sides, gather.inputs, strict=True):
            if side in ("src", "dst") and name in read:
                interval = chunk.interval if side == "src" else chunk.dst_interval
                blocks.append(self._rows_for(self.block("value", value, interval), chunk, side))
        return list(dict.fromkeys(blocks))

    def _forms_by_source(self, gathers: Sequence[Gather]) -> dict[int, str]:
        """For each hop, the one form of its chunks that all its passes over sources read, so that no chunk is loaded twice."""
        forms = dict.fromkeys(self._hops, CSR)
        for gather in gathers:
            functions = [step.function for step in self._gradients.passes(gather)]
            if any(function.at == "src" and function.asks_for_ids for function in functions):
                forms[gather.hop] = NUMBERED
        return forms

    def _chunk(self, form: str, src: int, dst: int, hop: int) -> Block:
        """The edges of a chunk, as a pass reads them."""
        if self.selects:
            picked = self.block("edges", PICKED[form], src, dst, hop=hop)
            if self._hops[hop].may_pick(picked):
                return picked
        return self.block("edges", form, src, dst, hop=hop)

    def _rows_for(self, block: Block, chunk: Block, side: str) -> Block:
        read = as_read(block, chunk, side)
        return self._known.setdefault(read, read)
