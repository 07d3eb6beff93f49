"""Writers of the reductions in Triton kernels, by the name of the record (:mod:`sagann.kernels.edge.reductions`).

Every edge of a tile has a state of its own. The states of a tile are brought together at the end of a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from sagann.kernels.edge.function import Output, Shape, lanes
from sagann.kernels.edge.gpu import layout as moves
from sagann.kernels.edge.gpu.expressions import EDGE, TYPES, Expressions
from sagann.kernels.edge.source import OutputWriter, float_text


class Writer(OutputWriter):
    """Writes the lines of one output. Where a pass continues, ``resume`` takes the place of ``finish``."""

    def __init__(self, rows: Expressions, output: Output, number: int, result: int) -> None:
        super().__init__(rows.function, output, number, result)
        self.rows = rows
        self.shape, self.num_lanes = rows.shape(self.value), lanes(self.value)
        self.name = rows.converted(self.value.name, self.kind)
        self.m_edge = rows.edges("m_edge", len(self.shape))

    def part_shape(self, place: int) -> Shape:
        """Shape in registers of a row of the state's tensor at ``place``."""
        part = self.part(place)
        return () if part is None else self.rows.shape(part)

    def before(self) -> list[str]:
        # Names that the later lines use are written once per program.
        for place in range(len(self.output.reduction.state)):
            self.rows.offsets(self.part_shape(place))
            self.rows.mask(self.part_shape(place))
        return []

    def filled(self, place: int, number: float) -> str:
        block = moves.block("EDGES", self.part_shape(place))
        return f"tl.full({block}, {float_text(number)}, {TYPES[self.kind]})"

    def stored(self, place: int, value: str, *, pointer: str = "p_row", row: str = "at") -> str:
        """A line that writes a row of the state's tensor at ``place``."""
        at, own = self._at(place, pointer, row)
        return f"tl.store({at}, {value}, mask={own})" if own else f"tl.store({at}, {value})"

    def written(self, *values: str) -> list[str]:
        """Lines that write a row of every tensor of the state."""
        return [self.stored(place, value) for place, value in enumerate(values)]

    def loaded(self, place: int) -> str:
        """The row of the state's tensor at ``place``, as earlier edges have left it."""
        at, own = self._at(place, "p_was" if self.result + place in self.rows.shared else "p_row", "at")
        return f"tl.load({at}, mask={own}, other=0)" if own else f"tl.load({at})"

    def barrier(self) -> list[str]:
        """A line after which every warp has read the earlier results that one warp may overwrite."""
        return ["tl.debug_barrier()"] if self.rows.layout.warps > 1 else []

    def _at(self, place: int, pointer: str, row: str) -> tuple[str, str | None]:
        shape = self.part_shape(place)
        at = f"{pointer}_{self.result + place} + {row} * {self.part_lanes(place)} + {self.rows.offsets(shape)}"
        return at, self.rows.mask(shape)


class _Sum(Writer):
    state = ("sum",)

    @property
    def total(self) -> str:
        """The sum over a tile's edges."""
        return f"tl.sum(sum_{self.number}, 0, keep_dims=True)"

    def update(self) -> list[str]:
        return [f"sum_{self.number} += tl.where({self.m_edge}, {self.name}, 0.0)"]

    def finish(self) -> list[str]:
        return self.written(self.total)

    def resume(self) -> list[str]:
        return self.written(f"{self.loaded(0)} + {self.total}")


class _Total(_Sum):
    """The sum of an item's edges. The sums of all items are added up afterwards."""

    def before(self) -> list[str]:
        return [*super().before(), *super().start()]

    def start(self) -> list[str]:
        return []

    finish = resume = start

    def after(self) -> list[str]:
        return [self.stored(0, self.total, pointer="p_out", row="item")]


class _EdgeRows(Writer):
    def update(self) -> list[str]:
        row = self.rows.edges(f"({self.rows.edge_local} * {self.num_lanes})", len(self.shape))
        at = f"p_out_{self.result} + {row}" + (f" + {self.rows.offsets(self.shape)}" if self.shape else "")
        # A block of one row is written for each edge.
        value = f"tl.broadcast_to({self.name}, {moves.block('EDGES', self.shape)})"
        return [f"tl.store({at}, {value}, mask={self.rows.masks(self.shape, EDGE)})"]


class _Maximum(Writer):
    worst, beyond, reduce = -math.inf, ">", "device.amax"

    def start(self) -> list[str]:
        # Each edge of a tile begins at its own position, so that the first counts where no value is beyond the worst.
        first = self.rows.edges("tl.arange(0, EDGES)", len(self.shape))
        return [
            f"best_{self.number} = {self.filled(0, self.worst)}",
            f"where_{self.number} = tl.broadcast_to({first}, {moves.block('EDGES', self.shape)})",
        ]

    def update(self) -> list[str]:
        best, value = f"best_{self.number}", self.name
        isnan = f"(({value} != {value}) & ({best} == {best}))"
        position = self.rows.edges("(edge - begin).to(tl.int32)", len(self.shape))
        return [
            f"better = {self.m_edge} & (({value} {self.beyond} {best}) | {isnan})",
            f"where_{self.number} = tl.where(better, {position}, where_{self.number})",
            f"{best} = tl.where(better, {value}, {best})",
        ]

    def finish(self) -> list[str]:
        number = self.number
        found = f"device.first_of(best_{number}, where_{number}, extremum_{number}) + begin"
        return [
            f"extremum_{number} = {self.reduce}(best_{number}, 0, keep_dims=True)",
            *self.written(f"tl.where(end > begin, extremum_{number}, 0.0)", f"tl.where(end > begin, {found}, -1)"),
        ]

    def resume(self) -> list[str]:
        number = self.number
        best, place = f"extremum_{number}", f"place_{number}"
        isnan = f"(({best} != {best}) & (known_{number} == known_{number}))"
        ids = place if self.rows.function.at == "dst" else f"tl.load(p_edge_ids + {place}).to(tl.int64)"
        return [
            f"{best} = {self.reduce}(best_{number}, 0, keep_dims=True)",
            f"{place} = device.first_of(best_{number}, where_{number}, {best}) + begin",
            f"known_{number} = {self.loaded(0)}",
            f"edge_{number} = {self.loaded(1)}",
            f"better = (edge_{number} < 0) | ({best} {self.beyond} known_{number}) | {isnan}",
            f"edge_{number} = tl.where(better, {ids} + edge_offset, edge_{number})",
            f"known_{number} = tl.where(better, {best}, known_{number})",
            *self.written(f"known_{number}", f"edge_{number}"),
        ]


class _Minimum(_Maximum):
    worst, beyond, reduce = math.inf, "<", "device.amin"


class _Moments(Writer):
    """Every edge of a tile has a mean and a spread. Their number of edges follows from the position."""

    state = ("spread", "mean")

    def update(self) -> list[str]:
        spread, mean = self.variable(0), self.variable(1)
        # Every lane has met so many edges, but for lanes beyond the last edge.
        return [
            f"met = ((first - begin) // EDGES + 1).to({TYPES[self.kind]})",
            f"distance = tl.where({self.m_edge}, {self.name} - {mean}, 0.0)",
            f"{mean} += distance / met",
            f"{spread} += tl.where({self.m_edge}, distance * ({self.name} - {mean}), 0.0)",
        ]

    def together(self) -> list[str]:
        """Lines that merge the states of a tile's edges."""
        number, count = self.number, self.rows.aligned("met", 0, len(self.shape))
        return [
            # Number of edges that each lane has met.
            f"met = ((end - begin - o_edge + EDGES - 1) // EDGES).to({TYPES[self.kind]})",
            f"count = (end - begin).to({TYPES[self.kind]})",
            f"mean = tl.sum(mean_{number} * {count}, 0, keep_dims=True) / tl.maximum(count, 1.0)",
            f"apart = mean_{number} - mean",
            f"spread = tl.sum(spread_{number} + apart * apart * {count}, 0, keep_dims=True)",
        ]

    def finish(self) -> list[str]:
        return [*self.together(), *self.written("spread", "mean", "count")]

    def resume(self) -> list[str]:
        known, share = (self.rows.aligned(name, 0, len(self.shape), trailing=True) for name in ("known", "share"))
        return [
            *self.together(),
            f"known = {self.loaded(2)}",
            f"known_mean = {self.loaded(1)}",
            "share = count / (known + count)",
            "apart = mean - known_mean",
            f"spread += {self.loaded(0)} + apart * apart * {share} * {known}",
            f"mean = known_mean + apart * {share}",
            "count = known + count",
            *self.barrier(),
            *self.written("spread", "mean", "count"),
        ]


class _Product(Writer):
    state = ("product", "zeros")

    def update(self) -> list[str]:
        return [
            f"is_zero = {self.name} == 0.0",
            f"product_{self.number} *= tl.where({self.m_edge} & (is_zero == 0), {self.name}, 1.0)",
            f"zeros_{self.number} += tl.where({self.m_edge} & is_zero, 1.0, 0.0)",
        ]

    def together(self) -> tuple[str, str]:
        """Product and number of zeros over a tile's edges."""
        return f"device.product(product_{self.number})", f"tl.sum(zeros_{self.number}, 0, keep_dims=True)"

    def finish(self) -> list[str]:
        return self.written(*self.together())

    def resume(self) -> list[str]:
        product, zeros = self.together()
        return self.written(f"{self.loaded(0)} * {product}", f"{self.loaded(1)} + {zeros}")


class _Softmax(Writer):
    """One pass with a running maximum and denominator. ``sum`` is the mean times the denominator."""

    state = ("sum", "top", "weight")

    @property
    def lowest(self) -> float:
        """The least finite number."""
        return float(torch.finfo(torch.float64 if self.kind == "f8" else torch.float32).min)

    def per_head(self, score: str) -> str:
        """A block like the score's beside the value's lanes."""
        return self.rows.aligned(score, len(self.part_shape(1)), len(self.shape), trailing=True)

    def start(self) -> list[str]:
        return [
            f"top_{self.number} = {self.filled(1, self.lowest)}",
            f"weight_{self.number} = {self.filled(2, 0.0)}",
            f"sum_{self.number} = {self.filled(0, 0.0)}",
        ]

    def update(self) -> list[str]:
        number, lowest = self.number, float_text(self.lowest)
        score = self.rows.converted(self.output.values[0], self.kind)
        m_edge = self.rows.edges("m_edge", len(self.part_shape(1)))
        return [
            f"top = device.maximum(tl.where({m_edge}, {score}, {lowest}), top_{number})",
            f"shrink = device.exp(top_{number} - top)",
            f"weight = tl.where({m_edge}, device.exp({score} - top), 0.0)",
            f"weight_{number} = weight_{number} * shrink + weight",
            f"weighted = tl.where({self.m_edge}, {self.per_head('weight')} * {self.name}, 0.0)",
            f"sum_{number} = sum_{number} * {self.per_head('shrink')} + weighted",
            f"top_{number} = top",
        ]

    def finish(self) -> list[str]:
        number = self.number
        total = f"tl.sum(sum_{number} * {self.per_head('share')}, 0, keep_dims=True)"
        return [
            f"top = device.amax(top_{number}, 0, keep_dims=True)",
            f"share = device.exp(top_{number} - top)",
            f"weight = tl.sum(weight_{number} * share, 0, keep_dims=True)",
            f"mean_{number} = {total} / {self.per_head('weight')}",
            *self.written(
                f"tl.where(end > begin, mean_{number}, 0.0)", 'tl.where(end > begin, top, float("-inf"))', "weight"
            ),
        ]

    def resume(self) -> list[str]:
        number, heavy, known_weight = self.number, self.per_head("heavy"), self.loaded(2)
        # Where all scores so far are -inf the mean is 0 / 0, but has no weight.
        weighed = f"tl.where({heavy} == 0, 0.0, {heavy} * {self.loaded(0)})"
        return [
            f"known_top = {self.loaded(1)}",
            f"top = device.maximum(device.amax(top_{number}, 0, keep_dims=True), known_top)",
            f"share = device.exp(top_{number} - top)",
            f"heavy = {known_weight} * device.exp(known_top - top)",
            f"weight = tl.sum(weight_{number} * share, 0, keep_dims=True) + heavy",
            f"total = tl.sum(sum_{number} * {self.per_head('share')}, 0, keep_dims=True) + {weighed}",
            *self.barrier(),
            *self.written(f"total / {self.per_head('weight')}", "top", "weight"),
        ]


WRITERS: Mapping[str, type[Writer]] = {
    "sum": _Sum,
    "total": _Total,
    "edge": _EdgeRows,
    "max": _Maximum,
    "min": _Minimum,
    "softmax": _Softmax,
    "moments": _Moments,
    "product": _Product,
}
