"""Layout of a function's values in vector registers: resident rows, or tiles of features (:mod:`sagann.kernels.edge.kinds`)."""

from __future__ import annotations

from dataclasses import dataclass

from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.kinds import feature_width, kind_of, lanes

VECTOR_BYTES = 64
# Vector registers for a tile's accumulators, rows and temporaries, of 32 that exist.
REGISTERS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How a kernel holds its values."""

    width: int
    "Lanes of a vector register."
    num_features: int
    "Number of features that are cut into tiles; 0 where rows are resident."
    tile: int
    "Number of features of a tile; 0 where rows are resident."

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
    """Registers that one chunk of features takes: accumulators, loaded rows and temporaries."""
    held = sum(output.reduction.registers for output in function.outputs)
    held += sum(1 for given in function.inputs if lanes(given) > 1)
    held += sum(1 for op in function.ops if lanes(op) > 1 and op.op in ("exp", "sigmoid", "tanh", "expm1")) * 2
    # Rows that are reduced as loaded need no registers for temporaries.
    return held + any(lanes(op) > 1 for op in function.ops)
