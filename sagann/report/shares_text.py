"""What ``sagann plan`` prints of runs whose work is shared out: among mini-batches, trainers, or workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table

from sagann.byte_size import format_bytes
from sagann.hybrid.assignment import HOST
from sagann.hybrid.forecast import Prediction
from sagann.partition import FEATURES, CostModel
from sagann.partition.halo import Part
from sagann.report.progress import short_seconds
from sagann.report.terminal import table
from sagann.train.sampled_forecast import SampledForecast

_FEWER_EDGES = "Fewer edges for each vertex (--sample)"
_STAGES = {
    "sample": ("sampling", f"{_FEWER_EDGES} take less sampling."),
    "announce": ("announcing", f"{_FEWER_EDGES} have fewer rows to announce."),
    "load": (
        "loading features",
        f"Features that lie in memory load faster than those of a file. {_FEWER_EDGES} read fewer of them.",
    ),
    "copy": ("copying to the device", f"{_FEWER_EDGES} have fewer bytes to copy."),
    "train": (
        "training",
        "A smaller model (--hidden, --layers) and fewer edges for each vertex (--sample) train faster.",
    ),
}
"Name of each stage, and what makes it faster."
_TIERS = {"memory": "memory", "file": "a file", "hot": "the hot tier", "cold": "the cold tier"}
_ALL_BUSY = 0.95
"Share of the cores from which on they count as all busy."


def batches_text(forecast: SampledForecast, *, processor: str) -> str:
    """Describe an epoch of mini-batches: its bytes and seconds, the bottleneck, and what would help.

    Args:
        forecast: the epoch.
        processor: name of the processor, with the number of its cores.
    """
    last = forecast.num_seeds % forecast.batch_size
    size, more = min(forecast.num_seeds, forecast.batch_size), f", {last:,} in the last one" if last else ""
    tiers = ", ".join(
        f"{counts.rows:,} rows of features ({format_bytes(counts.num_bytes)}) from {_TIERS.get(tier, tier)}"
        for tier, counts in forecast.tiers.items()
    )
    ahead = f"up to {forecast.ahead} made ahead" if forecast.ahead else "each made in the training step"
    stages = ", ".join(f"{_STAGES[stage][0]} {busy:.0%}" for stage, busy in forecast.busy.items())
    bottleneck, remedy = _STAGES[forecast.bottleneck]
    if forecast.busy_cores >= _ALL_BUSY:
        remedy = f"All cores are busy. {remedy}"
    elif forecast.ahead and forecast.bottleneck == "sample":
        remedy = f"Cores are idle: more --sampling-threads may help. {remedy}"
    return "\n".join(
        [
            f"Mini-batches: {forecast.num_batches:,} an epoch, of {size:,} training vertices{more if forecast.num_batches > 1 else ''}; "
            f"fanouts {', '.join(map(str, forecast.fanouts))}.",
            f"An epoch: {forecast.num_edges:,} edges sampled; {tiers}.",
            f"Memory: about {format_bytes(forecast.ahead_bytes)} of mini-batches at a time, {ahead}. "
            "Graph, model, gradients and temporaries come on top.",
            f"Expected: {forecast.seconds:.3g} s an epoch on {processor}, without evaluation; known from {forecast.num_rehearsed} "
            "rehearsed batches.",
            f"Busy, of the epoch: {stages}. The cores are busy for {forecast.busy_cores:.0%}. The bottleneck is {bottleneck}. {remedy}",
        ]
    )


def trainers_text(prediction: Prediction, *, machine: str, more: Prediction | None) -> str:
    """Describe the split of hybrid training, the seconds of every stage, the bottleneck, and what one more accelerator would bring.

    Args:
        prediction: training with the best split.
        machine: name of the machine.
        more: the same with one more accelerator and as many seeds an iteration; None if there can be none.
    """
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
        f"Seeds of an iteration: {shares}; {assignment.total:,} in all, {iterations} an epoch.",
        f"Threads of the processor: {threads.sample} sample, {threads.load} load, {threads.train if seeds[HOST] else 0} train.",
        f"Memory: about {format_bytes(prediction.peak_bytes)} of mini-batches in one place.",
        f"Expected: {short_seconds(prediction.iteration_s)} an iteration, {prediction.epoch_s:.3g} s an epoch, "
        f"{prediction.edges_per_s / 1e6:.3g} million edges a second, without evaluation.",
        f"Of that, each alone: {', '.join(stages)}. The bottleneck is {times.bottleneck}.",
    ]
    if more is not None:
        lines.append(
            f"Expected with one more accelerator: {short_seconds(more.iteration_s)} an iteration, "
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


def cost_model_table(model: CostModel, operations: Mapping[str, int]) -> Table:
    """A row per kind of operation, with the nanoseconds of one unit of each feature."""
    units = [f"per {name.replace('vertices', 'vertex').removesuffix('es').removesuffix('s')}" for name in FEATURES]
    rows = []
    for kind, row_bytes in operations.items():
        shown = (f"{1e9 * weight:.3g}" if weight else "-" for weight in model.kinds[kind].weights)
        rows.append((kind, f"{row_bytes:,}" if row_bytes else "-", *shown))
    title = "Cost model: nanoseconds on a worker of speed 1"
    return table(title, ["kind of operation", "bytes of a row", *units], rows)


def costs_text(model: CostModel, slowest_s: Mapping[str, float]) -> str:
    """What an epoch takes by each policy, the speeds that were learned, and how well the model fits.

    Args:
        model: the cost model.
        slowest_s: by policy, the predicted seconds of the slowest worker.
    """
    found = ", ".join(f"{name} {short_seconds(seconds)}" for name, seconds in slowest_s.items())
    speeds = ", ".join(f"{speed:.2f}" for speed in model.speeds)
    return (
        f"The slowest worker computes per epoch, as predicted, with parts balanced by: {found}.\n"
        f"Speeds of the workers that were measured: {speeds}. Error of the fit: {model.relative_error:.1%}."
    )
