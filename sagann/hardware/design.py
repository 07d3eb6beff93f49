"""The sizes of the aggregate kernel, and the delays of its pipelines."""

from __future__ import annotations

from dataclasses import dataclass

from sagann.errors import InputError

MUL_STAGES = 3
"Clock cycles of a float32 multiplier."
ADD_STAGES = 7
"Clock cycles of a float32 adder."
DELAY = 1 + MUL_STAGES
"Clock cycles from the issue of a chunk to the access of its bank: the local memory and the multiplier."
HAZARD = ADD_STAGES + 2
"Least clock cycles between two accesses of one accumulator: it is read, added to, and written."
_POWERS_OF_TWO = ("scatter_pes", "window_rows", "row_chunks", "beat_chunks")


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelDesign:
    """Sizes of the aggregate kernel. All but ``lanes`` and ``bank_chunks`` are powers of 2.

    References:
        Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. IV-C and Table IV (n = 8).
    """

    scatter_pes: int = 8
    "Scatter PEs, and banks with a gather PE each: edges of a word (n in the paper)."
    lanes: int = 16
    "Floats of a chunk, which a PE multiplies in one clock cycle; 16 are a word of 512 bits."
    window_rows: int = 128
    "Rows that a scatter PE keeps in its local memory."
    row_chunks: int = 16
    "Most chunks of a row."
    beat_chunks: int = 4
    "Chunks that external memory gives in one clock cycle: 4 of 16 floats at 300 MHz are 77 GB/s."
    bank_chunks: int = 1 << 14
    "Accumulators of a bank, each of ``lanes`` floats."

    def __post_init__(self) -> None:
        for name in ("lanes", "bank_chunks", *_POWERS_OF_TWO):
            value = getattr(self, name)
            if value < 1 or (name in _POWERS_OF_TWO and value & (value - 1)):
                expected = "a power of 2" if name in _POWERS_OF_TWO else "at least 1"
                raise InputError(
                    f"kernel cannot be built: {name} is {value}, expected {expected} (in KernelDesign)",
                    hint="The design of the paper has 8 scatter PEs.",
                )
        if self.beat_chunks > self.row_chunks:
            raise InputError(
                f"kernel cannot be built: beat_chunks is {self.beat_chunks}, and a row has at most {self.row_chunks} chunks "
                "(in KernelDesign)",
                hint="A beat of external memory holds chunks of one row.",
            )

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
