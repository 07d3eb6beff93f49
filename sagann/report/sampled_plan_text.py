"""The text that ``sagann plan --sample`` prints: an epoch of mini-batches, its bottleneck, and what would help."""

from __future__ import annotations

from collections.abc import Mapping

from sagann.byte_size import format_bytes
from sagann.train.sampled_forecast import SampledForecast

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
"What helps a stage."
_ALL_BUSY = 0.95
"Share of the cores from which on they count as all busy."


def sampled_plan_text(forecast: SampledForecast, *, processor: str) -> str:
    """Describe the batches, bytes and seconds of an epoch, the bottleneck, and what would help.

    Args:
        forecast: the epoch.
        processor: name of the processor, with the number of its cores.
    """
    stages = ", ".join(f"{_named(stage)} {busy:.0%}" for stage, busy in forecast.busy.items())
    return "\n".join(
        [
            f"Mini-batches: {_batches(forecast)}; fanouts {', '.join(map(str, forecast.fanouts))}.",
            f"An epoch: {forecast.num_edges:,} edges sampled; {_tiers(forecast)}.",
            f"Memory: about {format_bytes(forecast.ahead_bytes)} of mini-batches at a time, {_ahead(forecast)}. "
            "Graph, model, gradients and temporaries come on top.",
            f"Expected: {forecast.seconds:.3g} s an epoch on {processor}, without evaluation; known from {forecast.num_rehearsed} "
            "rehearsed batches.",
            f"Busy, of the epoch: {stages}. The cores are busy for {forecast.busy_cores:.0%}. The bottleneck is "
            f"{_named(forecast.bottleneck)}. {_advice(forecast)}",
        ]
    )


def _ahead(forecast: SampledForecast) -> str:
    return f"up to {forecast.ahead} made ahead" if forecast.ahead else "each made in the training step"


def _named(stage: str) -> str:
    return _STAGES.get(stage, stage)


def _batches(forecast: SampledForecast) -> str:
    """Number and size of the batches."""
    num_batches, last = forecast.num_batches, forecast.num_seeds % forecast.batch_size
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


def _advice(forecast: SampledForecast) -> str:
    """What would make the epoch shorter."""
    remedy = _REMEDIES.get(forecast.bottleneck, "")
    if forecast.busy_cores >= _ALL_BUSY:
        return f"All cores are busy. {remedy}".rstrip()
    if forecast.ahead and forecast.bottleneck == "sample":
        return f"Cores are idle: more --sampling-threads may help. {remedy}"
    return remedy
