"""Values of the kernels, bit by bit: passes carried out by :mod:`sagann.hardware.arithmetic`.

Gradients of weights that are infinite or NaN are read out as they are; the circuit, which multiplies them by unit vectors, gives NaN for all of
their chunk, and if that is the first one, for the biases. Those that are -0 are read out as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sagann.hardware.arithmetic import aggregated, mapped, outer
from sagann.hardware.design import KernelDesign
from sagann.hardware.passes import Pass
from sagann.hardware.program import Array


def run_values(passes: Sequence[Pass], rows: Mapping[int, Array], design: KernelDesign) -> list[Array]:
    """The results of passes, given the rows that come from external memory by the number of their pass."""
    values = Values(design)
    return [values.run(each, rows.get(number)) for number, each in enumerate(passes)]


class Values:
    """The memories of an accelerator. A result of a pass is kept by its first address."""

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        self._sums: dict[int, Array] = {}
        self._rows: dict[int, Array] = {}
        self._marks: dict[int, Array] = {}
        self._weights = np.zeros((design.array_weights, design.lanes, design.array_columns), dtype=np.float32)
        self._biases = np.zeros((design.array_weights, design.array_columns), dtype=np.float32)
        self._bias_grads = np.zeros_like(self._biases)

    def run(self, settings: Pass, arriving: Array | None = None) -> Array:
        """Carry a pass out.

        Args:
            arriving: rows from external memory, float32 [rows, F].
        Returns:
            The results for external memory, float32 [number, array_columns].
        """
        results = np.empty((0, self._design.array_columns), dtype=np.float32)
        if settings.loads is not None:
            for row, address, values in settings.loads:
                if row == self._design.lanes:
                    self._biases[address] = values
                else:
                    self._weights[address, row] = values
        elif settings.reads_out:
            results = self._read_out(settings)
        elif settings.chained:
            self._rows[settings.rows_to] = self._map(settings)
            self._aggregate(settings, self._rows[settings.rows_from])
        else:
            if settings.rows:
                self._aggregate(settings, self._rows[settings.rows_from] if arriving is None else arriving)
            if settings.gradient:
                self._sum_gradients(settings)
            elif settings.drains.chunks:
                results = self._map(settings)
            if settings.keeps:
                self._rows[settings.rows_to], results = results, results[:0]
        return results.reshape(-1, self._design.array_columns)

    def _aggregate(self, settings: Pass, rows: Array) -> None:
        """Add rows to the sums of their destinations."""
        program, width = settings.program, settings.chunks * self._design.lanes
        assert program is not None
        padded = np.zeros((settings.rows, settings.row_chunks * self._design.lanes), dtype=np.float32)
        padded[:, : rows.shape[1]] = rows[:, : padded.shape[1]]
        is_edge = (program.drains == 0)[:, None] & (program.destination >= 0)
        row, destination, half, coefficients = (
            field[is_edge] for field in (program.row, program.destination, program.half, program.coefficient)
        )
        # Halves of rows, or of sums, are rows or sums of their own.
        if settings.halves_of_rows:
            row = row * (settings.row_chunks // settings.chunks) + half
        else:
            destination = destination * (settings.sums.chunks // settings.chunks) + half
        order = np.argsort(destination, kind="stable")
        indptr = np.searchsorted(destination[order], np.arange(int(destination.max()) + 2))
        sums = aggregated(indptr, row[order], coefficients[order], padded.reshape(-1, width))
        self._sums[settings.sums.base] = sums.reshape(-1, settings.sums.chunks * self._design.lanes)

    def _masked(self, settings: Pass, rows: Array) -> Array:
        if not settings.masks:
            return rows
        marks = self._marks[settings.marks_from][:, : rows.shape[1]]
        return np.where(marks, rows[:, : marks.shape[1]], np.float32(0))

    def _matrix(self, address: int, chunks: int, tiles: int) -> Array:
        """Weights, or gradients of them, [chunks * lanes, tiles * columns]."""
        held = self._weights[address : address + chunks * tiles].reshape(chunks, tiles, *self._weights.shape[1:])
        return np.ascontiguousarray(held.transpose(0, 2, 1, 3)).reshape(chunks * self._design.lanes, -1)

    def _map(self, settings: Pass) -> Array:
        rows = self._masked(settings, self._sums[settings.drains.base])
        weights = self._matrix(settings.weights, settings.drains.chunks, settings.tiles)
        bias = self._biases[settings.biases : settings.biases + settings.tiles].ravel()
        results = mapped(rows, weights, bias, lanes=self._design.lanes, relu=settings.rectifies)
        if settings.rectifies:
            self._marks[settings.marks_to] = results != 0
        return results

    def _sum_gradients(self, settings: Pass) -> None:
        rows, chunks, tiles = self._sums[settings.drains.base], settings.drains.chunks, settings.tiles
        grads = np.zeros((len(rows), tiles * self._design.array_columns), dtype=np.float32)
        taken = self._masked(settings, self._sums[settings.grads.base])
        grads[:, : taken.shape[1]] = taken
        total = self._matrix(settings.weights, chunks, tiles)
        biases = self._bias_grads[settings.biases : settings.biases + tiles]
        if settings.begins_sums:
            total[:], biases[:] = 0, 0
        outer(rows, grads, total)
        outer(np.ones((len(rows), 1), dtype=np.float32), grads, biases.reshape(1, -1))
        held = total.reshape(chunks, self._design.lanes, tiles, -1).transpose(0, 2, 1, 3)
        self._weights[settings.weights : settings.weights + chunks * tiles] = held.reshape(
            -1, *self._weights.shape[1:]
        )

    def _read_out(self, settings: Pass) -> Array:
        weights = self._matrix(settings.weights, settings.drains.chunks, settings.tiles)
        biases = self._bias_grads[settings.biases : settings.biases + settings.tiles]
        return np.concatenate([weights, biases.reshape(1, -1)]) + np.float32(0)
