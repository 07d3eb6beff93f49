"""What becomes of a function's outputs: accumulators, their update for every tile of edges, and what is written."""

from __future__ import annotations

import torch

from sagann.kernels.edge.function import Output, Shape
from sagann.kernels.edge.gpu import lanes as moves
from sagann.kernels.edge.gpu.expressions import EDGE, TYPES, Expressions
from sagann.kernels.edge.kinds import kind_of, lanes


class Reduction:
    """Writes the lines of one output: its accumulators, their update and what becomes of them."""

    def __init__(self, writer: Expressions, output: Output, number: int, result: int) -> None:
        self.writer, self.output, self.number, self.result = writer, output, number, result
        value = writer.function.value(output.values[-1])
        self.kind = "f8" if kind_of(value) == "f8" else "f4"
        self.shape, self.num_lanes = writer.shape(value), lanes(value)
        self.value = writer.converted(value.name, self.kind)
        self.m_edge = writer.edges("m_edge", len(self.shape))
        score = writer.function.value(output.values[0])
        self.score_shape, self.num_scores = writer.shape(score), lanes(score)

    def full(self, shape: Shape, number: str, lead: str = "EDGES") -> str:
        """A block of one number."""
        return f"tl.full({moves.block(lead, shape)}, {number}, {TYPES[self.kind]})"

    def beside(self, score: str) -> str:
        """A block like the score's beside the value's lanes."""
        return self.writer.aligned(score, len(self.score_shape), len(self.shape), trailing=True)

    def stored(self, pointer: str, row: str, shape: Shape, num_lanes: int, value: str) -> str:
        """A line that writes a row."""
        at = f"{pointer} + {row} * {num_lanes} + {self.writer.offsets(shape)}"
        own = self.writer.mask(shape)
        return f"tl.store({at}, {value}, mask={own})" if own else f"tl.store({at}, {value})"

    def before(self) -> list[str]:
        """Before the first row; names what the later lines need of the program."""
        self.writer.offsets(self.shape)
        self.writer.mask(self.shape)
        if self.output.reduce == "softmax":
            self.writer.offsets(self.score_shape)
            self.writer.mask(self.score_shape)
        return [f"sum_{self.number} = {self.full(self.shape, '0.0')}"] if self.output.reduce == "total" else []

    def start(self) -> list[str]:
        """At the start of a row."""
        number = self.number
        if self.output.reduce == "sum":
            return [f"sum_{number} = {self.full(self.shape, '0.0')}"]
        if self.output.reduce in ("max", "min"):
            worst = 'float("-inf")' if self.output.reduce == "max" else 'float("inf")'
            # Each edge of a tile begins at its own position, so that the first counts where nothing beats the worst.
            first = self.writer.edges("tl.arange(0, EDGES)", len(self.shape))
            return [
                f"best_{number} = {self.full(self.shape, worst)}",
                f"where_{number} = tl.broadcast_to({first}, {moves.block('EDGES', self.shape)})",
            ]
        if self.output.reduce == "softmax":
            return [
                f"top_{number} = {self.full(self.score_shape, self.lowest)}",
                f"weight_{number} = {self.full(self.score_shape, '0.0')}",
                f"sum_{number} = {self.full(self.shape, '0.0')}",
            ]
        return []

    @property
    def lowest(self) -> str:
        """The least finite number."""
        return repr(float(torch.finfo(torch.float64 if self.kind == "f8" else torch.float32).min))

    def update(self) -> list[str]:
        """For every tile of edges."""
        number = self.number
        if self.output.reduce in ("sum", "total"):
            return [f"sum_{number} += tl.where({self.m_edge}, {self.value}, 0.0)"]
        if self.output.reduce == "edge":
            row = self.writer.edges(f"({self.writer.edge_local} * {self.num_lanes})", len(self.shape))
            at = f"p_out_{self.result} + {row}" + (f" + {self.writer.offsets(self.shape)}" if self.shape else "")
            level = self.writer.masks(self.shape, EDGE)
            # A block of one row is written for each edge.
            value = f"tl.broadcast_to({self.value}, {moves.block('EDGES', self.shape)})"
            return [f"tl.store({at}, {value}, mask={level})"]
        if self.output.reduce in ("max", "min"):
            beyond = ">" if self.output.reduce == "max" else "<"
            best, value = f"best_{number}", self.value
            isnan = f"(({value} != {value}) & ({best} == {best}))"
            position = self.writer.edges("(edge - begin).to(tl.int32)", len(self.shape))
            return [
                f"better = {self.m_edge} & (({value} {beyond} {best}) | {isnan})",
                f"where_{number} = tl.where(better, {position}, where_{number})",
                f"{best} = tl.where(better, {value}, {best})",
            ]
        score = self.writer.converted(self.output.values[0], self.kind)
        m_edge = self.writer.edges("m_edge", len(self.score_shape))
        return [
            f"top = device.maximum(tl.where({m_edge}, {score}, {self.lowest}), top_{number})",
            f"shrink = device.exp(top_{number} - top)",
            f"weight = tl.where({m_edge}, device.exp({score} - top), 0.0)",
            f"weight_{number} = weight_{number} * shrink + weight",
            f"weighted = tl.where({self.m_edge}, {self.beside('weight')} * {self.value}, 0.0)",
            f"sum_{number} = sum_{number} * {self.beside('shrink')} + weighted",
            f"top_{number} = top",
        ]

    def loaded(self, result: int, shape: Shape, num_lanes: int) -> str:
        """What a row holds so far."""
        pointer = f"p_was_{result}" if result in self.writer.shared else f"p_row_{result}"
        at = f"{pointer} + at * {num_lanes} + {self.writer.offsets(shape)}"
        own = self.writer.mask(shape)
        return f"tl.load({at}, mask={own}, other=0)" if own else f"tl.load({at})"

    def resume(self) -> list[str]:
        """At the end of a row of which earlier edges have given something: the edges of a tile join these."""
        number, row, more = self.number, f"p_row_{self.result}", f"p_row_{self.result + 1}"
        known = self.loaded(self.result, self.shape, self.num_lanes)
        if self.output.reduce == "sum":
            total = f"{known} + tl.sum(sum_{number}, 0, keep_dims=True)"
            return [self.stored(row, "at", self.shape, self.num_lanes, total)]
        if self.output.reduce in ("max", "min"):
            beyond = ">" if self.output.reduce == "max" else "<"
            best, place = f"extremum_{number}", f"place_{number}"
            isnan = f"(({best} != {best}) & (known_{number} == known_{number}))"
            ids = place if self.writer.function.at == "dst" else f"tl.load(p_edge_ids + {place}).to(tl.int64)"
            return [
                f"{best} = device.a{self.output.reduce}(best_{number}, 0, keep_dims=True)",
                f"{place} = device.first_of(best_{number}, where_{number}, {best}) + begin",
                f"known_{number} = {known}",
                f"edge_{number} = {self.loaded(self.result + 1, self.shape, self.num_lanes)}",
                f"better = (edge_{number} < 0) | ({best} {beyond} known_{number}) | {isnan}",
                f"edge_{number} = tl.where(better, {ids} + edge_offset, edge_{number})",
                f"known_{number} = tl.where(better, {best}, known_{number})",
                self.stored(row, "at", self.shape, self.num_lanes, f"known_{number}"),
                self.stored(more, "at", self.shape, self.num_lanes, f"edge_{number}"),
            ]
        if self.output.reduce == "softmax":
            # Where all scores so far are -inf the mean is 0 / 0, but weighs nothing.
            heavy = self.beside("heavy")
            weighed = f"tl.where({heavy} == 0, 0.0, {heavy} * {known})"
            last = f"p_row_{self.result + 2}"
            return [
                f"known_top = {self.loaded(self.result + 1, self.score_shape, self.num_scores)}",
                f"top = device.maximum(device.amax(top_{number}, 0, keep_dims=True), known_top)",
                f"share = device.exp(top_{number} - top)",
                f"heavy = {self.loaded(self.result + 2, self.score_shape, self.num_scores)} * device.exp(known_top - top)",
                f"weight = tl.sum(weight_{number} * share, 0, keep_dims=True) + heavy",
                f"total = tl.sum(sum_{number} * {self.beside('share')}, 0, keep_dims=True) + {weighed}",
                # No warp may write the scores' results before all have read them.
                *(["tl.debug_barrier()"] if self.writer.layout.warps > 1 else []),
                self.stored(row, "at", self.shape, self.num_lanes, f"total / {self.beside('weight')}"),
                self.stored(more, "at", self.score_shape, self.num_scores, "top"),
                self.stored(last, "at", self.score_shape, self.num_scores, "weight"),
            ]
        return []

    def finish(self) -> list[str]:
        """At the end of a row: the edges of a tile come together."""
        if self.writer.continued:
            return self.resume()
        number, row = self.number, f"p_row_{self.result}"
        if self.output.reduce == "sum":
            total = f"tl.sum(sum_{number}, 0, keep_dims=True)"
            return [self.stored(row, "at", self.shape, self.num_lanes, total)]
        if self.output.reduce in ("max", "min"):
            best = f"tl.where(end > begin, extremum_{number}, 0.0)"
            ids = f"tl.where(end > begin, device.first_of(best_{number}, where_{number}, extremum_{number}) + begin, -1)"
            return [
                f"extremum_{number} = device.a{self.output.reduce}(best_{number}, 0, keep_dims=True)",
                self.stored(row, "at", self.shape, self.num_lanes, best),
                self.stored(f"p_row_{self.result + 1}", "at", self.shape, self.num_lanes, ids),
            ]
        if self.output.reduce == "softmax":
            mean = f"tl.where(end > begin, mean_{number}, 0.0)"
            top = 'tl.where(end > begin, top, float("-inf"))'
            total = f"tl.sum(sum_{number} * {self.beside('share')}, 0, keep_dims=True)"
            return [
                f"top = device.amax(top_{number}, 0, keep_dims=True)",
                f"share = device.exp(top_{number} - top)",
                f"weight = tl.sum(weight_{number} * share, 0, keep_dims=True)",
                self.stored(f"p_row_{self.result + 1}", "at", self.score_shape, self.num_scores, top),
                self.stored(f"p_row_{self.result + 2}", "at", self.score_shape, self.num_scores, "weight"),
                f"mean_{number} = {total} / {self.beside('weight')}",
                self.stored(row, "at", self.shape, self.num_lanes, mean),
            ]
        return []

    def after(self) -> list[str]:
        """After the last row of the item."""
        if self.output.reduce != "total":
            return []
        total = f"tl.sum(sum_{self.number}, 0, keep_dims=True)"
        return [self.stored(f"p_out_{self.result}", "item", self.shape, self.num_lanes, total)]
