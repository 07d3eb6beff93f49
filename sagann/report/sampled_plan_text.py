"""The text that ``sagann plan --sample`` prints: an epoch of mini-batches, its bottleneck, and what would help."""

from __future__ import annotations

from collections.abc import Mapping

from sagann.byte_size import format_bytes
from sagann.plan.pipeline import PipelinedEpoch, bottleneck_of
from sagann.train.sampled_forecast import Change, SampledForecast

_STAGES = {
    "sample": "sampling",
    "announce": "announcing",
    "load": "loading features",
    "copy": "copying to the device",
    "train": "training",
}
_TIERS = {
    "memory": "memory",
    "file": "a file",
    "hot": "the hot tier",
    "cold": "the cold tier",
}
_REMEDIES: Mapping[str, str] = {
    "sample": "Fewer edges for each vertex (--sample) take less sampling.",
    "announce": "Fewer edges for each vertex (--sample) have fewer rows to announce.",
    "load": "Features that lie in memory load faster than those of a file, and fewer edges for each vertex (--sample) read fewer of them.",
    "copy": "Fewer edges for each vertex (--sample) have fewer bytes to copy.",
    "train": "A smaller model (--hidden, --layers) and fewer edges for each vertex (--sample) train faster.",
}
"What helps a stage that options of the pipeline do not help."
# Shares: of an epoch, that a difference must make to be worth a word; of the cores, from which on they count as all busy.
_WORTH_SAVING = 0.05
_ALL_BUSY = 0.95


def sampled_plan_text(forecast: SampledForecast, *, processor: str) -> str:
    """Describe the batches, bytes and seconds of an epoch, the bottleneck, and the options that would help.

    Args:
        forecast: the epoch.
        processor: name of the processor.
    """
    simulated = forecast.simulated
    epoch = simulated.epoch
    stages = ", ".join(f"{_named(stage.name)} {epoch.alone_s(stage):.3g} s" for stage in epoch.stages)
    slowest = bottleneck_of(simulated).name
    return "\n".join(
        [
            f"Mini-batches: {_batches(forecast)}; fanouts {', '.join(map(str, forecast.fanouts))}.",
            f"An epoch: {forecast.num_edges:,} edges sampled; {_tiers(forecast)}.",
            f"Memory: about {format_bytes(forecast.ahead_bytes)} of mini-batches at a time, {_ahead(epoch)}. "
            "Graph, model, gradients and temporaries come on top.",
            f"Expected: {simulated.seconds:.3g} s an epoch on {simulated.num_cores} cores of {processor}, without evaluation; known "
            f"from {forecast.num_rehearsed} rehearsed batches.",
            f"Each stage by itself: {stages}.{_slowdown(epoch.slowdown)} The cores are busy for {simulated.busy_cores:.0%}. The "
            f"bottleneck is {_named(slowest)}. {_advice(forecast, slowest)}",
        ]
    )


def _ahead(epoch: PipelinedEpoch) -> str:
    if not epoch.ahead:
        return "each made in the training step"
    further = f", and up to {epoch.window} further ones sampled" if epoch.window else ""
    return f"up to {epoch.ahead} made ahead{further}"


def _slowdown(slowdown: float) -> str:
    """What all stages together took, over what is simulated from each by itself."""
    if slowdown < 1 + _WORTH_SAVING:
        return ""
    return f" Together they took {slowdown:.2f} times the seconds that a simulation of these gives; the expected seconds have this factor."


def _named(stage: str) -> str:
    return _STAGES.get(stage, stage)


def _batches(forecast: SampledForecast) -> str:
    """Number and size of the batches."""
    num_batches, last = forecast.simulated.epoch.num_batches, forecast.num_seeds % forecast.batch_size
    if num_batches == 1:
        return f"1 an epoch, of {min(forecast.num_seeds, forecast.batch_size):,} training vertices"
    smaller = f", {last:,} in the last one" if last else ""
    return f"{num_batches:,} an epoch, of {forecast.batch_size:,} training vertices{smaller}"


def _tiers(forecast: SampledForecast) -> str:
    """Rows and bytes of each tier."""
    parts = [
        f"{counts.rows:,} rows of features ({format_bytes(counts.num_bytes)}) from {_TIERS.get(tier, tier)}"
        for tier, counts in forecast.tiers.items()
    ]
    return ", ".join(parts)


def _advice(forecast: SampledForecast, slowest: str) -> str:
    """What would make the epoch shorter."""
    worth = [each for each in forecast.changes if each.seconds <= (1 - _WORTH_SAVING) * forecast.seconds]
    if worth:
        best = min(worth, key=lambda change: change.seconds)
        return f"{_option(best, forecast)} would make it {best.seconds:.3g} s."
    cores = ""
    if forecast.simulated.busy_cores >= _ALL_BUSY:
        cores = "All cores are busy, and stages compete for them. "
    return (
        f"{cores}More --sampling-threads or --batches-ahead would not help. {_REMEDIES.get(slowest, '')}".rstrip()
    )


def _option(change: Change, forecast: SampledForecast) -> str:
    if change.ahead != forecast.simulated.epoch.ahead:
        return f"--batches-ahead {change.ahead}"
    return f"--sampling-threads {change.threads}"
