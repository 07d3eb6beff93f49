"""Gather of rows on a CUDA device: a program copies a few rows, a tile of words at a time.

A row is a sequence of words of 4 bytes, or of 2 or 1 where its bytes or an address are no multiple. Consecutive threads read consecutive
words, so a warp's load of 4-byte words is a line of 128 bytes.

Host memory is read in requests of whole lines. A row that begins within a line would make each warp's load touch two lines, and so
nearly double the requests. Therefore tiles begin at a line's beginning, and the lanes before the row are masked.

Legend: p_ pointers, b_ values, o_ offsets, m_ masks.

References:
    Min et al., Large Graph Convolutional Network Training with GPU-Oriented Data Communication Architecture, VLDB 2021: reads of the host's
    memory that are aligned to lines. Their warps shift the words of a row around; here the first tile has masked lanes instead.
"""

# Arguments of Triton's functions are tensors where no type is stated.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from sagann.kernels.edge.gpu.layout import power_of_two
from sagann.kernels.row_gather import DEALT_BITS

if TYPE_CHECKING:
    from sagann.kernels.row_gather import RowSources

LINE_BYTES = 128
"Bytes of a request to memory."
TILE = 128
"Most words of a row that a program copies at a time."
WORDS = 512
"Words of all rows that a program copies at a time: four for each thread of four warps."
_WORDS = {4: torch.int32, 2: torch.int16, 1: torch.int8}


@triton.jit(do_not_specialize=["num_ids", "num_rows", "shift"])
def copy_rows(
    p_ids,
    p_places,
    p_addresses,
    p_out,
    p_counts,
    num_ids,
    num_rows,
    width,
    span,
    shift,
    rows: tl.constexpr,
    tile: tl.constexpr,
    line: tl.constexpr,
    word_bytes: tl.constexpr,
    num_banks: tl.constexpr,
    num_counts: tl.constexpr,
    num_dealt: tl.constexpr,
    dealt_bits: tl.constexpr,
):
    o_row = tl.program_id(0).to(tl.int64) * rows + tl.arange(0, rows)
    m_row = o_row < num_ids
    row = tl.load(p_ids + o_row, mask=m_row, other=-1).to(tl.int64)
    m_known = (row >= 0) & (row < num_rows)
    if p_places is None:
        place = row
        if num_dealt > 1:
            block = row >> dealt_bits
            place = (
                ((block % num_dealt) << shift)
                | ((block // num_dealt) << dealt_bits)
                | (row & ((1 << dealt_bits) - 1))
            )
        place = tl.where(m_known, place, -1)
    else:
        place = tl.load(p_places + row, mask=m_known, other=-1).to(tl.int64)
    m_here = place >= 0
    source = tl.where(m_here, place >> shift, 0)
    if p_counts is not None:
        # Padding is in no column.
        column = tl.where(m_here, source + 2, tl.where(m_known, 1, tl.where(row == -1, -1, 0)))
        o_count = tl.arange(0, num_counts)
        b_count = tl.sum((column[:, None] == o_count[None, :]).to(tl.int64), 0)
        p_bank = p_counts + tl.program_id(0) % num_banks * num_counts
        tl.atomic_add(p_bank + o_count, b_count, mask=b_count > 0, sem="relaxed")
    position = tl.where(m_here, place - (source << shift), 0)
    # Rows that lie nowhere are left alone.
    m_row &= m_here | (m_known == 0)
    address = tl.load(p_addresses + source) + position * (width * word_bytes)
    # Words from the beginning of a line to that of the row.
    lead = (address & (line * word_bytes - 1)) // word_bytes
    p_row = address.to(tl.pointer_type(p_out.dtype.element_ty))
    for first in range(0, span, tile):
        o_word = (first + tl.arange(0, tile)).to(tl.int64)[None, :] - lead[:, None]
        m_word = m_row[:, None] & (o_word >= 0) & (o_word < width)
        b_word = tl.load(p_row[:, None] + o_word, mask=m_word & m_here[:, None], other=0)
        tl.store(p_out + (o_row * width)[:, None] + o_word, b_word, mask=m_word)


def gather_rows(sources: RowSources, ids: Tensor, out: Tensor, counts: Tensor | None = None) -> None:
    """See :func:`sagann.kernels.row_gather.gather_rows`. Work is queued on the current stream of the device that reads."""
    if not out.numel():
        return
    row_bytes = out.shape[1]
    beginnings = [row_bytes, out.data_ptr(), *(tensor.data_ptr() for tensor in sources.tensors)]
    word_bytes = next(size for size in _WORDS if all(place % size == 0 for place in beginnings))
    width = row_bytes // word_bytes
    tile = min(TILE, power_of_two(width))
    line = min(tile, LINE_BYTES // word_bytes)
    # Rows that all begin at a line's beginning need no lanes before them.
    is_aligned = all(place % (line * word_bytes) == 0 for place in beginnings)
    rows = WORDS // tile
    with torch.cuda.device_of(out):
        copy_rows[(triton.cdiv(len(ids), rows),)](
            ids,
            sources.places,
            sources.addresses,
            out.view(_WORDS[word_bytes]),
            counts,
            len(ids),
            sources.num_rows,
            width,
            width if is_aligned else width + line - 1,
            sources.shift,
            rows=rows,
            tile=tile,
            line=line,
            word_bytes=word_bytes,
            num_banks=1 if counts is None else counts.shape[0],
            num_counts=1 if counts is None else counts.shape[1],
            num_dealt=len(sources.tensors) if sources.places is None else 1,
            dealt_bits=DEALT_BITS,
            num_warps=4,
        )
