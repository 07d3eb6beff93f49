"""What ``sagann plan`` prints: of a streamed epoch its plan, steps and forecast; of others how work is shared out among batches, trainers or workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.table import Table

from sagann.byte_size import format_bytes
from sagann.errors import listed
from sagann.hybrid.assignment import HOST
from sagann.hybrid.forecast import Prediction
from sagann.partition import CostModel
from sagann.partition.halo import Part
from sagann.plan.epoch import Planned
from sagann.plan.intervals import sizes
from sagann.plan.machine import Machine
from sagann.plan.routes import Routed
from sagann.plan.schedule import Schedule
from sagann.plan.steps import DEVICE, Move, Plan, Step
from sagann.plan.timeline import Lane
from sagann.report.progress import short_seconds
from sagann.report.terminal import table
from sagann.runtime.forecasting.forecast import Forecast
from sagann.runtime.forecasting.resident import Resident
from sagann.train.rehearsals import SampledForecast

_KINDS = {
    "value": "vertex data",
    "grad": "gradients of vertex data",
    "grad_inputs": "gradients that edges read",
    "gather_saved": "softmax and extrema for the backward",
    "edge_grad": "gradients at edges",
    "edges": "edges",
    "stage_saved": "saved results of stages",
    "state": "partial gathers",
    "sent": "rows that other workers need",
    "returned": "gradients from other workers",
}

_LANES: Mapping[Lane, str] = {"compute": "computing", "load": "loading", "store": "storing"}


def plan_text(planned: Planned, *, on_disk: bool = True) -> str:
    """Describe the steps, the memory and the copies of a whole epoch."""
    schedule, plan = planned.schedule, planned.plan
    steps = [operation for operation in plan.operations if isinstance(operation, Step)]
    moves = [operation for operation in plan.operations if isinstance(operation, Move)]
    loads = [move for move in moves if move.kind == "load" and not move.peer]
    needed = [step.temporary_bytes + sum(map(schedule.sizes.of, step.blocks)) for step in steps]
    rows, in_place = sizes(plan.bounds), [load.block for load in loads if schedule.sizes.is_in_place(load.block)]
    if len(rows) > 1:
        cut = f"intervals of {min(rows):,} to {max(rows):,} vertices"
    elif plan.stored_bytes == 0 and len(loads) == len({load.block for load in loads}):
        cut = "the whole graph fits in memory"
    else:
        cut = "one interval, but not everything fits at once; evicted blocks are loaded again when needed"
    copies = {
        "From device to device": [(move.block, move.num_bytes) for move in moves if move.peer],
        "Kept from epoch to epoch": [(load.block, load.num_bytes) for load in plan.staying],
        "Loaded": [(load.block, load.num_bytes) for load in loads],
        "Read in place": [(block, schedule.sizes.content_of(block)) for block in in_place],
        "Stored": [(move.block, move.num_bytes) for move in moves if move.kind == "store"],
    }
    lines = [
        f"P = {plan.num_intervals}: {cut}.",
        f"Memory: at most {format_bytes(plan.peak_bytes)} of {format_bytes(plan.budget_bytes)}, for vertex data, edges, "
        "gradients and temporaries. Parameters, their gradients, the optimizer, Python and PyTorch come on top.",
        *([_visited(schedule)] if len(rows) > 1 else []),
        f"Epoch: {len(steps):,} steps, {format_bytes(plan.loaded_bytes)} loaded, {format_bytes(plan.stored_bytes)} stored.",
        f"{'On disk' if on_disk else 'In the host memory'}: {format_bytes(schedule.edge_bytes)} of edges, "
        f"{format_bytes(schedule.constant_bytes)} of gathers cached for all epochs, up to {format_bytes(plan.spilled_bytes)} "
        "spilled during an epoch.",
    ]
    for verb, blocks in copies.items():
        by_kind: Counter[str] = Counter()
        for block, num_bytes in blocks:
            by_kind[block.kind] += num_bytes
        # The largest first; no line where nothing is copied.
        if parts := [f"{_KINDS[kind]} {format_bytes(size)}" for kind, size in by_kind.most_common() if size]:
            lines.append(f"{verb}: {', '.join(parts)}.")
    largest = max(needed)
    lines.append(f"Largest step: {steps[needed.index(largest)].label} needs {format_bytes(largest)}.")
    return "\n".join(lines)


def routes_text(found: Sequence[Routed], machine: Machine, devices: Sequence[str]) -> str:
    """Describe the routes to several devices, the fastest first, and what the fastest one copies over each link."""
    best, *others = found
    by_link: Counter[str] = Counter()
    for move in best.planned.plan.operations:
        if isinstance(move, Move) and move.kind != "drop":
            by_link[move.link] += move.num_bytes
    slower = ", ".join(f"{each.route.name} {each.seconds:.3g} s" for each in others)
    where = f"{len(devices)} device{'s' * (len(devices) > 1)} of {machine.name}"
    copied = "\n".join(f"  {link}: {format_bytes(size)}" for link, size in sorted(by_link.items()))
    return (
        f"Estimated: {best.seconds:.3g} s per epoch on {where}, simulated from the machine's rates alone.\n"
        f"Route: {best.route.name}{f'; slower: {slower}' if slower else ''}.\n"
        f"Copied over each link:\n{copied}"
    )


def _visited(schedule: Schedule) -> str:
    """The order of intervals and chunks."""
    if schedule.part.undivided:
        lanes = schedule.part.slice_lanes
        at_a_time = f", at most {lanes} features at a time" if lanes else ""
        return f"Edges: one chunk per interval and pass; rows read at random stay in memory{at_a_time}."
    widths = listed([str(width) for width in sorted({*schedule.traversal.widths.values()})])
    return (
        f"Order: zigzag: each sweep begins where the last one ended{widths and f'; strips of {widths} intervals'}."
    )


def steps_text(plan: Plan) -> str:
    """A line for each step and copy, in the order in which they begin."""
    lines, staying = [], {load.block for load in plan.staying}
    for operation in plan.operations:
        # Where it runs, beside others that run on the first device.
        at = "" if operation.owner == DEVICE else f" ({operation.owner})"
        if isinstance(operation, Step):
            lines.append(f"  {operation.label}{at}")
        elif operation.kind != "drop" and operation.block not in staying:
            source = f" from {operation.peer}" if operation.peer else ""
            lines.append(
                f"{operation.kind} {operation.block.label}{source}, {format_bytes(operation.num_bytes)}{at}"
            )
    return "\n".join(lines)


def forecast_text(forecast: Forecast) -> str:
    """Describe the seconds of an epoch, the bottleneck, and the source of the forecast."""
    timeline, machine = forecast.timeline, forecast.machine
    busy = ", ".join(f"{verb} {timeline.busy_s(lane):.3g} s" for lane, verb in _LANES.items())
    known = "steps timed on part of this graph" if forecast.rehearsed else "the machine's rates alone (rough)"
    cached = " This assumes that the system's cache holds all files." if forecast.tier == "file cache" else ""
    return (
        f"Estimated: {timeline.seconds:.3g} s per epoch on {machine.num_cores} cores of {machine.name}, from {known}.\n"
        f"Of that, {busy}; {timeline.hidden:.0%} of the shorter of copying and computing overlaps. "
        f"The bottleneck is {_LANES[timeline.bottleneck]}.{cached}"
    )


def resident_text(resident: Resident) -> str:
    """Say what ``top`` will show of the process that trains."""
    parts = (
        (resident.process_bytes, "of Python, PyTorch and kernels"),
        (resident.budget_bytes, "of the budget"),
        (resident.graph_bytes, "of mapped graph files, which the system reclaims when memory is short"),
        (resident.other_bytes, "of parameters, optimizer and vertices"),
    )
    listed = ", ".join(f"{format_bytes(size)} {what}" for size, what in parts)
    return f"Resident memory (RES in top): about {format_bytes(resident.total_bytes)}: {listed}."


_FEWER_EDGES = "Smaller fanouts (--sample)"
_STAGES = {
    "sample": ("sampling", f"{_FEWER_EDGES} take less time to sample."),
    "announce": ("announcing", f"{_FEWER_EDGES} announce fewer rows."),
    "load": (
        "loading features",
        f"Features load faster from memory than from a file. {_FEWER_EDGES} read fewer of them.",
    ),
    "copy": ("copying to the device", f"{_FEWER_EDGES} copy fewer bytes."),
    "train": (
        "training",
        "A smaller model (--hidden, --layers) or smaller fanouts (--sample) train faster.",
    ),
}
"Name of each stage, and what makes it faster."
_TIERS = {"memory": "memory", "file": "a file", "hot": "the hot tier", "cold": "the cold tier"}
_ALL_BUSY = 0.95
"Share of the cores from which on they count as all busy."


def batches_text(forecast: SampledForecast, *, processor: str) -> str:
    """Describe an epoch of mini-batches: its bytes and seconds, the bottleneck, and what would help."""
    last = forecast.num_seeds % forecast.batch_size
    size, more = min(forecast.num_seeds, forecast.batch_size), f", {last:,} in the last one" if last else ""
    tiers = ", ".join(
        f"{counts.rows:,} rows of features ({format_bytes(counts.num_bytes)}) from {_TIERS.get(tier, tier)}"
        for tier, counts in forecast.tiers.items()
    )
    ahead = f"up to {forecast.ahead} prefetched" if forecast.ahead else "each prepared in the training step"
    stages = ", ".join(f"{_STAGES[stage][0]} {busy:.0%}" for stage, busy in forecast.busy.items())
    bottleneck, remedy = _STAGES[forecast.bottleneck]
    if forecast.busy_cores >= _ALL_BUSY:
        remedy = f"All cores are busy. {remedy}"
    elif forecast.ahead and forecast.bottleneck == "sample":
        remedy = f"Cores are idle: more --sampling-threads may help. {remedy}"
    return "\n".join(
        [
            f"Mini-batches: {forecast.num_batches:,} per epoch, of {size:,} training vertices{more if forecast.num_batches > 1 else ''}; "
            f"fanouts {', '.join(map(str, forecast.fanouts))}.",
            f"Epoch: {forecast.num_edges:,} edges sampled; {tiers}.",
            f"Memory: about {format_bytes(forecast.ahead_bytes)} of mini-batches at a time, {ahead}. "
            "Graph, model, gradients and temporaries come on top.",
            f"Estimated: {forecast.seconds:.3g} s per epoch on {processor}, without evaluation, from {forecast.num_rehearsed} "
            "measured batches.",
            f"Busy: {stages} of the epoch. The cores are {forecast.busy_cores:.0%} busy. The bottleneck is {bottleneck}. {remedy}",
        ]
    )


def trainers_text(prediction: Prediction, *, machine: str, more: Prediction | None) -> str:
    """Describe the split of hybrid training, the seconds of every stage, the bottleneck, and what one accelerator ``more`` would bring."""
    assignment, times = prediction.assignment, prediction.times
    threads, seeds = assignment.threads, assignment.seeds
    stages = [
        f"sampling {short_seconds(times.sample)}",
        f"loading features {short_seconds(times.load)}",
        *_each("copies", times.transfer),
        *_each("propagation", times.train),
    ]
    shares = ", ".join(f"{count:,} on {_place(name)}" for name, count in seeds.items() if name != HOST or count)
    iterations = "1 iteration" if prediction.num_iterations == 1 else f"{prediction.num_iterations:,} iterations"
    lines = [
        f"Machine: {machine}.",
        f"Seeds per iteration: {shares}; {assignment.total:,} in total, {iterations} per epoch.",
        f"Processor threads: {threads.sample} sample, {threads.load} load, {threads.train if seeds[HOST] else 0} train.",
        f"Memory: about {format_bytes(prediction.peak_bytes)} of mini-batches on one device.",
        f"Estimated: {short_seconds(prediction.iteration_s)} per iteration, {prediction.epoch_s:.3g} s per epoch, "
        f"{prediction.edges_per_s / 1e6:.3g} million edges per second, without evaluation.",
        f"Each stage alone: {', '.join(stages)}. The bottleneck is {times.bottleneck}.",
    ]
    if more is not None:
        lines.append(
            f"With one more accelerator: {short_seconds(more.iteration_s)} per iteration, "
            f"{prediction.iteration_s / more.iteration_s:.2f} times as fast; the bottleneck is then {more.times.bottleneck}."
        )
    return "\n".join(lines)


def _each(what: str, seconds: Mapping[str, float]) -> list[str]:
    """A stage of every trainer that has work; trainers that take the same are one entry."""
    found: dict[str, list[str]] = {}
    for name, each in seconds.items():
        if each:
            found.setdefault(short_seconds(each), []).append(_place(name))
    return [f"{what} {taken} on {' and '.join(names)}" for taken, names in found.items()]


def _place(name: str) -> str:
    return "the processor" if name == HOST else name


def parts_table(parts: Sequence[Part], seconds: Sequence[float] | None, *, balance: str) -> Table:
    """A row per worker, with its predicted seconds of computing in an epoch if there is a cost model."""
    columns = ("worker", "vertices", "edges", "share of edges", "halo", "predicted per epoch")
    num_edges = sum(len(part.indices) for part in parts)
    rows = (
        (
            str(rank),
            f"{part.num_own:,}",
            f"{len(part.indices):,}",
            f"{len(part.indices) / max(1, num_edges):.1%}",
            f"{len(part.halo):,}",
            "-" if seconds is None else short_seconds(seconds[rank]),
        )
        for rank, part in enumerate(parts)
    )
    return table(f"Parts of {len(parts)} workers, balanced by {balance}", columns, rows, num_texts=0)


def costs_text(model: CostModel, slowest_s: Mapping[str, float]) -> str:
    """What an epoch takes by each policy (the slowest worker's seconds), the speeds that were learned, and how well the model fits."""
    found = ", ".join(f"{name} {short_seconds(seconds)}" for name, seconds in slowest_s.items())
    speeds = ", ".join(f"{speed:.2f}" for speed in model.speeds)
    return (
        f"Predicted time per epoch of the slowest worker, by balance: {found}.\n"
        f"Measured speeds of the workers: {speeds}. Relative error of the fit: {model.relative_error:.1%}."
    )
