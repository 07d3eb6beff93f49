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
from sagann.hardware.rtl.streams import encoded_pass, payloads_of


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

    def giving(name: str, payloads: list[tuple[int, Any]]) -> Any:
        async def give(ctx: Any) -> None:
            for _, payload in payloads:
                await _give(ctx, getattr(kernel, name), payload)

        return give

    async def take(ctx: Any) -> None:
        while num_taken <= len(passes):
            *_, valid, result = await ctx.tick().sample(kernel.results.valid, kernel.results.payload)
            if valid:
                results[num_taken - 1].append(list(result["values"]))

    simulator = Simulator(kernel)
    simulator.add_clock(1e-6)
    streams = payloads_of(passes, rows, design)
    for bench in (give_passes, take, *(giving(*each) for each in streams.items() if each[1])):
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
