"""What kernels take of an FPGA, counted from their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

from sagann.hardware.design import KernelDesign

_VENDOR_MUL_DSP, _VENDOR_ADD_DSP = 3, 2
"DSP slices of AMD's float32 multiplier (max usage) and adder (full usage), which high-level synthesis takes at 300 MHz."
_LUT_DEPTH = 256
"Deepest memory that is made of LUTs."
_URAM = (4096, 72)
_BRAM = (512, 72)
"Words and bits of a block."


@dataclass(frozen=True, kw_only=True, slots=True)
class Resources:
    """Parts of an FPGA."""

    lut: int = 0
    "0 where they are not counted."
    dsp: int
    "Multipliers (DSP48E2)."
    uram: int
    "Blocks of 288 Kbit."
    bram: float
    "Blocks of 36 Kbit, or halves of one."

    def of(self, device: Resources) -> dict[str, float]:
        """The part of a device's that is taken."""
        return {each.name: getattr(self, each.name) / getattr(device, each.name) for each in fields(self)}


ALVEO_U250 = Resources(lut=1_728_000, dsp=12_288, uram=1_280, bram=2_688)
"Of the device, by AMD's data sheet DS962."


class _Memory(NamedTuple):
    copies: int
    depth: int
    bits: int

    def blocks(self, words: int, bits: int) -> int:
        return self.copies * -(-self.depth // words) * -(-self.bits // bits)


def num_operators(design: KernelDesign) -> tuple[int, int]:
    """Float32 multipliers and adders of the circuits."""
    lanes, macs = design.scatter_pes * design.lanes, design.lanes * design.array_columns
    return lanes + macs, lanes + macs + design.array_columns


def resources_of(design: KernelDesign) -> Resources:
    """What the circuits of a design take.

    References:
        Lin and Prasanna, HyScale-GNN, IPDPS 2023, Table IV.
    """
    n, chunk, columns = design.scatter_pes, 32 * design.lanes, 32 * design.array_columns
    memories = [
        _Memory(n, design.window_rows * design.row_chunks // design.beat_chunks, chunk * design.beat_chunks),
        _Memory(n, design.bank_chunks, chunk),
        _Memory(n, 2 * design.row_chunks, chunk),
        _Memory(n, -(-2 * design.row_chunks // design.tile_chunks), columns),
        _Memory(1, design.row_entries, chunk * design.entry_chunks),
        _Memory(1, design.mask_entries, design.array_columns),
        _Memory(design.lanes * design.array_columns, design.array_weights, 32),
        _Memory(1, design.array_weights, columns),
        _Memory(1, n * design.array_weights, columns),
    ]
    muls, adds = num_operators(design)
    return Resources(
        dsp=_VENDOR_MUL_DSP * muls + _VENDOR_ADD_DSP * adds,
        uram=sum(each.blocks(*_URAM) for each in memories if each.depth >= _URAM[0]),
        bram=sum(each.blocks(*_BRAM) for each in memories if _LUT_DEPTH < each.depth < _URAM[0]),
    )


def total(parts: Mapping[str, tuple[int, Resources]]) -> Resources:
    """What parts take together, of which there are several each."""
    names = [each.name for each in fields(Resources)]
    return Resources(
        **{name: sum(number * getattr(each, name) for number, each in parts.values()) for name in names}
    )
