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
PADDING = -1
"An id that stands for no row: a row of zeros, which is not counted."
UNKNOWN, FAR, FIRST = range(3)
"Columns of counts: ids of no row, rows that lie nowhere, and rows of the first source, before those of the others."
BANKS = 64
"Rows of counts, over which programs are spread: they would wait for each other at one address."
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

    @property
    def num_rows(self) -> int:
        """Number of rows that have ids."""
        return sum(map(len, self.tensors)) if self.places is None else len(self.places)

    def new_counts(self) -> Tensor:
        """Counters of zero, int64 [BANKS, columns], on the device that reads; each count is a sum over the banks."""
        columns = 1 << (len(self.tensors) + FIRST - 1).bit_length()
        return torch.zeros((BANKS, columns), dtype=torch.int64, device=self.addresses.device)


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


def gather_rows(sources: RowSources, ids: Tensor, out: Tensor, counts: Tensor | None = None) -> None:
    """Copy rows ``ids`` from where they lie to ``out``, uint8 [n, bytes of a row]. Rows whose place is NOWHERE stay, ids of no row give zeros.

    ``counts``, of :meth:`RowSources.new_counts`, gain the rows by source.
    """
    if not out.numel():
        return
    if out.device.type == "cpu":
        gather_naive(sources, ids, out, counts)
    else:
        # Imported here: it needs Triton.
        import_module("sagann.kernels.row_gather.gpu").gather_rows(sources, ids, out, counts)


def gather_naive(sources: RowSources, ids: Tensor, out: Tensor, counts: Tensor | None = None) -> None:
    """The plain twin of :func:`gather_rows`, for sources on one device."""
    is_known = (ids >= 0) & (ids < sources.num_rows)
    places = torch.where(is_known, ids, 0).long()
    if sources.places is not None:
        places = sources.places[places].long()
    elif len(sources.tensors) > 1:
        block, count = places >> DEALT_BITS, len(sources.tensors)
        own = block // count << DEALT_BITS | places & (1 << DEALT_BITS) - 1
        places = block % count << sources.shift | own
    source = torch.where(is_known, places >> sources.shift, NOWHERE)
    out[~is_known] = 0
    for number, tensor in enumerate(sources.tensors):
        is_here = source == number
        out[is_here] = tensor[places[is_here] - (number << sources.shift)]
    if counts is not None:
        columns = torch.where(is_known, source + FIRST, UNKNOWN)[ids != PADDING]
        counts[0] += torch.bincount(columns, minlength=counts.shape[1])
