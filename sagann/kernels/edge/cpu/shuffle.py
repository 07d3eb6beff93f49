"""Moving lanes: broadcasts, slices, concatenations and reductions over features. Their places are constants of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from sagann.kernels.edge.cpu.block import I32, Block, chunks_of, emitted, pack
from sagann.kernels.edge.cpu.elementwise import BINARY

Lane = tuple[ir.Value, int]
"A lane of a chunk; the chunk may be a scalar."


def _lanes(builder: ir.IRBuilder, block: Block, value: ir.Value) -> list[Lane]:
    chunks = chunks_of(builder, block, value)
    return [(chunks[lane // block.width], lane % block.width) for lane in range(block.lanes)]


def _assemble(builder: ir.IRBuilder, block: Block, lanes: Sequence[Lane]) -> ir.Value:
    if block.lanes == 1:
        return _extract(builder, *lanes[0])
    chunks = [
        _assemble_chunk(builder, block, lanes[first : first + block.width])
        for first in range(0, block.lanes, block.width)
    ]
    return pack(builder, block, chunks)


def _extract(builder: ir.IRBuilder, chunk: ir.Value, position: int) -> ir.Value:
    if not isinstance(chunk.type, ir.VectorType):
        return chunk
    return builder.extract_element(chunk, ir.Constant(I32, position))


def _assemble_chunk(builder: ir.IRBuilder, block: Block, lanes: Sequence[Lane]) -> ir.Value:
    """Merge in one source chunk after the other, one shuffle each."""
    width = block.width
    result = ir.Constant(block.chunk, ir.Undefined)
    index_vector = ir.VectorType(I32, width)
    for source in dict.fromkeys(chunk for chunk, _ in lanes):
        taken = {place: position for place, (chunk, position) in enumerate(lanes) if chunk is source}
        if not isinstance(source.type, ir.VectorType):
            for place in taken:
                result = builder.insert_element(result, source, ir.Constant(I32, place))
            continue
        mask = [width + taken[place] if place in taken else place for place in range(width)]
        result = builder.shuffle_vector(result, source, ir.Constant(index_vector, mask))
    return result


def picker(picks: Sequence[int], width: int) -> Callable[..., Any]:
    """``pick(a)``: lane i of the result is lane ``picks[i]`` of a."""
    return _mover(picks, width, 1)


def joiner(picks: Sequence[int], width: int) -> Callable[..., Any]:
    """``join(a, b)``: lane i of the result is lane ``picks[i]`` of a and b side by side."""
    return _mover(picks, width, 2)


def _mover(picks: Sequence[int], width: int, num_operands: int) -> Callable[..., Any]:
    picks = tuple(picks)

    @emitted(lambda *blocks: Block(blocks[0].kind, len(picks), width), *[None] * num_operands)
    def move(builder: ir.IRBuilder, signature: Any, *values: ir.Value) -> ir.Value:
        operands = zip(signature.args, values, strict=True)
        lanes = [lane for block, value in operands for lane in _lanes(builder, block, value)]
        return _assemble(builder, signature.return_type, [lanes[index] for index in picks])

    return move


def reducer(operation: str, outer: int, size: int, inner: int, width: int) -> Callable[..., Any]:
    """``reduce(a)``: a as [outer, size, inner], reduced over the middle: [outer, inner] lanes."""
    build = BINARY[operation]

    @emitted(lambda a: Block(a.kind, outer * inner, width), None)
    def reduce(builder: ir.IRBuilder, signature: Any, value: ir.Value) -> ir.Value:
        (a,), block = signature.args, signature.return_type
        lanes = _lanes(builder, a, value)
        if inner == 1 and size > 1:
            groups = [lanes[first : first + size] for first in range(0, outer * size, size)]
            results = [_fold(builder, build, a, group) for group in groups]
            return _assemble(builder, block, [(result, 0) for result in results])
        total = None
        for middle in range(size):
            picked = [lanes[(group * size + middle) * inner + at] for group in range(outer) for at in range(inner)]
            term = chunks_of(builder, block, _assemble(builder, block, picked))
            total = term if total is None else [build(builder, x, y) for x, y in zip(total, term, strict=True)]
        return pack(builder, block, total or [])

    return reduce


def _fold(builder: ir.IRBuilder, build: Any, block: Block, lanes: Sequence[Lane]) -> ir.Value:
    """Reduce consecutive lanes to a scalar: whole chunks first, then halves of the last."""
    width = block.width
    parts = []
    position = 0
    while position < len(lanes):
        start = lanes[position][1]
        count = min(width - start, len(lanes) - position)
        # A power of two that divides into halves.
        count = 1 << (count.bit_length() - 1)
        parts.append((lanes[position][0], start, count))
        position += count
    sums: dict[int, ir.Value] = {}
    for chunk, start, count in parts:
        vector = _slice(builder, chunk, start, count)
        sums[count] = build(builder, sums[count], vector) if count in sums else vector
    # Larger vectors are halved until they meet the smaller ones.
    while max(sums) > 1:
        count = max(sums)
        vector = sums.pop(count)
        half = count // 2
        folded = build(builder, _slice(builder, vector, 0, half), _slice(builder, vector, half, half))
        sums[half] = build(builder, sums[half], folded) if half in sums else folded
    return sums[1]


def _slice(builder: ir.IRBuilder, chunk: ir.Value, start: int, count: int) -> ir.Value:
    if not isinstance(chunk.type, ir.VectorType):
        return chunk
    if count == 1:
        return _extract(builder, chunk, start)
    if start == 0 and count == chunk.type.count:
        return chunk
    mask = ir.Constant(ir.VectorType(I32, count), list(range(start, start + count)))
    return builder.shuffle_vector(chunk, chunk, mask)
