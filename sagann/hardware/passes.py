"""Passes: the work of the kernels between two stops of their sequencer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sagann.hardware.design import KernelDesign
from sagann.hardware.program import Array, ScatterProgram


class Region(NamedTuple):
    """Accumulators of destinations, in every bank from one address on."""

    base: int = 0
    chunks: int = 0
    "Of a destination."

    def accumulator(self, destination: Array, design: KernelDesign) -> Array:
        """The address of a destination's first one in its bank."""
        return self.base + destination // design.scatter_pes * self.chunks


_NOWHERE = Region()


class Parameters(NamedTuple):
    """Weights, for a row of the array, or biases, in the row after its last one, of a tile of columns."""

    row: int
    address: int
    values: Array
    "float32 [array_columns]."


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """The settings of the kernels. Fields that a pass does not use are zero."""

    loads: tuple[Parameters, ...] | None = None
    "Parameters that are written into the array; nothing else is done then."
    program: ScatterProgram | None = None

    rows: int = 0
    "Rows that arrive: from external memory, or from the memory of rows."
    rows_on_chip: bool = False
    rows_from: int = 0
    "Entry of the first one in the memory of rows."
    chained: bool = False
    "Whether rows arrive while the array computes them."
    row_chunks: int = 0
    chunks: int = 0
    "Chunks that an edge adds."
    halves_of_rows: bool = False
    "Whether an edge's half is the half of its row that is added; otherwise, the half of its sums."
    sums: Region = _NOWHERE

    drains: Region = _NOWHERE
    "Sums that the array reads."
    grads: Region = _NOWHERE
    "Gradients that the array reads with these sums."
    gradient: bool = False
    "Whether the array sums gradients of weights; otherwise it multiplies by weights."
    begins_sums: bool = False
    reads_out: bool = False
    "Whether they are read out; nothing else is done then."
    tiles: int = 0
    weights: int = 0
    "Address of the weights, or of the sums of their gradients."
    biases: int = 0

    rectifies: bool = False
    "Whether results are rectified, and masks of those that are positive kept."
    marks_to: int = 0
    keeps: bool = False
    "Whether results go to the memory of rows; otherwise to external memory."
    rows_to: int = 0
    masks: bool = False
    "Whether what is drained (``grads``, or else ``drains``) is masked."
    marks_from: int = 0
    mark_tiles: int = 0
    "Masks of a row."

    @property
    def count(self) -> int:
        """Words of the program, or parameters."""
        if self.loads is not None:
            return len(self.loads)
        return 0 if self.program is None else self.program.num_words
