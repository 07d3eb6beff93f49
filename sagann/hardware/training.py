"""Training: the passes of a mini-batch (HyScale-GNN IV-C and V).

A model of GCN or SAGE layers has a pass for each layer forward, one in which the gradients of the scores arrive, and for each layer backward
one that sums the gradients of its weights. All but the first layer have one more, in which gradients of rows go back along the edges. Sums of a
layer stay in the banks from its forward to its backward, results of inner layers in the memory of rows, and gradients of weights in the
array, where those of sub-batches add up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sagann.errors import InputError
from sagann.hardware.blocks import Hop, Layer, layer_of
from sagann.hardware.design import KernelDesign
from sagann.hardware.passes import Parameters, Pass, Region
from sagann.hardware.program import Array, chained, drain_program, scatter_program


class _Room:
    """Allocates addresses of a memory one after the other."""

    def __init__(self, what: str, size: int, hint: str) -> None:
        self._what, self._size, self._hint, self._used = what, size, hint, 0

    def take(self, number: int) -> int:
        address = self._used
        self._used += number
        if self._used > self._size:
            raise InputError(
                f"kernel is too small: {self._what} need {self._used} or more of its {self._size}", hint=self._hint
            )
        return address


class _Addresses(NamedTuple):
    """Addresses of parameters and their gradients in the array, by the number of the layer."""

    weights: dict[int, int]
    transposed: dict[int, int]
    weight_grads: dict[int, int]
    biases: dict[int, int]
    bias_grads: dict[int, int]
    zeros: int


class _Memory(NamedTuple):
    """Addresses of a sub-batch on chip, by the number of the layer; 0 is the features."""

    sums: list[Region]
    grads: list[Region]
    "Of a layer's results."
    marks: list[int]
    rows: tuple[int, int]
    "Of layers with even and odd numbers."


@dataclass(frozen=True, kw_only=True, slots=True)
class SubBatch:
    """The passes of a sub-batch, and the vertices of their rows and results."""

    vertices: Array
    "Vertices of the first block whose features arrive, in their order; int64."
    seeds: Array
    "The seeds in the order of their scores, as numbers among those of the mini-batch; int64."
    forward: tuple[Pass, ...]
    "The scores are the results of the last one."
    backward: tuple[Pass, ...]
    "Gradients of the scores are the rows of the first one."


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training of mini-batches by kernels of one design.

    References:
        Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-C; equations 7 and 10 for what is computed in which layer.
    """

    design: KernelDesign
    widths: tuple[int, ...]
    "Of features, inner layers and scores."
    own: bool
    "Whether a layer has weights for a vertex's own row before those for its neighbours' (SAGE)."
    _addresses: _Addresses = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_addresses", self._placed())

    @property
    def num_layers(self) -> int:
        return len(self.widths) - 1

    def chunks(self, layer: int) -> int:
        """Of the sums of a layer, from 1: those of its neighbours, and of the vertex itself."""
        chunks = self.design.chunks(self.widths[layer - 1]) * (1 + self.own)
        if chunks > self.design.row_chunks:
            raise InputError(
                f"rows do not fit the kernel: {self.widths[layer - 1]} floats beside a vertex's own take {chunks} chunks, and it takes "
                f"{self.design.row_chunks} (in KernelDesign.row_chunks)",
                hint="Generate a kernel with more chunks in a row.",
            )
        return chunks

    def tiles(self, layer: int) -> int:
        """Of the results of a layer."""
        return -(-self.widths[layer] // self.design.array_columns)

    def back_tiles(self, layer: int) -> int:
        """Of the gradients of its sums."""
        return -(-self.chunks(layer) // self.design.tile_chunks)

    def _placed(self) -> _Addresses:
        """Addresses of the parameters in the array. InputError if it is too small."""
        hint = "Generate a kernel with more weights in a multiply-accumulator, or take narrower layers."
        weights, biases = (_Room(what, self.design.array_weights, hint) for what in ("weights", "tiles of biases"))
        layers = range(1, self.num_layers + 1)
        sizes = {layer: self.chunks(layer) * self.tiles(layer) for layer in layers}
        widths = {layer: self.design.chunks(self.widths[layer]) for layer in layers}
        return _Addresses(
            weights={layer: weights.take(sizes[layer]) for layer in layers},
            transposed={layer: weights.take(widths[layer] * self.back_tiles(layer)) for layer in layers[1:]},
            weight_grads={layer: weights.take(sizes[layer]) for layer in layers},
            biases={layer: biases.take(self.tiles(layer)) for layer in layers},
            bias_grads={layer: biases.take(self.tiles(layer)) for layer in layers},
            zeros=biases.take(max((self.back_tiles(layer) for layer in layers[1:]), default=0)),
        )

    def _padded(self, layer: int, weights: Array) -> Array:
        """Weights of a layer, float32 [widths[layer - 1] or twice that, widths[layer]], padded as the array takes them."""
        lanes, width = self.design.lanes, self.widths[layer - 1]
        halves = weights.reshape(1 + self.own, width, -1)
        padded = np.zeros(
            (1 + self.own, self.design.chunks(width) * lanes, self.tiles(layer) * self.design.array_columns),
            np.float32,
        )
        padded[:, :width, : weights.shape[1]] = halves
        return padded.reshape(-1, padded.shape[2])

    def gradients(self, layer: int, results: Array) -> tuple[Array, Array]:
        """Gradients of a layer's weights and biases, from the results of :meth:`reads_out`, float32 [number, array_columns]."""
        lanes, width, tiles = self.design.lanes, self.widths[layer - 1], self.tiles(layer)
        rows = results.reshape(-1, tiles * self.design.array_columns)[:, : self.widths[layer]]
        weights = rows[:-1].reshape(1 + self.own, -1, self.widths[layer])[:, :width]
        assert len(rows) == self.chunks(layer) * lanes + 1
        return weights.reshape(-1, self.widths[layer]), rows[-1]

    def loads(self, weights: list[Array], biases: list[Array]) -> Pass:
        at, columns, parameters = self._addresses, self.design.array_columns, list[Parameters]()
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True), 1):
            matrix = self._padded(layer, weight)
            parameters += self._tiled(at.weights[layer], matrix)
            if layer > 1:
                rows = self.design.chunks(self.widths[layer]) * self.design.lanes
                transposed = np.zeros((rows, self.back_tiles(layer) * columns), dtype=np.float32)
                transposed[: self.widths[layer], : len(matrix)] = matrix.T[: self.widths[layer]]
                parameters += self._tiled(at.transposed[layer], transposed)
            parameters += self._biases(at.biases[layer], np.pad(bias, (0, matrix.shape[1] - len(bias))))
            parameters += self._biases(at.bias_grads[layer], np.zeros(matrix.shape[1], dtype=np.float32))
        widest = max((self.back_tiles(layer) for layer in range(2, self.num_layers + 1)), default=0)
        return Pass(loads=(*parameters, *self._biases(at.zeros, np.zeros(widest * columns, dtype=np.float32))))

    def _tiled(self, address: int, matrix: Array) -> list[Parameters]:
        lanes, tiles = self.design.lanes, matrix.shape[1] // self.design.array_columns
        return [
            Parameters(number % lanes, address + number // lanes * tiles + tile, values)
            for number, row in enumerate(matrix)
            for tile, values in enumerate(row.reshape(tiles, -1))
        ]

    def _biases(self, address: int, bias: Array) -> list[Parameters]:
        tiles = bias.reshape(-1, self.design.array_columns)
        return [Parameters(self.design.lanes, address + tile, values) for tile, values in enumerate(tiles)]

    def reads_out(self) -> tuple[Pass, ...]:
        """The passes that read gradients of weights and biases, layer by layer."""
        return tuple(
            Pass(
                reads_out=True,
                drains=Region(0, self.chunks(layer)),
                tiles=self.tiles(layer),
                weights=self._addresses.weight_grads[layer],
                biases=self._addresses.bias_grads[layer],
            )
            for layer in range(1, self.num_layers + 1)
        )

    def passes(
        self, parts: list[SubBatch], loads: Pass, features: Array, grads: Array | None = None
    ) -> tuple[list[Pass], dict[int, Array], list[int]]:
        """The passes of a mini-batch's sub-batches, with the rows that come from external memory and the passes that give scores, by their numbers.

        ``loads`` writes the parameters. Without gradients of the scores, float32 [num_seeds, C], passes end with the scores.
        """
        passes, rows, scores = [loads], dict[int, Array](), []
        for part in parts:
            rows[len(passes)] = features[part.vertices]
            passes += part.forward
            scores.append(len(passes) - 1)
            if grads is not None:
                rows[len(passes)] = grads[part.seeds]
                passes += part.backward
        return [*passes, *(() if grads is None else self.reads_out())], rows, scores

    def scores(self, parts: list[SubBatch], results: list[Array]) -> Array:
        """Scores of the seeds, float32 [num_seeds, C], from the results of each sub-batch's last pass forward."""
        width = self.widths[-1]
        found = np.empty((sum(len(part.seeds) for part in parts), width), dtype=np.float32)
        for part, result in zip(parts, results, strict=True):
            found[part.seeds] = result.reshape(len(part.seeds), -1)[:, :width]
        return found

    def sub_batches(self, hops: list[Hop]) -> list[SubBatch]:
        """The passes of a mini-batch, in 1, 2, 4 or more equal parts that fit the chip; none without seeds, whose gradients are 0.

        Args:
            hops: blocks of the layers, the first layer's first; the last one's destinations are the seeds.
        Raises:
            InputError: the passes of a single seed do not fit.
        """
        num_seeds, parts = hops[-1].num_dst, 1
        while num_seeds:
            try:
                return [
                    self._sub_batch(hops, seeds, begins_sums=number == 0)
                    for number, seeds in enumerate(np.array_split(np.arange(num_seeds), parts))
                ]
            except InputError:
                if parts >= num_seeds:
                    raise
                parts = min(2 * parts, num_seeds)
        return []

    def _sub_batch(self, hops: list[Hop], seeds: Array, *, begins_sums: bool) -> SubBatch:
        layers: list[Layer] = []
        vertices = seeds
        for hop in reversed(hops):
            layer, vertices = layer_of(hop.of(vertices), vertices, self.design, own=self.own)
            layers.insert(0, layer)
        memory = self._memory(layers)
        backward = [self._takes_grads(layers[-1].num_dst, memory.grads[-1])]
        for number in range(self.num_layers, 0, -1):
            backward.append(self._sums_gradients(number, layers[number - 1], memory, begins_sums=begins_sums))
            if number > 1:
                backward.append(self._goes_back(number, layers[number - 1], memory))
        return SubBatch(
            vertices=vertices,
            seeds=seeds,
            forward=tuple(self._forward(number, layer, memory) for number, layer in enumerate(layers, 1)),
            backward=tuple(backward),
        )

    def _memory(self, layers: list[Layer]) -> _Memory:
        """Addresses for a sub-batch. InputError if the chip is too small."""
        design, hint = self.design, "Generate a kernel with more memory on chip, or sample fewer neighbours."
        banks = _Room("sums in a bank", design.bank_chunks, hint)
        marks = _Room("masks of ReLU", design.mask_entries, hint)
        rows = _Room("rows of inner layers", design.row_entries, hint)
        sums, grads = [Region()], [Region()]
        for number, layer in enumerate(layers, 1):
            groups = -(-layer.num_dst // design.scatter_pes)
            for regions, chunks in ((sums, self.chunks(number)), (grads, design.chunks(self.widths[number]))):
                regions.append(Region(banks.take(groups * chunks), chunks))
        # A layer reads rows in one area and writes them in the other one; on the way back it reads those that it has just written.
        inner = [layer.num_dst * self._entries(self.tiles(number)) for number, layer in enumerate(layers[:-1], 1)]
        back = [
            layer.num_dst * self._entries(self.back_tiles(number)) for number, layer in enumerate(layers[1:], 2)
        ]
        mark_addresses = [marks.take(layer.num_dst * self.tiles(at)) for at, layer in enumerate(layers[:-1], 1)]
        return _Memory(
            sums=sums,
            grads=grads,
            marks=[0, *mark_addresses, 0],
            rows=(rows.take(max([0, *back, *inner[1::2]])), rows.take(max([0, *inner[::2]]))),
        )

    def _entries(self, tiles: int) -> int:
        """Of the memory of rows, for a row of so many tiles."""
        return -(-tiles * self.design.tile_chunks // self.design.entry_chunks)

    def _forward(self, number: int, layer: Layer, memory: _Memory) -> Pass:
        chunks, is_inner = self.design.chunks(self.widths[number - 1]), number < self.num_layers
        return Pass(
            program=layer.program(self.design, chunks),
            rows=layer.num_src,
            rows_on_chip=number > 1,
            rows_from=memory.rows[(number - 1) % 2],
            row_chunks=chunks,
            chunks=chunks,
            sums=memory.sums[number],
            drains=memory.sums[number],
            tiles=self.tiles(number),
            weights=self._addresses.weights[number],
            biases=self._addresses.biases[number],
            rectifies=is_inner,
            marks_to=memory.marks[number],
            keeps=is_inner,
            rows_to=memory.rows[number % 2],
        )

    def _takes_grads(self, num_rows: int, grads: Region) -> Pass:
        """The pass in which gradients of scores arrive, each by an edge to its own sum."""
        every, ones = np.arange(num_rows), np.ones(num_rows, dtype=np.float32)
        return Pass(
            program=scatter_program(
                np.arange(num_rows + 1), every, ones, self.design, chunks=grads.chunks, drains=False
            ),
            rows=num_rows,
            row_chunks=grads.chunks,
            chunks=grads.chunks,
            sums=grads,
        )

    def _sums_gradients(self, number: int, layer: Layer, memory: _Memory, *, begins_sums: bool) -> Pass:
        """The pass that sums the gradients of a layer's weights: its sums are kept since the forward."""
        return Pass(
            program=drain_program(layer.num_dst, self.design, grads=True),
            drains=memory.sums[number],
            grads=memory.grads[number],
            gradient=True,
            begins_sums=begins_sums,
            tiles=self.tiles(number),
            weights=self._addresses.weight_grads[number],
            biases=self._addresses.bias_grads[number],
            masks=number < self.num_layers,
            marks_from=memory.marks[number],
            mark_tiles=self.tiles(number),
        )

    def _goes_back(self, number: int, layer: Layer, memory: _Memory) -> Pass:
        """The pass that multiplies gradients by transposed weights, and adds the results along the edges backwards."""
        chunks = self.design.chunks(self.widths[number - 1])
        drain = drain_program(layer.num_dst, self.design)
        return Pass(
            program=chained(layer.reversed_program(self.design, chunks), drain, self.design),
            rows=layer.num_dst,
            rows_on_chip=True,
            rows_from=memory.rows[0],
            chained=True,
            row_chunks=self.chunks(number),
            chunks=chunks,
            halves_of_rows=True,
            sums=memory.grads[number - 1],
            drains=memory.grads[number],
            tiles=self.back_tiles(number),
            weights=self._addresses.transposed[number],
            biases=self._addresses.zeros,
            keeps=True,
            rows_to=memory.rows[0],
            masks=number < self.num_layers,
            marks_from=memory.marks[number],
            mark_tiles=self.tiles(number),
        )
