"""How a function's values lie in registers: all lanes of a row at once, or one tile of features after the other.

Where no op moves values between features, a wide row is done tile by tile, so that accumulators and operands stay
in registers; otherwise rows are resident.
"""

from __future__ import annotations

from dataclasses import dataclass

from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.kinds import feature_width, kind_of, lanes

VECTOR_BYTES = 64
# Vector registers that a tile's accumulators, rows and temporaries may take together; 32 exist.
REGISTERS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a kernel holds its values."""

    width: int
    "Lanes of a vector register."
    num_features: int
    "Features that are cut into tiles; 0 where rows are resident."
    tile: int
    "Features of a tile."

    @property
    def tiles(self) -> list[int]:
        """The widths of the tiles, in order."""
        if not self.num_features:
            return [0]
        full, rest = divmod(self.num_features, self.tile)
        return [self.tile] * full + ([rest] if rest else [])


def choose_layout(function: EdgeFunction) -> Layout:
    """The layout for a function."""
    values = function.values
    width = VECTOR_BYTES // (8 if any(kind_of(value) == "f8" for value in values) else 4)
    num_features = feature_width(function)
    if num_features is None:
        return Layout(width=width, num_features=0, tile=0)
    chunks = max(1, REGISTERS // _pressure(function))
    chunks = 1 << (min(chunks, 8).bit_length() - 1)
    return Layout(width=width, num_features=num_features, tile=chunks * width)


def _pressure(function: EdgeFunction) -> int:
    """Registers that one chunk of features takes: accumulators, loaded rows and what is computed of them."""
    held = sum(output.reduction.registers for output in function.outputs)
    held += sum(1 for given in function.inputs if lanes(given) > 1)
    held += sum(1 for op in function.ops if lanes(op) > 1 and op.op in ("exp", "sigmoid", "tanh", "expm1")) * 2
    # Rows that are reduced as they are loaded need no registers for what is computed of them.
    return held + any(lanes(op) > 1 for op in function.ops)
