"""The sizes of the kernels, and the delays of their pipelines."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from sagann.errors import InputError, shown

MUL_STAGES = 3
"Clock cycles of a float32 multiplier."
ADD_STAGES = 7
"Clock cycles of a float32 adder."
DELAY = 1 + MUL_STAGES
"Clock cycles from the issue of a chunk to the access of its bank: the local memory and the multiplier."
HAZARD = ADD_STAGES + 2
"Least clock cycles between two accesses of one accumulator: it is read, added to, and written."
_POWERS_OF_TWO = ("scatter_pes", "window_rows", "row_chunks", "beat_chunks")
_MOST = {"scatter_pes": 1 << 8, "lanes": 1 << 8, "frequency_hz": 10**11}
"Largest values; of other sizes 2^20."


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelDesign:
    """Sizes of the aggregate kernel, and of the update kernel: a systolic array with ``lanes`` rows. Those that count scatter PEs, rows of
    the window, chunks of a row or of a beat are powers of 2.

    References:
        Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-C and Table IV (n = 8, m = 2048).
    """

    scatter_pes: int = 8
    "Scatter PEs, and banks with a gather PE each: edges of a word (n in the paper)."
    lanes: int = 16
    "Floats of a chunk, which a PE multiplies in one clock cycle; 16 are a word of 512 bits."
    window_rows: int = 128
    "Rows that a scatter PE keeps in its local memory."
    row_chunks: int = 32
    "Most chunks of a row, or of the sums of a destination; with weights for a vertex's own row, both halves count."
    beat_chunks: int = 4
    "Chunks that external memory gives in one clock cycle: 4 of 16 floats at 300 MHz are 77 GB/s."
    bank_chunks: int = 1 << 15
    "Accumulators of a bank, each of ``lanes`` floats."

    array_columns: int = 128
    "Columns of the systolic array; with ``lanes`` rows it has m multiply-accumulators."
    array_weights: int = 256
    "Weights, and sums of their gradients, that a multiply-accumulator keeps."
    row_entries: int = 1 << 14
    "Parts of rows that results of the array are kept in, each as wide as a beat or as the array, whichever is wider."
    mask_entries: int = 1 << 15
    "Masks of ReLU, of a tile of a row each."

    frequency_hz: float = 3.0e8

    def __post_init__(self) -> None:
        wrong = []
        for name in (size.name for size in fields(self)):
            value, most = getattr(self, name), _MOST.get(name, 1 << 20)
            if name in _POWERS_OF_TWO and (value < 1 or value & (value - 1)):
                wrong.append(f"{name} is {value}, expected a power of 2")
            elif not 1 <= value <= most:
                wrong.append(f"{name} is {value}, expected {f'at most {most:,}' if value > most else 'at least 1'}")
        if self.beat_chunks > self.row_chunks:
            wrong.append(f"beat_chunks is {self.beat_chunks}, and a row has at most {self.row_chunks} chunks")
        # Results of the array return to the scatter PEs as chunks of lanes.
        tile_chunks, rest = divmod(self.array_columns, max(1, self.lanes))
        if rest or not tile_chunks or tile_chunks & (tile_chunks - 1):
            wrong.append(f"array_columns is {self.array_columns}, expected {self.lanes} lanes times a power of 2")
        if wrong:
            raise InputError(
                f"kernel cannot be built: {wrong[0]} (in KernelDesign)",
                hint="The design of the paper has 8 scatter PEs, 16 lanes and 128 columns.",
            )

    def with_sizes(self, sizes: Mapping[str, object] | str, *, where: str) -> KernelDesign:
        """The design with other values of some of its fields, by their names, or as a text: 'scatter_pes=16,window_rows=64'.

        Raises:
            InputError: there is no such field, a value is no number of its kind, or the kernels cannot be built.
        """
        if isinstance(sizes, str):
            try:
                sizes = tomllib.loads(sizes.replace(",", "\n"))
            except ValueError as error:
                raise InputError(
                    f"sizes of kernels are not NAME=VALUE: {shown(sizes)} (in {where})",
                    hint="Write them as scatter_pes=16,window_rows=128.",
                ) from error
        for name, value in sizes.items():
            if name not in (size.name for size in fields(self)):
                names = ", ".join(size.name for size in fields(self))
                raise InputError(
                    f"kernels have no such size: '{name:.60}' (in {where})", hint=f"The sizes are {names}."
                )
            kinds, expected = ((int, float), "a number") if name == "frequency_hz" else (int, "a whole number")
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise InputError(
                    f"{name} of kernels is not {expected}: {shown(value, 60)} (in {where})",
                    hint=f"Write {expected}.",
                )
        return replace(self, **sizes)

    @property
    def latency(self) -> int:
        """Clock cycles from a row's entry into the array to its sums."""
        return ADD_STAGES * self.lanes + MUL_STAGES + self.array_columns

    @property
    def settling(self) -> int:
        """Clock cycles that a pass waits for results that are under way, after all that it reads was read."""
        return self.latency + 2 * HAZARD

    @property
    def tile_chunks(self) -> int:
        """Chunks of a tile of columns."""
        return self.array_columns // self.lanes

    @property
    def entry_chunks(self) -> int:
        """Chunks of an entry of the memory of rows."""
        return max(self.tile_chunks, self.beat_chunks)

    def chunks(self, width: int) -> int:
        """Chunks of a row of ``width`` floats. InputError if a local memory is too narrow for it."""
        chunks = -(-width // self.lanes)
        if not 1 <= chunks <= self.row_chunks:
            raise InputError(
                f"rows do not fit the kernel: {width} floats, and it takes 1 to {self.row_chunks * self.lanes} "
                "(in KernelDesign.row_chunks)",
                hint="Generate a kernel with more chunks in a row.",
            )
        return chunks

    def beats(self, chunks: int) -> int:
        """Beats of external memory in which a row of so many chunks arrives."""
        return -(-chunks // self.beat_chunks)
