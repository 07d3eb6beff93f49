"""The circuits in Amaranth's simulator, for a few thousand cycles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from amaranth.sim import Simulator

from sagann.hardware.design import KernelDesign
from sagann.hardware.passes import Pass
from sagann.hardware.program import Array
from sagann.hardware.rtl.accelerator import Accelerator
from sagann.hardware.rtl.streams import encoded_pass, encoded_words

_CYCLE_S = 1e-6


class PassRun(NamedTuple):
    """What the accelerator did in a pass."""

    results: Array
    "That went to external memory, float32 [number, array_columns]."
    total: int
    "Cycles until it took the next pass."
    stalls: tuple[int, int, int]
    traffic: tuple[int, int]
    "Bytes that were read from external memory, and written to it."


def run_passes(
    passes: Sequence[Pass],
    rows: Mapping[int, Array],
    design: KernelDesign,
    kernel: Accelerator | None = None,
    *,
    gaps: float = 0.0,
) -> list[PassRun]:
    """Run passes on the accelerator.

    Args:
        passes: in their order.
        rows: those that come from external memory, by the number of the pass.
        design: of its kernels.
        kernel: the accelerator, which is made by default.
        gaps: part of the cycles in which a stream has nothing to give.
    """
    kernel, random = kernel or Accelerator(design), np.random.default_rng(0)
    found: list[PassRun] = []
    taken: list[int] = []
    results: list[list[list[int]]] = [[] for _ in passes]
    reads, writes = [0] * len(passes), [0] * len(passes)

    async def state(ctx: Any) -> None:
        cycle, before, last = 0, 0, [0, 0, 0]
        # The last one ends when another one would be taken.
        for each in (*passes, Pass()):
            ctx.set(kernel.passes.payload, encoded_pass(each, design))
            ctx.set(kernel.passes.valid, 1)
            is_taken = 0
            while not is_taken:
                *_, is_taken = await ctx.tick().sample(kernel.passes.ready)
                cycle += 1
            if taken:
                values = np.array(results[len(taken) - 1], dtype=np.uint32).reshape(-1, design.array_columns)
                stalls = tuple(last)
                found.append(PassRun(values.view(np.float32), cycle - before, stalls, (0, 0)))  # type: ignore[arg-type]
            before = cycle
            taken.append(cycle)
            last = [0, 0, 0]
            while len(taken) <= len(passes) and not ctx.get(kernel.passes.ready):
                last = stalls_of(ctx, kernel)
                await ctx.tick()
                cycle += 1
        taken.append(cycle)

    def give(stream: Any, payloads: list[tuple[int, Any]]) -> Any:
        size = -(-stream.payload.shape().size // 8)

        async def run(ctx: Any) -> None:
            for number, payload in payloads:
                while random.random() < gaps:
                    ctx.set(stream.valid, 0)
                    await ctx.tick()
                ctx.set(stream.payload, payload)
                ctx.set(stream.valid, 1)
                is_taken = 0
                while not is_taken:
                    *_, is_taken = await ctx.tick().sample(stream.ready)
                assert number == len(taken) - 1
                reads[number] += size
            ctx.set(stream.valid, 0)

        return run

    async def take(ctx: Any) -> None:
        while len(taken) < len(passes) + 2:
            *_, valid, result = await ctx.tick().sample(kernel.results.valid, kernel.results.payload)
            if valid:
                results[len(taken) - 1].append(list(result["values"]))
                writes[len(taken) - 1] += 4 * design.array_columns

    streams = (
        (kernel.rows, [(number, beat) for number in rows for beat in beats_of(rows[number], design, 0)]),
        (
            kernel.words,
            [(n, word) for n, each in enumerate(passes) if each.program for word in encoded_words(each, design)],
        ),
        (
            kernel.parameters,
            [
                (n, {"row": it.row, "address": it.address, "values": it.values.view(np.uint32).tolist()})
                for n, each in enumerate(passes)
                for it in each.loads or ()
            ],
        ),
    )
    simulate(kernel, state, take, *(give(stream, payloads) for stream, payloads in streams if payloads))
    return [each._replace(traffic=(reads[n], writes[n])) for n, each in enumerate(found)]


def beats_of(features: Array, design: KernelDesign, padding: float) -> list[Any]:
    """Rows as beats of external memory, whose lanes beyond a row hold the padding."""
    chunks = design.chunks(features.shape[1])
    padded = np.full((len(features), design.beats(chunks), design.beat_chunks, design.lanes), padding, np.float32)
    padded.reshape(len(features), -1)[:, : features.shape[1]] = features
    beats: list[Any] = padded.view(np.uint32).reshape(-1, design.beat_chunks, design.lanes).tolist()
    return beats


def simulate(circuit: Any, *benches: Any) -> None:
    """Run a circuit with what sets and reads its signals, until all of that has ended."""
    simulator = Simulator(circuit)
    simulator.add_clock(_CYCLE_S)
    for bench in benches:
        simulator.add_testbench(bench)
    simulator.run()


def stalls_of(ctx: Any, kernel: Any) -> list[int]:
    """The cycles in which a word of this pass waited: for rows, for room, and for sums alone."""
    return [ctx.get(kernel.stalls[cause]) for cause in ("rows", "room", "hazard")]
