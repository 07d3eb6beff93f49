"""Streams of the kernels: passes, words and rows as the host and external memory give them, and how the host encodes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from amaranth.lib import data, stream
from amaranth.utils import ceil_log2, exact_log2

from sagann.hardware.design import KernelDesign
from sagann.hardware.passes import Pass
from sagann.hardware.program import Array

COUNT_BITS = 32


def pass_layout(design: KernelDesign) -> data.StructLayout:
    """The settings of a :class:`sagann.hardware.passes.Pass` for the sequencer, by the names of its fields."""
    chunks, tiles = range(design.row_chunks + 1), range(design.array_weights + 1)
    address, entry, mark = (
        ceil_log2(max(2, depth)) for depth in (design.array_weights, design.row_entries, design.mask_entries)
    )
    return data.StructLayout(
        {
            "loads": 1,
            "count": COUNT_BITS,
            "rows": COUNT_BITS,
            "rows_on_chip": 1,
            "rows_from": entry,
            "chained": 1,
            "row_chunks": chunks,
            "chunks": chunks,
            "halves_of_rows": 1,
            "drain_chunks": chunks,
            "grad_chunks": chunks,
            "gradient": 1,
            "begins_sums": 1,
            "reads_out": 1,
            "tiles": tiles,
            "weights": address,
            "biases": address,
            "rectifies": 1,
            "marks_to": mark,
            "keeps": 1,
            "rows_to": entry,
            "masks": 1,
            "marks_from": mark,
            "mark_tiles": tiles,
        }
    )


def chunk_layout(design: KernelDesign) -> data.ArrayLayout:
    """A chunk of a row: a float for each lane."""
    return data.ArrayLayout(32, design.lanes)


def beat_layout(design: KernelDesign) -> data.ArrayLayout:
    """Chunks of a row that external memory gives in a cycle."""
    return data.ArrayLayout(chunk_layout(design), design.beat_chunks)


def edge_layout(design: KernelDesign) -> data.StructLayout:
    """An edge of a word, for the scatter PE and the bank of its place in the word."""
    return data.StructLayout(
        {
            "valid": 1,
            "slot": exact_log2(design.window_rows),
            "accumulator": ceil_log2(design.bank_chunks),
            "half": 1,
            "first": 1,
            "coefficient": 32,
        }
    )


def word_layout(design: KernelDesign) -> data.StructLayout:
    """A word: edges, or ``rows`` destinations to drain, whose accumulator stands in the first edge."""
    return data.StructLayout(
        {
            "edges": data.ArrayLayout(edge_layout(design), design.scatter_pes),
            "drain": 1,
            "grads": 1,
            "rows": range(design.scatter_pes + 1),
            "needs": COUNT_BITS,
            "releases": COUNT_BITS,
        }
    )


def drained_stream(design: KernelDesign) -> stream.Signature:
    """A chunk of each of n destinations, which is taken as it comes, with the fields of their word."""
    layout = {
        "chunks": data.ArrayLayout(chunk_layout(design), design.scatter_pes),
        "grads": 1,
        "rows": range(design.scatter_pes + 1),
    }
    return stream.Signature(data.StructLayout(layout), always_ready=True)


def tag_layout(design: KernelDesign) -> data.StructLayout:
    """Labels sums on their way through the array: their row, their tile of columns, and whether their chunk is the first or last of the row."""
    return data.StructLayout(
        {
            "valid": 1,
            "row": range(max(2, design.scatter_pes)),
            "tile": range(max(2, design.array_weights)),
            "first": 1,
            "last": 1,
        }
    )


def parameters_layout(design: KernelDesign) -> data.StructLayout:
    """Weights of a row of the array, which its multiply-accumulators write to an address; or biases of a tile, in the row after its last."""
    address = ceil_log2(max(2, design.array_weights))
    return data.StructLayout({"row": range(design.lanes + 1), "address": address, "values": columns_layout(design)})


def results_stream(design: KernelDesign) -> stream.Signature:
    """A tile of a row, and where a value is not zero: where a rectified one is positive, or NaN. Rows and their tiles come in order."""
    layout = {"mask": design.array_columns, "values": columns_layout(design)}
    return stream.Signature(data.StructLayout(layout), always_ready=True)


def columns_layout(design: KernelDesign) -> data.ArrayLayout:
    """A float for each column of the array."""
    return data.ArrayLayout(32, design.array_columns)


def encoded_pass(settings: Pass, design: KernelDesign) -> dict[str, int]:
    """A pass as a value of :func:`pass_layout`."""
    encoded = {
        "loads": settings.loads is not None,
        "drain_chunks": settings.drains.chunks,
        "grad_chunks": settings.grads.chunks,
    }
    return {
        name: int(encoded[name] if name in encoded else getattr(settings, name)) for name, _ in pass_layout(design)
    }


def encoded_words(settings: Pass, design: KernelDesign) -> list[dict[str, Any]]:
    """The words of a pass as values of :func:`word_layout`."""
    program, n = settings.program, design.scatter_pes
    assert program is not None
    places = settings.sums.accumulator(program.destination, design)
    for is_grads, region in ((False, settings.drains), (True, settings.grads)):
        words = (program.drains > 0) & (program.is_grads == is_grads)
        places[words] = region.accumulator(program.destination[words], design)

    def edge(word: int, number: int) -> dict[str, int]:
        destination = int(program.destination[word, number])
        return {
            "valid": destination >= 0,
            "slot": int(program.row[word, number]) % design.window_rows,
            "accumulator": int(places[word, number]) if destination >= 0 else 0,
            "half": int(program.half[word, number]),
            "first": int(program.is_first[word, number]),
            "coefficient": int(program.coefficient[word, number].view("uint32")),
        }

    return [
        {
            "edges": [edge(word, number) for number in range(n)],
            "drain": int(program.drains[word] > 0),
            "grads": int(program.is_grads[word]),
            "rows": int(program.drains[word]),
            "needs": int(program.needs[word]),
            "releases": int(program.releases[word]),
        }
        for word in range(program.num_words)
    ]


def encoded_rows(rows: Array, design: KernelDesign) -> list[Any]:
    """Rows as values of :func:`beat_layout`."""
    chunks = design.chunks(rows.shape[1])
    padded = np.zeros((len(rows), design.beats(chunks) * design.beat_chunks * design.lanes), np.float32)
    padded[:, : rows.shape[1]] = rows
    encoded: list[Any] = padded.view(np.uint32).reshape(-1, design.beat_chunks, design.lanes).tolist()
    return encoded


def payloads_of(
    passes: Sequence[Pass], rows: Mapping[int, Array], design: KernelDesign
) -> dict[str, list[tuple[int, Any]]]:
    """What the streams of the accelerator give for passes besides these, by name, with the number of the pass; ``rows`` by that number."""
    return {
        "rows": [(number, beat) for number in rows for beat in encoded_rows(rows[number], design)],
        "words": [
            (number, word)
            for number, each in enumerate(passes)
            if each.program
            for word in encoded_words(each, design)
        ],
        "parameters": [
            (number, {"row": it.row, "address": it.address, "values": it.values.view(np.uint32).tolist()})
            for number, each in enumerate(passes)
            for it in each.loads or ()
        ],
    }
