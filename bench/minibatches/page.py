"""The page of sampled epochs: who is the fastest, seconds of every contestant, and where sagann's seconds go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.pages import head, row
from bench.timing import median_ratio

EXPLAINED = """\
Contestants:

- `calling`: each batch is made in the training step. `ahead`: four batches are made ahead of it. `loader`: PyG samples on the calling thread.
- `copied`: features lie in the host's memory. The processor gathers those of a batch, and they are copied with the batch. This is the default
  of `sagann.MiniBatches(device="cuda")`.
- `hot 10%`: a `DeviceFeatures` keeps the 10% of the rows with the highest score `vip` on the device. The device reads the others in place, from
  pinned memory of the host.
- `edges 100%`: the device samples, with so much of the edges in its memory; it reads the others in place. Else the processor samples.
- `4 threads`: so many threads sample, and so many load features; 1 by default.
- `pyg:8 workers`: a `NeighborLoader` with so many processes, which stay between epochs. For a device they pin memory, and batches are copied with
  `non_blocking=True`. PyG samples a vertex once, and not again for every hop, which gives fewer edges.
- `resident`: all features lie on the device, which takes the rows of each batch.

"it / sagann" is the median over rounds of a contestant over sagann's first one, its default, in the same round. *Alone* lists the
seconds per epoch of each of sagann's stages, run separately on one thread until the device is done; `calls` is the part of `train` until the host
has queued the step. The bottleneck is the stage with the most seconds.
"""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the contestants did with a task."""

    caption: str
    "Model and fanouts."
    turns: Mapping[str, Sequence[Mapping[str, Any]]]
    "For each contestant, what its worker said of each epoch."
    alone: Mapping[str, Mapping[str, float]]
    "For contestants of sagann that make batches ahead on one thread: seconds of stages, run separately."
    failures: Mapping[str, str]
    "Why a contestant did not run."

    @property
    def seconds(self) -> dict[str, list[float]]:
        """Seconds of the epochs of each contestant."""
        return {name: [turn["seconds"] for turn in turns] for name, turns in self.turns.items()}


def summary_of(measured: Measured) -> list[str]:
    """The fastest contestant of sagann and of each peer, with features in the host's memory and on the device."""
    seconds = measured.seconds
    lines = []
    for place, is_there in (
        ("features in the host's memory or partly hot", False),
        ("all features on the device", True),
    ):
        best: dict[str, str] = {}
        for name in (name for name in seconds if ("resident" in name or "hot 100%" in name) == is_there):
            system = name.partition(":")[0]
            best[system] = min(best.get(system, name), name, key=lambda each: median(seconds[each]))
        ours = best.pop("sagann", None)
        if ours is not None:
            lines += [
                f"- {measured.caption}, {place}: `{ours}` {median(seconds[ours]):.3f} s, `{theirs}` {median(seconds[theirs]):.3f} s; "
                f"sagann is {median_ratio(seconds[theirs], seconds[ours]):.2f} times as fast."
                for theirs in best.values()
            ]
    return lines or [f"- {measured.caption}: not compared, because not both sagann and a peer ran."]


def tables_of(measured: Measured) -> list[str]:
    """All tables of a task, and what did not run."""
    parts = [[f"{measured.caption}:"], epoch_rows(measured)]
    if measured.alone:
        parts += [["Alone:"], alone_rows(measured)]
    names: dict[str, list[str]] = {}
    for name, why in measured.failures.items():
        names.setdefault(why, []).append(f"`{name}`")
    if names:
        parts.append([f"- {', '.join(each)} did not run: {why}." for why, each in names.items()])
    return [line for part in parts for line in [*part, ""]]


def epoch_rows(measured: Measured) -> list[str]:
    """A row for each contestant."""
    seconds = measured.seconds
    first = next((name for name in seconds if name.startswith("sagann")), None)
    rows = [head(["contestant", "s / epoch", "from", "to", "edges / epoch", "loss", "it / sagann"])]
    for name, own in seconds.items():
        turns = measured.turns[name]
        ratio = "-" if first is None else f"{median_ratio(own, seconds[first]):.2f}"
        cells = [name, *(f"{value:.3f}" for value in (median(own), min(own), max(own)))]
        cells += [f"{median(turn['edges'] for turn in turns):,.0f}", f"{turns[-1]['loss']:.3f}", ratio]
        rows.append(row(cells))
    return rows


def alone_rows(measured: Measured) -> list[str]:
    """Seconds of stages, each by itself, with the slowest one."""
    names = [name for name in next(iter(measured.alone.values())) if name not in ("calls", "train")]
    rows = [head(["contestant", *names, "train", "calls", "bottleneck", "s / epoch", "epoch / slowest"])]
    for name, seconds in measured.alone.items():
        stages = {stage: value for stage, value in seconds.items() if stage != "calls"}
        slowest = max(stages, key=stages.__getitem__)
        epoch_s = median(measured.seconds[name])
        cells = [name, *(f"{seconds[stage]:.3f}" for stage in (*names, "train", "calls"))]
        rows.append(row([*cells, slowest, f"{epoch_s:.3f}", f"{epoch_s / stages[slowest]:.2f}"]))
    return rows
