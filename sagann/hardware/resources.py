"""Parts of an FPGA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


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


def total(parts: Mapping[str, tuple[int, Resources]]) -> Resources:
    """What parts take together, of which there are several each."""
    names = [each.name for each in fields(Resources)]
    return Resources(
        **{name: sum(number * getattr(each, name) for number, each in parts.values()) for name in names}
    )
