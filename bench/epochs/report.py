"""The report of the epoch benchmark: a table per dataset, geometric means, and each target reached or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.contest import Record, origin_of
from bench.result_tables import table_line

DENSE_MODELS = ("commnet", "gcn", "sage", "gin")
"Dense work dominates."
EDGE_MODELS = ("maxpool-gcn", "gated-gcn", "ggnn", "gat")
"Edges dominate."
PEERS = ("pyg", "dgl")
LEAN = "sagann:lean"
"The engine that takes as little memory as it can."
LOSS_TOLERANCES = (1e-3, 2e-2)
"Relative difference allowed in the loss before any step, and before the third: Adam's first step divides by the size of the gradient, so that rounding grows."


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """The best variant of a system."""

    name: str
    seconds: float
    turns: tuple[float, ...]
    "Median seconds of every round; empty where it was timed alone."


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One model on one dataset."""

    dataset: str
    task: str
    times: Mapping[str, Timed]
    "By system: sagann, pyg, dgl, floor."
    outcomes: Mapping[str, str]
    "How the systems ended of which no variant ran, by system."
    peaks: Mapping[str, int]
    "Peak bytes above what is loaded, by contestant."
    wrong: tuple[str, ...]
    "Contestants whose losses are not sagann's."
    origin: str
    "Commit and processor."

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
        timed = Timed(name=name, seconds=median(turns or record["seconds"]), turns=turns)
        system = _system(name)
        best = times.get(system)
        # What was timed in alternation goes before what was timed alone, at another moment.
        if best is None or (not timed.turns, timed.seconds) < (not best.turns, best.seconds):
            times[system] = timed
    ended = {
        _system(name): record["outcome"]
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
            if record["outcome"] == "ok" and _system(name) != "floor"
        },
        wrong=tuple(_wrong(alone)),
        origin=", ".join(dict.fromkeys(map(origin_of, alone.values()))),
    )


def _system(name: str) -> str:
    return name if name.startswith("sagann") else name.partition(":")[0]


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


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean; NaN of nothing."""
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else math.nan


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A target, and whether it is reached."""

    target: str
    reached: bool | None
    "None where nothing was measured."
    figures: str


def verdicts(rows: Sequence[Row], *, of_defaults: bool = False) -> list[Verdict]:
    """Every target of the epoch benchmark. A row in which someone computes something else does not count.

    Args:
        rows: what was measured.
        of_defaults: whether epochs are those of ``sagann train`` as it is, which have targets of their own.
    """
    sound = sound_rows(rows)
    rows = [row for row in rows if not row.wrong]
    speedups = {(row.dataset, row.task): row.speedup for row in rows if row.speedup is not None}
    found = [sound, at_least("never slower than the best peer", speedups, 1.0)]
    for models, least in () if of_defaults else ((DENSE_MODELS, 1.4), (EDGE_MODELS, 4.0)):
        chosen = {key: ratio for key, ratio in speedups.items() if key[1] in models}
        found.append(at_least(f"{', '.join(models)}: at least {least:g} times as fast", chosen, least))
    found.append(mean_at_least(speedups.values(), 4.0 if of_defaults else 3.0))
    for name, engine in (("sagann", ""), (LEAN, ", lean engine")):
        shares = {(row.dataset, row.task): share for row in rows if (share := row.memory_share(name)) is not None}
        found.append(at_most(f"peak memory at most half of the least peer's{engine}", shares, 0.5))
    slower = {(row.dataset, row.task): 1 / ratio for row in rows if (ratio := row.ratio(LEAN))}
    found.append(
        at_least(
            "never slower than the best peer, lean engine",
            {key: speedups[key] * part for key, part in slower.items() if key in speedups},
            1.0,
        )
    )
    floors = {(row.dataset, row.task): row.times_floor for row in rows if row.times_floor is not None}
    found.append(at_most("at most 1.3 times the floor", floors, 1.3))
    return found


def sound_rows(rows: Sequence[Row]) -> Verdict:
    """Whether sagann ran everywhere and all computed the same, without which the other targets mean little."""
    faults = [f"{row.task} on {row.dataset}: {', '.join(row.wrong)} differ" for row in rows if row.wrong]
    faults += [
        f"{row.task} on {row.dataset}: sagann {row.outcomes.get('sagann', 'was not measured')}"
        for row in rows
        if "sagann" not in row.times
    ]
    unmatched = [f"{row.task} on {row.dataset}" for row in rows if "sagann" in row.times and row.speedup is None]
    figures = "; ".join(faults) or f"{len(rows)} of {len(rows)}"
    if unmatched:
        figures += f"; no peer ran, so no ratio: {', '.join(unmatched)}"
    return Verdict(
        target="sagann runs, and all compute the same", reached=not faults if rows else None, figures=figures
    )


def mean_at_least(speedups: Collection[float], least: float) -> Verdict:
    """Whether the geometric mean reaches ``least``."""
    mean = geometric_mean(speedups)
    return Verdict(
        target=f"geometric mean of speed at least {least:g}",
        reached=mean >= least if speedups else None,
        figures=f"{mean:.2f} over {len(speedups)}" if speedups else "nothing measured",
    )


def at_least(target: str, values: Mapping[tuple[str, str], float], least: float) -> Verdict:
    """Whether every value, by dataset and task, reaches ``least``."""
    return _judge(target, values, {key for key, value in values.items() if value < least}, min)


def at_most(target: str, values: Mapping[tuple[str, str], float], most: float) -> Verdict:
    """Whether no value, by dataset and task, exceeds ``most``."""
    return _judge(target, values, {key for key, value in values.items() if value > most}, max)


def _judge(
    target: str,
    values: Mapping[tuple[str, str], float],
    missing: set[tuple[str, str]],
    worst: Callable[..., tuple[str, str]],
) -> Verdict:
    if not values:
        return Verdict(target=target, reached=None, figures="nothing measured")
    key = worst(values, key=values.__getitem__)
    figures = f"{len(values) - len(missing)} of {len(values)}; worst {values[key]:.2f} ({key[1]} on {key[0]})"
    if missing:
        figures += "; missed: " + ", ".join(
            f"{task} on {dataset} {values[dataset, task]:.2f}" for dataset, task in sorted(missing)
        )
    return Verdict(target=target, reached=not missing, figures=figures)


def render(
    rows: Sequence[Row], records: Sequence[Record], heading: Sequence[str], targets: Iterable[Verdict]
) -> str:
    """The report in Markdown."""
    lines = [*heading, ""]
    for dataset in dict.fromkeys(row.dataset for row in rows):
        lines += _table(dataset, [row for row in rows if row.dataset == dataset])
        lines += _first_runs(dataset, records)
    lines += _ablation(rows)
    return "\n".join([*lines, *table_of(targets)]) + "\n"


def table_of(targets: Iterable[Verdict]) -> list[str]:
    """The targets in Markdown."""
    said = {True: "yes", False: "**no**", None: "not measured"}
    rows = [f"| {v.target} | {said[v.reached]} | {v.figures} |" for v in targets]
    return ["## Targets", "", "| target | reached | figures |", "|---|---|---|", *rows]


def _table(dataset: str, rows: Sequence[Row]) -> list[str]:
    lines = [
        f"## {dataset}",
        "",
        "| model | sagann s | PyG s | DGL s | best peer / sagann | floor s | times floor | best peer / floor | sagann MiB | least peer MiB | share | lean MiB | share | lean / sagann, s | measured at |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        least = row.least_peer
        cells = [
            row.task + (f" **(computes something else: {', '.join(row.wrong)})**" if row.wrong else ""),
            *(_seconds(row, system) for system in ("sagann", *PEERS)),
            _figure(row.speedup, bold=True),
            _seconds(row, "floor"),
            _figure(row.times_floor),
            _figure(row.headroom),
            _mebibytes(row.peaks.get("sagann")),
            "-" if least is None else f"{_mebibytes(least[1])} ({least[0]})",
            _figure(row.memory_share()),
            _mebibytes(row.peaks.get(LEAN)),
            _figure(row.memory_share(LEAN)),
            _figure(row.ratio(LEAN)),
            row.origin,
        ]
        lines.append(table_line(cells))
    speedups = [row.speedup for row in rows if row.speedup is not None and not row.wrong]
    shares, lean = (
        [share for row in rows if (share := row.memory_share(name)) is not None and not row.wrong]
        for name in ("sagann", LEAN)
    )
    if speedups:
        lines += [
            "",
            f"Geometric means: speed {geometric_mean(speedups):.2f}, memory {geometric_mean(shares):.2f}, memory of the "
            f"lean engine {geometric_mean(lean):.2f}.",
        ]
    return [*lines, ""]


def _seconds(row: Row, system: str) -> str:
    if system not in row.times:
        return row.outcomes.get(system, "-")
    timed = row.times[system]
    variant = timed.name.partition(":")[2]
    alone = "" if timed.turns else ", alone"
    return f"{timed.seconds:.4g}" + (f" ({variant}{alone})" if variant else " (alone)" if alone else "")


def _figure(value: float | None, *, bold: bool = False) -> str:
    if value is None:
        return "-"
    return f"**{value:.2f}**" if bold else f"{value:.2f}"


def _mebibytes(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.0f}"


def _first_runs(dataset: str, records: Sequence[Record]) -> list[str]:
    """Preparing, the first epoch, and what every variant did alone."""
    mine = [record for record in records if record["kind"] == "alone" and record["dataset"] == dataset]
    lines = [
        "<details><summary>Every contestant alone</summary>",
        "",
        "| model | contestant | rehearsal s | first epoch s | epoch s | loaded MiB | first peak MiB | peak MiB | |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for record in mine:
        head = f"| {record['task']} | {record['contestant']} "
        if record["outcome"] != "ok":
            lines.append(head + f"| | | | | | | {record['outcome']}: {_last_line(record['detail'])} |")
            continue
        mebibytes = " | ".join(
            _mebibytes(record[key]) for key in ("loaded_bytes", "first_peak_bytes", "peak_bytes")
        )
        lines.append(
            head + f"| {record['rehearsal_s']:.3g} | {record['first_s']:.4g} | {median(record['seconds']):.4g} "
            f"| {mebibytes} | {_parts(record.get('parts', {}))} |"
        )
    return [*lines, "", "</details>", ""]


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:160].replace("|", "/")


def _parts(parts: Mapping[str, float]) -> str:
    """The parts of a floor, with the rates that they ran at."""
    if not parts:
        return ""

    def rate(amount: str, seconds: str) -> str:
        return f"{parts[amount] / max(parts[seconds], 1e-9) / 1e9:.0f}"

    return (
        f"products {parts['products_s']:.3g} s at {rate('operations', 'products_s')} GFLOP/s, gathers "
        f"{parts['gathers_s']:.3g} s at {rate('gathered_bytes', 'gathers_s')} GB/s, copies {parts['copies_s']:.3g} s "
        f"at {rate('moved_bytes', 'copies_s')} GB/s"
    )


def _ablation(rows: Sequence[Row]) -> list[str]:
    """How many times as long sagann takes with each optimisation switched off."""
    names = list(
        dict.fromkeys(name for row in rows for name in row.times if name.startswith("sagann:") and name != LEAN)
    )
    if not names:
        return []
    lines = [
        "## Without one optimisation at a time",
        "",
        "Times as long as with all of them; in parentheses, times the memory.",
        "",
        "| dataset | model | " + " | ".join(name.partition(":")[2] for name in names) + " |",
        "|---|---|" + "--:|" * len(names),
    ]
    for row in rows:
        cells = []
        for name in names:
            ratio, ours = row.ratio(name), row.peaks.get("sagann")
            share = f" ({row.peaks[name] / ours:.2f})" if ours and name in row.peaks else ""
            cells.append(row.outcomes.get(name, "-") if ratio is None else f"{ratio:.2f}{share}")
        lines.append(f"| {row.dataset} | {row.task} | " + " | ".join(cells) + " |")
    return [*lines, ""]
