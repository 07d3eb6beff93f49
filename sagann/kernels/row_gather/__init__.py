"""Gather of rows that lie in several places: memory of a device, of its peers, and of the host.

All places are read in one pass. A table has the address of each source of rows, and an index has the place of each row: the number of its
source and its position there. A source is any memory that the device can address: its own, that of a linked peer, or pinned memory of the
host, whose rows cross the bus as they are read (zero copy). Rows are copied bit by bit, so their type does not matter.

References:
    Min et al., Graph Neural Network Training with Data Tiering, 2021, Sec. 4.1, 4.2 and App. A.3. We differ in that an index finds the
    rows, so that features need not be reordered by score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module

import torch
from torch import Tensor

NOWHERE = -1
"The place of a row that lies in no source."
DEALT_BITS = 12
"Rows that are dealt to several sources go in blocks of 4,096: the place of each follows from its id."


class RowSources:
    """Sources of rows, uint8 [num_rows_there, bytes of a row], and the place of each row in them.

    ``places`` are int32 or int64 [num_rows] on the device that reads: ``source << shift | position``, or NOWHERE; None where one source has all rows
    in their order, or blocks of them are dealt to several sources in turn (:func:`dealt_to`), and then ``device`` reads.
    """

    def __init__(
        self, tensors: Sequence[Tensor], places: Tensor | None, shift: int, *, device: torch.device | None = None
    ) -> None:
        assert all(tensor.dtype == torch.uint8 and tensor.is_contiguous() for tensor in tensors)
        assert places is not None or device is not None
        self.tensors, self.places, self.shift = tuple(tensors), places, shift
        self.addresses = torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.int64).to(
            device if places is None else places.device
        )
        "int64 [num_sources], on the device that reads."


def num_dealt(number: int, count: int, num_rows: int) -> int:
    """Number of rows that are dealt to one of ``count`` sources."""
    whole, rest = divmod(num_rows, count << DEALT_BITS)
    return (whole << DEALT_BITS) + min(max(rest - (number << DEALT_BITS), 0), 1 << DEALT_BITS)


def dealt_to(number: int, count: int, rows: Tensor, *, step: int) -> Iterator[Tensor]:
    """The rows that are dealt to one of ``count`` sources, in their order, in pieces of at most ``step`` blocks."""
    size = 1 << DEALT_BITS
    whole = len(rows) // (size * count)
    blocks = rows[: whole * count * size].view(whole, count, size, *rows.shape[1:])
    for first in range(0, whole, step):
        yield blocks[first : first + step, number].flatten(0, 1)
    begin = (whole * count + number) * size
    yield rows[begin : begin + size]


def shift_of(num_rows: int) -> int:
    """Number of bits that hold any position below ``num_rows``."""
    return max(1, (num_rows - 1).bit_length())


def place_dtype(num_sources: int, shift: int) -> torch.dtype:
    """The narrowest type of an index of places.

    Example:
        >>> place_dtype(9, shift_of(111_000_000)), place_dtype(17, shift_of(111_000_000))
        (torch.int32, torch.int64)
    """
    return torch.int32 if num_sources << shift <= 2**31 else torch.int64


def gather_rows(sources: RowSources, ids: Tensor, out: Tensor) -> None:
    """Copy rows ``ids``, which are not checked, from where they lie to ``out``, uint8 [n, bytes of a row]. Rows whose place is NOWHERE stay."""
    if not out.numel():
        return
    if out.device.type == "cpu":
        gather_naive(sources, ids, out)
    else:
        # Imported here: it needs Triton.
        import_module("sagann.kernels.row_gather.gpu").gather_rows(sources, ids, out)


def gather_naive(sources: RowSources, ids: Tensor, out: Tensor) -> None:
    """The plain twin of :func:`gather_rows`, for sources on one device."""
    places = ids.long()
    if sources.places is not None:
        places = sources.places[places].long()
    elif len(sources.tensors) > 1:
        block, count = places >> DEALT_BITS, len(sources.tensors)
        own = block // count << DEALT_BITS | places & (1 << DEALT_BITS) - 1
        places = block % count << sources.shift | own
    for number, tensor in enumerate(sources.tensors):
        is_here = places >> sources.shift == number
        out[is_here] = tensor[places[is_here] - (number << sources.shift)]
