"""The circuits in Amaranth's simulator, which computes some hundred cycles a second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from amaranth.sim import Simulator

from sagann.hardware.design import KernelDesign
from sagann.hardware.passes import Pass
from sagann.hardware.program import Array
from sagann.hardware.rtl.accelerator import Accelerator
from sagann.hardware.rtl.streams import encoded_pass, encoded_words


def run_circuits(passes: Sequence[Pass], rows: Mapping[int, Array], design: KernelDesign) -> list[Array]:
    """The results of passes, given the rows that come from external memory by the number of their pass."""
    kernel, num_taken = Accelerator(design), 0
    results: list[list[list[int]]] = [[] for _ in passes]

    async def give_passes(ctx: Any) -> None:
        nonlocal num_taken
        # The last one ends when another one would be taken.
        for each in (*passes, Pass()):
            await _give(ctx, kernel.passes, encoded_pass(each, design))
            num_taken += 1

    async def give_rows(ctx: Any) -> None:
        for arriving in rows.values():
            padded = np.zeros(
                (len(arriving), design.beats(design.chunks(arriving.shape[1])), design.beat_bytes // 4)
            )
            padded.reshape(len(arriving), -1)[:, : arriving.shape[1]] = arriving
            beats = padded.astype(np.float32).view(np.uint32)
            for beat in beats.reshape(-1, design.beat_chunks, design.lanes).tolist():
                await _give(ctx, kernel.rows, beat)

    async def give_words(ctx: Any) -> None:
        for each in passes:
            for word in encoded_words(each, design) if each.program else ():
                await _give(ctx, kernel.words, word)

    async def give_parameters(ctx: Any) -> None:
        for it in (it for each in passes for it in each.loads or ()):
            values = it.values.view(np.uint32).tolist()
            await _give(ctx, kernel.parameters, {"row": it.row, "address": it.address, "values": values})

    async def take(ctx: Any) -> None:
        while num_taken <= len(passes):
            *_, valid, result = await ctx.tick().sample(kernel.results.valid, kernel.results.payload)
            if valid:
                results[num_taken - 1].append(list(result["values"]))

    simulator = Simulator(kernel)
    simulator.add_clock(1e-6)
    for bench in (give_passes, give_rows, give_words, give_parameters, take):
        simulator.add_testbench(bench)
    simulator.run()
    shape = (-1, design.array_columns)
    return [np.array(each, dtype=np.uint32).view(np.float32).reshape(shape) for each in results]


async def _give(ctx: Any, stream: Any, payload: Any) -> None:
    """Have a stream give something until it is taken."""
    ctx.set(stream.payload, payload)
    ctx.set(stream.valid, 1)
    await ctx.tick().until(stream.ready)
    ctx.set(stream.valid, 0)
