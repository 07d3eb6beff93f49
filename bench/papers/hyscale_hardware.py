"""HyScale-GNN's kernels by their clock: ``python -m bench.papers.hyscale_hardware``.

Prints Markdown: the resources of the design on an Alveo U250 beside Table IV, the epochs of Table VI by the clock, as `python -m bench.hyscale`
does, and milliseconds of a mini-batch for other numbers of scatter PEs, multiply-accumulators and rows of the window (Sec. VI-B: n = 8, m = 2048). No board is used: seconds are the cycles of the clock model, which
tests compare with the circuits, at the paper's 300 MHz. A mini-batch is drawn once, with the numbers of vertices and edges expected by degree
laws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

from bench.hyscale.__main__ import CASES, MACHINE, SEEDS, Case, epochs
from bench.pages import command_line, head, parser_of, row
from sagann.hardware import Hop, KernelDesign, Training
from sagann.hardware.draw import drawn_hops, training_cycles
from sagann.hardware.resources import ALVEO_U250, Resources, total
from sagann.hardware.yosys import area_of
from sagann.machines import published_machine

PAPER = {"lut": 0.72, "dsp": 0.90, "uram": 0.48, "bram": 0.40}
"Table IV."
_VENDOR_MUL_DSP, _VENDOR_ADD_DSP = 3, 2
"DSP slices of AMD's float32 multiplier (max usage) and adder (full usage), which high-level synthesis takes at 300 MHz."
DESIGN = KernelDesign()
PES = (1, 2, 4, 8, 16)
COLUMNS = (32, 64, 128, 256)
"Of the array, so 512 to 4,096 multiply-accumulators."
WINDOWS = (16, 32, 128, 512)


def main(given: Sequence[str] | None = None) -> int:
    picture = (None, "file for a picture of the sweep, in the format of its ending", Path)
    arguments = parser_of(__doc__, {}, picture=picture).parse_args(given)
    print("# Hardware kernels of HyScale-GNN by their clock\n")
    print(f"`{command_line('bench.papers.hyscale_hardware', given)}`\n")
    print("\n".join(_resources()), end="\n\n")
    print("\n".join(epochs(published_machine(MACHINE))), end="\n\n")
    jobs = {
        f"{case.dataset}, {case.model}": mini_batch(case)
        for case in CASES
        if case.hidden == 256 and len(case.fanouts) == 2
    }
    found = {name: dict(sweep(training, hops)) for name, (training, hops) in jobs.items()}
    print("\n".join(_sweep(found)), end="\n\n")
    if arguments.picture is not None:
        draw(found, arguments.picture)
    return 0


def mini_batch(case: Case) -> tuple[Training, list[Hop]]:
    """The model of a case, and a mini-batch that is drawn for it."""
    job = case.job(published_machine(MACHINE))
    training = Training(design=DESIGN, widths=job.widths.features, own=job.widths.concatenates)
    counts = job.counts(SEEDS)
    return training, drawn_hops(counts.vertices, counts.edges, own=training.own)


def sweep(training: Training, hops: list[Hop]) -> Iterator[tuple[tuple[int, int, int], float]]:
    """Milliseconds by PEs, multiply-accumulators and rows of the window, of which one at a time differs from the design."""
    base = training.design
    designs = [
        replace(base, scatter_pes=number, bank_chunks=base.bank_chunks * base.scatter_pes // number)
        for number in PES
    ]
    designs += [
        replace(base, array_columns=number, array_weights=base.array_weights * base.array_columns // number)
        for number in COLUMNS
    ]
    designs += [replace(base, window_rows=number) for number in WINDOWS]
    for design in designs:
        sizes = design.scatter_pes, design.lanes * design.array_columns, design.window_rows
        yield sizes, 1e3 * training_cycles(replace(training, design=design), hops) / design.frequency_hz


def num_operators(design: KernelDesign) -> tuple[int, int]:
    """Float32 multipliers and adders of the circuits."""
    lanes, macs = design.scatter_pes * design.lanes, design.lanes * design.array_columns
    return lanes + macs, lanes + macs + design.array_columns


def vendor_dsp(design: KernelDesign) -> int:
    """DSP slices with the vendor's float32 operators."""
    muls, adds = num_operators(design)
    return _VENDOR_MUL_DSP * muls + _VENDOR_ADD_DSP * adds


def _resources() -> Iterator[str]:
    muls, adds = num_operators(DESIGN)
    macs = DESIGN.lanes * DESIGN.array_columns
    area = area_of(DESIGN)
    without = {module: each for module, each in area.items() if module not in ("Mul", "Add")}
    own, rest, vendor = total(area), total(without), vendor_dsp(DESIGN)
    yield "## Table IV\n"
    yield (
        f"{DESIGN.scatter_pes} scatter PEs of {DESIGN.lanes} lanes and {macs:,} multiply-accumulators have {muls:,} multipliers and {adds:,} "
        "adders. The paper does not state the lanes of a PE: 16, a word of 512 bits, are chosen. Memories have the sizes of the default "
        "design, which are ours. *Synthesis* is by Yosys, with own float32 operators and without any: the vendor's take 3 and 2 DSP slices, and "
        "LUTs that are not known here. Nothing is placed and routed.\n"
    )
    yield head(("resource", "paper", "with the vendor's operators", "without operators", "with own", "number"))
    for name, part in PAPER.items():
        without_any, with_own = (each.of(ALVEO_U250)[name] for each in (rest, own))
        # The LUTs of the vendor's operators are unknown; the memories do not depend on the operators.
        parts = {"lut": "-", "dsp": f"{vendor / ALVEO_U250.dsp:.0%}"}
        cells = [f"{part:.0%}", parts.get(name, f"{without_any:.0%}"), f"{without_any:.0%}", f"{with_own:.0%}"]
        yield row([name.upper(), *cells, f"{getattr(own, name):,.10g}"])
    yield "\n## Modules\n"
    names = [each.name for each in fields(Resources)]
    yield head(("module", "number", *(name.upper() for name in names)))
    for module, (number, each) in area.items():
        yield row([f"`{module}`", f"{number:,}", *(f"{getattr(each, name):,.10g}" for name in names)])


def _sweep(found: dict[str, dict[tuple[int, int, int], float]]) -> Iterator[str]:
    yield "## Other sizes\n"
    yield f"Milliseconds of the propagation of {SEEDS:,} seeds.\n"
    yield head(("scatter PEs", "multiply-accumulators", "window", "DSP slices of the U250", *found))
    for key in next(iter(found.values())):
        pes, macs, window = key
        design = replace(DESIGN, scatter_pes=pes, array_columns=macs // DESIGN.lanes, window_rows=window)
        dsp = vendor_dsp(design) / ALVEO_U250.dsp
        milliseconds = (f"{times[key]:.2f}" for times in found.values())
        yield row([*(f"{each:,}" for each in key), f"{dsp:.0%}", *milliseconds])


def draw(found: dict[str, dict[tuple[int, int, int], float]], file: Path) -> None:
    """A panel for each size that is varied; a ring marks the paper's."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(11, 3.2), sharey=True, layout="constrained")
    design = (DESIGN.scatter_pes, DESIGN.lanes * DESIGN.array_columns, DESIGN.window_rows)
    labels = ("scatter PEs", "multiply-accumulators", "rows of the window")
    for number, (panel, label) in enumerate(zip(panels, labels, strict=True)):
        for name, times in found.items():
            points = sorted(
                (key[number], value)
                for key, value in times.items()
                if all(key[other] == design[other] for other in range(3) if other != number)
            )
            panel.plot(*zip(*points, strict=True), marker=".", label=name)
            panel.plot(design[number], times[design], marker="o", markersize=9, fillstyle="none", color="black")
        panel.set_xscale("log", base=2)
        panel.set_xlabel(label)
    panels[0].set_ylabel("ms of a mini-batch")
    panels[0].set_ylim(bottom=0)
    panels[0].legend()
    figure.savefig(file)


if __name__ == "__main__":
    raise SystemExit(main())
