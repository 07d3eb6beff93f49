"""Values of the kernels, bit by bit: passes carried out by :mod:`sagann.hardware.arithmetic`.

Gradients of weights that are infinite or NaN are read out as they are; the circuit, which multiplies them by unit vectors, gives NaN for all of
their chunk.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from sagann.hardware.arithmetic import aggregated, mapped, outer
from sagann.hardware.design import KernelDesign
from sagann.hardware.passes import Pass

Array: TypeAlias = np.ndarray[Any, Any]


class Values:
    """The memories of an accelerator. What a pass writes is found under the address at which it begins."""

    def __init__(self, design: KernelDesign) -> None:
        self._design = design
        self._sums: dict[int, Array] = {}
        self._rows: dict[int, Array] = {}
        self._marks: dict[int, Array] = {}
        self._weights = np.zeros((design.array_weights, design.lanes, design.array_columns), dtype=np.float32)
        self._biases = np.zeros((design.array_weights, design.array_columns), dtype=np.float32)
        self._bias_grads = np.zeros_like(self._biases)

    def run(self, each: Pass, arriving: Array | None = None) -> Array:
        """Carry a pass out.

        Args:
            arriving: rows from external memory, float32 [rows, F].
        Returns:
            The results for external memory, float32 [number, array_columns].
        """
        results = np.empty((0, self._design.array_columns), dtype=np.float32)
        if each.loads is not None:
            for row, address, values in each.loads:
                if row == self._design.lanes:
                    self._biases[address] = values
                else:
                    self._weights[address, row] = values
        elif each.reads_out:
            results = self._read_out(each)
        elif each.chained:
            self._rows[each.rows_to] = self._map(each)
            self._aggregate(each, self._rows[each.rows_from])
        else:
            if each.rows:
                self._aggregate(each, self._rows[each.rows_from] if arriving is None else arriving)
            if each.gradient:
                self._sum_gradients(each)
            elif each.drains.chunks:
                results = self._map(each)
            if each.keeps:
                self._rows[each.rows_to], results = results, results[:0]
        return results.reshape(-1, self._design.array_columns)

    def _aggregate(self, each: Pass, rows: Array) -> None:
        """Add rows to the sums of their destinations."""
        program, width = each.program, each.chunks * self._design.lanes
        assert program is not None
        padded = np.zeros((each.rows, each.row_chunks * self._design.lanes), dtype=np.float32)
        padded[:, : rows.shape[1]] = rows[:, : padded.shape[1]]
        is_edge = (program.drains == 0)[:, None] & (program.destination >= 0)
        row, destination, half, coefficients = (
            field[is_edge] for field in (program.row, program.destination, program.half, program.coefficient)
        )
        # Halves of rows, or of sums, are rows or sums of their own.
        if each.halves_of_rows:
            row = row * (each.row_chunks // each.chunks) + half
        else:
            destination = destination * (each.sums.chunks // each.chunks) + half
        order = np.argsort(destination, kind="stable")
        indptr = np.searchsorted(destination[order], np.arange(int(destination.max()) + 2))
        sums = aggregated(indptr, row[order], coefficients[order], padded.reshape(-1, width))
        self._sums[each.sums.base] = sums.reshape(-1, each.sums.chunks * self._design.lanes)

    def _masked(self, each: Pass, rows: Array) -> Array:
        if not each.masks:
            return rows
        marks = self._marks[each.marks_from][:, : rows.shape[1]]
        return np.where(marks, rows[:, : marks.shape[1]], np.float32(0))

    def _matrix(self, address: int, chunks: int, tiles: int) -> Array:
        """Weights, or gradients of them, [chunks * lanes, tiles * columns]."""
        held = self._weights[address : address + chunks * tiles].reshape(chunks, tiles, *self._weights.shape[1:])
        return np.ascontiguousarray(held.transpose(0, 2, 1, 3)).reshape(chunks * self._design.lanes, -1)

    def _map(self, each: Pass) -> Array:
        rows = self._masked(each, self._sums[each.drains.base])
        weights = self._matrix(each.weights, each.drains.chunks, each.tiles)
        bias = self._biases[each.biases : each.biases + each.tiles].ravel()
        results = mapped(rows, weights, bias, lanes=self._design.lanes, relu=each.rectifies)
        if each.rectifies:
            self._marks[each.marks_to] = results != 0
        return results

    def _sum_gradients(self, each: Pass) -> None:
        rows, chunks, tiles = self._sums[each.drains.base], each.drains.chunks, each.tiles
        grads = np.zeros((len(rows), tiles * self._design.array_columns), dtype=np.float32)
        taken = self._masked(each, self._sums[each.grads.base])
        grads[:, : taken.shape[1]] = taken
        total = self._matrix(each.weights, chunks, tiles)
        biases = self._bias_grads[each.biases : each.biases + tiles]
        if each.begins_sums:
            total[:], biases[:] = 0, 0
        outer(rows, grads, total)
        outer(np.ones((len(rows), 1), dtype=np.float32), grads, biases.reshape(1, -1))
        held = total.reshape(chunks, self._design.lanes, tiles, -1).transpose(0, 2, 1, 3)
        self._weights[each.weights : each.weights + chunks * tiles] = held.reshape(-1, *self._weights.shape[1:])

    def _read_out(self, each: Pass) -> Array:
        weights = self._matrix(each.weights, each.drains.chunks, each.tiles)
        biases = self._bias_grads[each.biases : each.biases + each.tiles]
        return np.concatenate([weights, biases.reshape(1, -1)])
