"""The report of the epoch benchmark: the best variant of every system, ratios by rounds, and memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import geometric_mean, median
from typing import NamedTuple

from bench.contest import Record, system_of
from bench.pages import head, mebibytes, row as table_row

MODELS = ("commnet", "gcn", "sage", "gin", "maxpool-gcn", "gated-gcn", "ggnn", "gat")
PEERS = ("pyg", "dgl")
LEAN = "sagann:lean"
"The engine that takes as little memory as it can."
LOSS_TOLERANCES = (1e-3, 2e-2)
"Relative difference allowed in the loss before any step, and before the third: Adam's first step divides by the size of the gradient, so that rounding grows."


COLUMNS = "model | sagann, s | PyG, s | DGL, s | speed-up over the faster peer | sagann, MiB | leaner peer, MiB"


class Timed(NamedTuple):
    seconds: float
    turns: tuple[float, ...]


class Row(NamedTuple):
    dataset: str
    task: str
    times: Mapping[str, Timed]
    "By system: sagann, pyg, dgl, floor."
    outcomes: Mapping[str, str]
    "How the systems ended of which no variant ran, by system."
    peaks: Mapping[str, int]
    wrong: tuple[str, ...]
    "Contestants whose losses are not sagann's."

    def ratio(self, system: str) -> float | None:
        """How many times as long as sagann a system takes: the median over the rounds that both ran."""
        if "sagann" not in self.times or system not in self.times:
            return None
        theirs, ours = self.times[system], self.times["sagann"]
        if theirs.turns and len(theirs.turns) == len(ours.turns):
            return median(a / b for a, b in zip(theirs.turns, ours.turns, strict=True))
        return theirs.seconds / ours.seconds

    @property
    def speedup(self) -> float | None:
        """How many times as long as sagann the better peer takes."""
        return min((ratio for ratio in map(self.ratio, PEERS) if ratio is not None), default=None)

    @property
    def least_peer(self) -> tuple[str, int] | None:
        """The peer's variant with the lowest peak, and its peak."""
        peers = {name: peak for name, peak in self.peaks.items() if name.partition(":")[0] in PEERS}
        return min(peers.items(), key=lambda item: item[1], default=None)

    def memory_share(self, name: str = "sagann") -> float | None:
        """Peak of one of sagann's engines over the lowest peak of any variant of any peer."""
        return self.peaks[name] / self.least_peer[1] if self.least_peer and name in self.peaks else None

    @property
    def times_floor(self) -> float | None:
        """How many times its floor sagann takes."""
        ratio = self.ratio("floor")
        return None if not ratio else 1 / ratio

    @property
    def headroom(self) -> float | None:
        """How many times the floor the better peer takes: as fast as this sagann could be, if it reached the floor."""
        if self.speedup is None or self.times_floor is None:
            return None
        return self.speedup * self.times_floor


def rows_of(records: Iterable[Record]) -> list[Row]:
    """A row for every task of every dataset, in the order measured."""
    tasks: dict[tuple[str, str], dict[str, Record]] = {}
    together: dict[tuple[str, str], Mapping[str, Sequence[Sequence[float]]]] = {}
    for record in records:
        key = record["dataset"], record["task"]
        if record["kind"] == "alone":
            tasks.setdefault(key, {})[record["contestant"]] = record
        else:
            together[key] = record["seconds"]
    return [_row(*key, alone, together.get(key, {})) for key, alone in tasks.items()]


def _row(
    dataset: str, task: str, alone: Mapping[str, Record], together: Mapping[str, Sequence[Sequence[float]]]
) -> Row:
    times: dict[str, Timed] = {}
    for name, record in alone.items():
        if record["outcome"] != "ok":
            continue
        turns = tuple(median(turn) for turn in together.get(name, ()))
        timed = Timed(seconds=median(turns or record["seconds"]), turns=turns)
        system = system_of(name)
        best = times.get(system)
        # What was timed in alternation goes before what was timed alone, at another moment.
        if best is None or (not timed.turns, timed.seconds) < (not best.turns, best.seconds):
            times[system] = timed
    ended = {
        system_of(name): record["outcome"]
        for name, record in alone.items()
        if record["outcome"] not in ("ok", "unsupported")
    }
    return Row(
        dataset=dataset,
        task=task,
        times=times,
        outcomes={system: outcome for system, outcome in ended.items() if system not in times},
        peaks={
            name: record["peak_bytes"]
            for name, record in alone.items()
            if record["outcome"] == "ok" and system_of(name) != "floor"
        },
        wrong=tuple(_wrong(alone)),
    )


def _wrong(alone: Mapping[str, Record]) -> list[str]:
    ours = alone.get("sagann", {"outcome": ""})
    if ours["outcome"] != "ok":
        return []
    return [
        name
        for name, record in alone.items()
        if record["outcome"] == "ok"
        and any(
            theirs is not None and mine is not None and abs(theirs - mine) > tolerance * max(abs(mine), 1e-3)
            for theirs, mine, tolerance in zip(record["losses"], ours["losses"], LOSS_TOLERANCES, strict=True)
        )
    ]


def table_of(rows: Iterable[Row]) -> Iterator[str]:
    """The table of a graph: seconds of the best variant of each system, and memory."""
    yield head(COLUMNS)
    for row in rows:
        wrong = f" **(computes something else: {', '.join(row.wrong)})**" if row.wrong else ""
        seconds = [
            f"{row.times[who].seconds:.3f}" if who in row.times else row.outcomes.get(who, "-")
            for who in ("sagann", *PEERS)
        ]
        speed = "-" if row.speedup is None else f"**{row.speedup:.2f}**"
        peaks = [row.peaks.get("sagann"), None if row.least_peer is None else row.least_peer[1]]
        yield table_row([row.task + wrong, *seconds, speed, *map(mebibytes, peaks)])


def render(rows: Sequence[Row]) -> str:
    """The report in Markdown: a table for each graph."""
    lines = []
    for dataset in dict.fromkeys(row.dataset for row in rows):
        lines += [f"{dataset}:", "", *table_of(row for row in rows if row.dataset == dataset), ""]
    speedups = [row.speedup for row in rows if row.speedup is not None and not row.wrong]
    if speedups:
        lines += [f"Geometric mean of speed: {geometric_mean(speedups):.2f} over {len(speedups)}.", ""]
    return "\n".join(lines)
