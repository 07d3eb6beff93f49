"""Write docs/performance.md, and the README's table, from bench/results: ``python -m bench.performance_page``.

The page answers three questions with a table each. It has no figure of its own: every one is computed from the records
and tables that the benchmarks wrote.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.accuracy.report import values_of, verdicts
from bench.contest import Record
from bench.epochs.graphs import SHAPES
from bench.epochs.report import LEAN, PEERS, Row, geometric_mean, rows_of
from bench.pages import head, mebibytes, read_table, row as table_row
from bench.performance_sections import (
    PAGES,
    device_section,
    device_sentence,
    minibatch_section,
    page_section,
)
from bench.workers import RESULTS, ROOT

PAGE = ROOT / "docs" / "performance.md"
README = ROOT / "README.md"
MARKS = ("<!-- table: make performance -->\n", "<!-- end of table -->\n")
"Lines of the README between which its table stands."
SHOWN = "reddit-small"
"Generated graph of the README's table."
ON_DISK = "budget, host on disk"
"The way of training inside a budget that takes the least memory."
WHOLE = "P = 1, loss folded"
"The streamed epoch that one inside a budget is compared with."
ORDINARY = "engine"
"The epoch of a run without a budget."
CONTESTS = {
    "defaults": "epochs, defaults of `sagann train`",
    "epochs": "epochs, no dropout",
}
"The files of records, and what is measured in each."
INTRODUCTION = """# Performance

On the CPU, against the faster of PyG and DGL, each with its best variant:

{fast}

{small}
{sure}
{device}

Sections about a CUDA device name their machine. All other figures come from {processors}, {threads} threads, 24 GiB of memory and PyTorch on
the CPU. `make performance` writes this page from `bench/results`, whose README names the command behind each file. Commands run from the root
of a checkout, with the extra `bench`.
{measured_on}"""
FAST = """## How fast

Speed-up over the faster of PyG and DGL, alternating in one run. The floor is the time of what an epoch cannot do without: its dense products by
PyTorch, and its bytes at the bandwidth of a C++ gather and of copies on the same graph. *Most to gain* is the speed-up that a program at the
floor would reach. Graphs of a few thousand vertices are far from it, because calls from Python take most of their epoch
(`python -m bench.small_topologies`).
"""
SMALL = """## How small

Peak memory of a process beyond its loaded graph. In memory, sagann is compared with the leanest variant of PyG and DGL, however slow;
ranges are over graphs and models. Within a budget, it is compared with its own streamed epoch at P = 1.
"""
SURE = """## How sure

The command beside each row checks it; tests check the same statements on small graphs.
"""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the benchmarks' files")
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    arguments.out.write_text(render(arguments.results))
    README.write_text(with_table(README.read_text(), arguments.results))


def render(results: Path) -> str:
    """The page in Markdown.

    Args:
        results: folder of the benchmarks' files.
    """
    contests = {name: _records(path) for name in CONTESTS if (path := results / f"{name}.jsonl").exists()}
    rows = {name: [row for row in rows_of(records) if not row.wrong] for name, records in contests.items()}
    streamed = read_table(results / "streaming.md", "measured MiB")
    size = read_table(results / "size.md", "held MiB")
    accuracies = _lines(results / "accuracy.jsonl")
    records = [record for found in contests.values() for record in found]
    introduction = INTRODUCTION.format(
        fast="\n".join(_fast_sentence(name, found) for name, found in rows.items()),
        small=_small_sentence(streamed, size),
        sure=_sure_sentence(contests),
        processors=" and ".join(dict.fromkeys(f"an {record['processor']}" for record in records)),
        measured_on=_measured_on(contests),
        device=device_sentence(results / "device.md"),
        threads=_settings(results / "epochs.jsonl")["threads"],
    )
    parts = [
        introduction,
        FAST,
        *_fast_table(rows),
        "",
        SMALL,
        *_small_table(rows, streamed, size),
        "",
        SURE,
        *_sure_table(contests, accuracies, streamed),
        *minibatch_section(results),
        *(line for name in PAGES for line in page_section(results / name)),
        *device_section(results / "device.md"),
    ]
    return "\n".join(parts) + "\n"


def with_table(readme: str, results: Path) -> str:
    """The README with its table of epochs beside PyG and DGL.

    Args:
        readme: its text, with the marks around the table.
        results: folder of the benchmarks' files.
    """
    records = {name: _records(results / f"{name}.jsonl") for name in CONTESTS}
    shown = {
        name: [row for row in rows_of(found) if row.dataset == SHOWN and not row.wrong]
        for name, found in records.items()
    }
    # The defaults, where they were measured on that graph.
    name = next((name for name, rows in shown.items() if rows), "epochs")
    rows = shown[name]
    measured = [record for record in records[name] if record["dataset"] == SHOWN]
    processors = " and ".join(dict.fromkeys(f"an {record['processor']}" for record in measured))
    shape = SHAPES[SHOWN]
    before, mark, rest = readme.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    columns = (
        "model",
        "sagann, s",
        "PyG, s",
        "DGL, s",
        "speed-up over the faster peer",
        "sagann, MiB",
        "leaner peer, MiB",
    )
    lines = [
        "",
        f"Seconds per epoch, and MiB beyond the loaded graph, on a generated graph with {shape.vertices:,} vertices, {shape.edges:,} edges and\n"
        f"{shape.features} features: {CONTESTS[name].removeprefix('epochs, ')}, against the best variant of each peer ({_command(name)}).",
        "",
        head(columns),
    ]
    for row in rows:
        seconds = [f"{row.times[who].seconds:.3f}" if who in row.times else "-" for who in ("sagann", *PEERS)]
        speed = "-" if row.speedup is None else f"**{row.speedup:.2f}**"
        peaks = [row.peaks["sagann"], None if row.least_peer is None else row.least_peer[1]]
        lines.append(table_row([row.task, *seconds, speed, *map(mebibytes, peaks)]))
    if processors:
        lines += [
            "",
            f"{_settings(results / f'{name}.jsonl')['threads']} threads of {processors}; contestants alternate; speed-ups are medians of per-round "
            "ratios, not quotients of columns.",
        ]
    return before + mark + "\n".join([*lines, "", ""]) + end + after


def _fast_table(rows: dict[str, list[Row]]) -> list[str]:
    columns = (
        "measured",
        "graph",
        "cases",
        "geometric mean",
        "least",
        "most",
        "times the floor",
        "most to gain",
        "command",
    )
    lines = [head(columns, words=("graph", "command"))]
    for name, found in rows.items():
        for dataset in dict.fromkeys(row.dataset for row in found):
            mine = [row for row in found if row.dataset == dataset]
            speeds = [row.speedup for row in mine if row.speedup is not None]
            if speeds:
                figures = [f"**{geometric_mean(speeds):.2f}**", f"{min(speeds):.2f}", f"{max(speeds):.2f}"]
                figures += [_mean(row.times_floor for row in mine), _mean(row.headroom for row in mine)]
                lines.append(table_row([CONTESTS[name], dataset, len(speeds), *figures, _command(name)]))
    return lines


def _small_table(
    rows: dict[str, list[Row]], streamed: Sequence[dict[str, str]], size: Sequence[dict[str, str]]
) -> list[str]:
    columns = ("case", "memory", "compared with", "share", "times as long", "command")
    lines = [head(columns, words=("compared with", "command"))]
    for name, found in rows.items():
        for contestant, engine in (("sagann", ""), (LEAN, ", `--engine lean`")):
            shares = [share for row in found if (share := row.memory_share(contestant)) is not None]
            if shares:
                share = f"{geometric_mean(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
                cells = [
                    f"{CONTESTS[name]}{engine}; {len(shares)} cases",
                    "-",
                    "the thriftiest of PyG and DGL",
                    share,
                ]
                lines.append(
                    table_row([*cells, _mean(_slowdown(row, contestant) for row in found), _command(name)])
                )
    for case, ways in _by_case(streamed):
        dense = ways[WHOLE]
        held, whole = float(ways[ON_DISK]["measured MiB"]), float(dense["measured MiB"])
        named = f"{case}, budget of {ways[ON_DISK]['budget MiB']} MiB, host on disk"
        cells = [named, f"{held:.0f} MiB", f"streamed with P = 1: {whole:.0f} MiB", f"{held / whole:.2f}"]
        lines.append(table_row([*cells, ways[ON_DISK]["times P = 1 folded"], "`make streaming`"]))
    for row in size:
        ended = f"{row['epoch s']} s an epoch" if row["epoch s"] != "-" else f"{row['outcome']}: {row['came to']}"
        named = f"9.4 M vertices, 231 M edges, 300 features, limit of 6 GiB: {row['who']}"
        lines.append(table_row([named, f"{row['held MiB']} MiB", "-", "-", ended, "`python -m bench.size`"]))
    return lines


def _sure_table(
    contests: dict[str, list[Record]], accuracies: Sequence[Record], streamed: Sequence[dict[str, str]]
) -> list[str]:
    lines = ["| statement | holds for | command |", "|---|---|---|"]
    for name, records in contests.items():
        sound, compared = _sound(records)
        if not compared:
            continue
        lines.append(
            f"| {CONTESTS[name]}: losses before the first and the third step are those of PyG and DGL | {sound} of {compared} "
            f"| {_command(name)} |"
        )
    published, equal = verdicts(values_of(accuracies))
    lines += [
        f"| accuracy is at most a point below the published mean, ten seeds ([accuracy](accuracy.md)) | {sum(published)} of "
        f"{len(published)} | `make accuracy` |",
        f"| accuracy equals PyG's with the same settings, five or ten seeds ([accuracy](accuracy.md)) | {sum(equal)} of {len(equal)} "
        "| `make accuracy` |",
    ]
    limited = [row for row in streamed if row["budget MiB"] != "-"]
    on_disk = [row for row in limited if row["epoch"] == ON_DISK]
    if on_disk:
        differing = max(float(row["loss differs by"]) for row in limited)
        beyond = max(round(float(row["measured MiB"]) - float(row["budget MiB"]), 1) for row in on_disk)
        lines += [
            f"| float32 losses inside a budget differ from those in memory by at most {differing:.1e} | all {len(limited)} "
            "| `make streaming` |",
            f"| a process with a budget holds at most {math.ceil(beyond)} MiB beyond it (weights, gradients, Adam's moments, the C "
            f"library), host on disk | all {len(on_disk)} | `make streaming` |",
        ]
    return lines


def _fast_sentence(name: str, rows: Sequence[Row]) -> str:
    speeds = [row.speedup for row in rows if row.speedup is not None]
    slower = sum(speed < 1 for speed in speeds)
    compared = "never slower" if not slower else f"slower in {slower} of {len(speeds)} cases"
    return f"- {CONTESTS[name]}: {compared}, {geometric_mean(speeds):.1f} times as fast in the geometric mean of {len(speeds)} cases."


def _small_sentence(streamed: Sequence[dict[str, str]], size: Sequence[dict[str, str]]) -> str:
    cases = [ways for _, ways in _by_case(streamed)]
    times = [float(ways[ON_DISK]["times P = 1 folded"]) for ways in cases]
    ordinary = [float(ways[ON_DISK]["s"]) / float(ways[ORDINARY]["s"]) for ways in cases]
    said = (
        f"With an eighth of its memory as the budget, and the rest on disk, an epoch takes {min(times):.1f} to {max(times):.1f} times as long\n"
        f"as streamed with P = 1, and {min(ordinary):.1f} to {max(ordinary):.1f} times as long as an ordinary epoch in memory."
        if times
        else "Nothing is measured inside a budget."
    )
    killed = [row["who"] for row in size if row["outcome"] == "killed"]
    if any(row["who"] == "sagann" and row["outcome"] == "ok" for row in size) and killed:
        said += f" Features of 10.5 GiB train\nwithin 6 GiB, where {len(killed)} of {len(size) - 1} ways of PyG and DGL are killed."
    return said


def _sure_sentence(contests: Mapping[str, Sequence[Record]]) -> str:
    counts = [_sound(records) for records in contests.values()]
    sound, compared = (sum(column) for column in zip(*counts, strict=True))
    return f"In {sound} of {compared} comparisons, its losses are those of PyG and DGL."


def _measured_on(contests: Mapping[str, Sequence[Record]]) -> str:
    """A list of what every processor measured; nothing where there is one processor."""
    tasks: dict[str, dict[tuple[str, str], dict[str, None]]] = {}
    of_dataset: dict[tuple[str, str], set[str]] = {}
    for name, records in contests.items():
        for record in records:
            found = tasks.setdefault(record["processor"], {}).setdefault((name, record["dataset"]), {})
            found[record["task"]] = None
            of_dataset.setdefault((name, record["dataset"]), set()).add(record["processor"])
    if len(tasks) < 2:
        return ""
    lines = ["", "Rows come from several processors:", ""]
    for processor, measured in tasks.items():
        graphs: dict[str, list[str]] = {}
        for (name, dataset), found in measured.items():
            # Where another processor measured other tasks of the graph, the tasks are named.
            which = f" ({', '.join(found)})" if len(of_dataset[name, dataset]) > 1 else ""
            graphs.setdefault(name, []).append(dataset + which)
        said = "; ".join(f"{CONTESTS[name]}: {', '.join(datasets)}" for name, datasets in graphs.items())
        lines.append(f"- {processor}: {said}.")
    return "\n".join([*lines, ""])


def _sound(records: Sequence[Record]) -> tuple[int, int]:
    """In how many cases sagann's losses are the peers', and in how many they were compared: not where each drops other values."""
    with_losses = {
        (record["dataset"], record["task"])
        for record in records
        if record.get("contestant") == "sagann" and any(loss is not None for loss in record.get("losses", ()))
    }
    compared = [
        row
        for row in rows_of(records)
        if (row.dataset, row.task) in with_losses and (row.wrong or any(peer in row.times for peer in PEERS))
    ]
    return sum(not row.wrong and "sagann" in row.times for row in compared), len(compared)


def _slowdown(row: Row, contestant: str) -> float | None:
    """How many times as long as the faster peer an engine of sagann takes."""
    own = 1.0 if contestant == "sagann" else row.ratio(contestant)
    return None if own is None or row.speedup is None else own / row.speedup


def _by_case(streamed: Iterable[dict[str, str]]) -> list[tuple[str, dict[str, dict[str, str]]]]:
    """The ways of running every model on every graph."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in streamed:
        found.setdefault(f"{row['dataset']}, {row['model']}", {})[row["epoch"]] = row
    return list(found.items())


def _mean(values: Iterable[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{geometric_mean(known):.2f}" if known else "-"


def _command(name: str) -> str:
    return f"`python -m bench.epochs{' --defaults' if name == 'defaults' else ''}`"


def _records(path: Path) -> list[Record]:
    """The measurements of a file of records; the last one of a task counts."""
    found = {
        (record["kind"], record["dataset"], record["task"], record.get("contestant", "")): record
        for record in _lines(path)[1:]
    }
    return list(found.values())


def _settings(path: Path) -> Record:
    settings: Record = _lines(path)[0]["settings"]
    return settings


def _lines(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


if __name__ == "__main__":
    main()
