"""Write docs/performance.md, and the README's table, from bench/results: ``python -m bench.performance_page``.

The page answers three questions with a table each. It has no figure of its own: every one is computed from the records
and tables that the benchmarks wrote.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

from bench.contest import Record, key_of
from bench.epochs.graphs import SHAPES
from bench.epochs.report import LEAN, PEERS, Row, rows_of, table_of
from bench.pages import captioned_tables, head, read_table, row as table_row
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
CONTESTS = {"defaults": "epochs, defaults of `sagann train`", "epochs": "epochs, no dropout"}
"The files of records, and what is measured in each."
INTRODUCTION = """# Performance

On the CPU, against the faster of PyG and DGL, each with its best variant:

{fast}

{small}
{sure}
{device}

Unless stated otherwise, figures are from {processors}, {threads} threads, 24 GiB of memory and PyTorch on the CPU. `make performance`
writes this page from `bench/results`, whose README lists the command behind each file. Run commands from the root of a checkout, with the
extra `bench`.
"""
FAST = """## How fast

Speed-up over the faster of PyG and DGL, alternating in one run (`python -m bench.epochs`, or with `--defaults`). The floor is the least
time of an epoch: its dense products by PyTorch, and its bytes at the bandwidth of a C++ gather and of copies on the same graph. *Most to
gain* is the speed-up at the floor. Graphs of a few thousand vertices are far from it, because Python calls dominate their epochs
(`python -m bench.small_topologies`).
"""
SMALL = """## How small

Peak memory of a process beyond its loaded graph. In memory, sagann is compared with the leanest variant of PyG and DGL, however slow;
ranges are over graphs and models. Within a budget, it is compared with its own streamed epoch at P = 1 (`make streaming`; the largest
graph: `python -m bench.size`).
"""
MINIBATCHES = """## Mini-batches

Speed-up over the faster of PyG (with torch-sparse) and DGL, each with its best variant, alternating in one run. `bench/results` shows
where the time goes, [mini-batches](minibatches.md) how to train this way.
"""
SAMPLED = {
    "minibatches.md": "sampled epochs in memory",
    "minibatches_on_disk.md": "sampled batches, features on disk, a limit of a quarter of them; one batch of PyG",
}
"Files of results, and what is measured."
PYG_MODELS = "pyg_models.md"
"The file of results that is a section as it is."
DEVICE_COLUMNS = ["what", "on", "sagann s", "against", "s", "is", "remarks"]
"Columns of the table of a CUDA device."
DEVICE_NOTE = """The column *is*: in memory, the speed-up over PyG; streamed within 1/8 of the memory of P = 1, how many times as long as P = 1 an epoch
takes. `bench/results/device.md` explains the limits; `minibatches_cuda.md`, `hybrid_device.md` and `cold_bytes_device.md` have the rest.
"""


def main() -> None:
    """Write the page and the README's table."""
    PAGE.write_text(render(RESULTS))
    README.write_text(with_table(README.read_text(), RESULTS))


def render(results: Path) -> str:
    """The page in Markdown, from a folder of the benchmarks' files."""
    contests = {name: _records(results / f"{name}.jsonl") for name in CONTESTS}
    rows = {name: [row for row in rows_of(records) if not row.wrong] for name, records in contests.items()}
    streamed = read_table(results / "streaming.md", "measured MiB")
    size = read_table(results / "size.md", "held MiB")
    introduction = INTRODUCTION.format(
        fast="\n".join(_fast_sentence(name, found) for name, found in rows.items()),
        small=_small_sentence(streamed, size),
        sure=_sure_sentence(contests, streamed),
        processors=_processors(record for found in contests.values() for record in found),
        device=device_sentence(results / "device.md"),
        threads=_threads(results, "epochs"),
    )
    tables = [introduction, FAST, *_fast_table(rows), "", SMALL, *_small_table(rows, streamed, size)]
    others = [
        *minibatch_section(results),
        "",
        # Headings of a page stand one level deeper in a section.
        *(f"#{line}" if line.startswith("#") else line for line in (results / PYG_MODELS).read_text().splitlines()),
        *device_section(results / "device.md"),
    ]
    return "\n".join([*tables, *others, ""])


def with_table(readme: str, results: Path) -> str:
    """The README with its table of epochs beside PyG and DGL between its marks, from a folder of the benchmarks' files."""
    records = [record for record in _records(results / "defaults.jsonl") if record["dataset"] == SHOWN]
    shape = SHAPES[SHOWN]
    before, mark, rest = readme.partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    lines = [
        "",
        f"Seconds per epoch, and MiB beyond the loaded graph, on a generated graph with {shape.vertices:,} vertices, {shape.edges:,} edges and\n"
        f"{shape.features} features: {CONTESTS['defaults'].removeprefix('epochs, ')}, against the best variant of each peer (`python -m bench.epochs --defaults`).",
        "",
        *table_of(rows_of(records)),
        "",
        f"{_threads(results, 'defaults')} threads of {_processors(records)}; contestants alternate; speed-ups are medians of per-round "
        "ratios, not quotients of columns.",
    ]
    return before + mark + "\n".join([*lines, "", ""]) + end + after


def _processors(records: Iterable[Record]) -> str:
    return " and ".join(dict.fromkeys(f"an {record['processor']}" for record in records))


def _threads(results: Path, name: str) -> int:
    return int(_lines(results / f"{name}.jsonl")[0]["settings"]["threads"])


def _fast_table(rows: dict[str, list[Row]]) -> list[str]:
    columns = "measured | graph | cases | geometric mean | least | most | times the floor | most to gain"
    lines = [head(columns, words=("graph",))]
    for name, found in rows.items():
        for dataset in dict.fromkeys(row.dataset for row in found):
            mine = [row for row in found if row.dataset == dataset]
            speeds = [row.speedup for row in mine if row.speedup is not None]
            figures = [f"**{geometric_mean(speeds):.2f}**", f"{min(speeds):.2f}", f"{max(speeds):.2f}"]
            figures += [_mean(row.times_floor for row in mine), _mean(row.headroom for row in mine)]
            lines.append(table_row([CONTESTS[name], dataset, len(speeds), *figures]))
    return lines


def _small_table(
    rows: dict[str, list[Row]], streamed: Sequence[dict[str, str]], size: Sequence[dict[str, str]]
) -> list[str]:
    lines = [head("case | memory | compared with | share | times as long", words=("compared with",))]
    for name, found in rows.items():
        for contestant, engine in (("sagann", ""), (LEAN, ", `--engine lean`")):
            shares = [share for row in found if (share := row.memory_share(contestant)) is not None]
            share = f"{geometric_mean(shares):.2f} ({min(shares):.2f} to {max(shares):.2f})"
            cells = [f"{CONTESTS[name]}{engine}; {len(shares)} cases", "-", "the leanest of PyG and DGL", share]
            lines.append(table_row([*cells, _mean(_slowdown(row, contestant) for row in found)]))
    for case, ways in _by_case(streamed):
        dense = ways[WHOLE]
        held, whole = float(ways[ON_DISK]["measured MiB"]), float(dense["measured MiB"])
        named = f"{case}, budget of {ways[ON_DISK]['budget MiB']} MiB, host on disk"
        cells = [named, f"{held:.0f} MiB", f"streamed with P = 1: {whole:.0f} MiB", f"{held / whole:.2f}"]
        lines.append(table_row([*cells, ways[ON_DISK]["times P = 1 folded"]]))
    for row in size:
        ended = f"{row['epoch s']} s an epoch" if row["epoch s"] != "-" else f"{row['outcome']}: {row['came to']}"
        named = f"9.4 M vertices, 231 M edges, 300 features, limit of 6 GiB: {row['who']}"
        lines.append(table_row([named, f"{row['held MiB']} MiB", "-", "-", ended]))
    return lines


def minibatch_section(results: Path) -> list[str]:
    column, rows = "it / sagann", []
    for name, what in SAMPLED.items():
        for caption, table in captioned_tables(results / name, column):
            peers = [row for row in table if not row["contestant"].startswith("sagann") and row[column] != "-"]
            best = min(peers, key=lambda row: float(row[column]))
            case = caption.removesuffix(":") if caption.endswith(":") else "2-layer SAGE"
            command = f"`python -m bench.{name.removesuffix('.md').replace('_', '.', 1)}`"
            rows.append(table_row([what, case, best["contestant"], f"**{best[column]}**", command]))
    columns = "measured | case | the faster peer | times as fast | command"
    # A graph whose features are larger than a hard limit.
    large = next(row for row in read_table(results / "minibatches_large.md", "s / batch") if row["outcome"] == "ok")
    return [
        "",
        MINIBATCHES,
        head(columns, words=("case", "the faster peer", "command")),
        *rows,
        "",
        "At a quarter of papers100M's size (27.75M vertices, 400M edges, 13.2 GiB of features on disk), a three-layer SAGE trains within a hard "
        f"limit of 6 GiB:\n{large['s / batch']} s per batch of {large['rows / batch']} rows, with {large['held MiB']} MiB held "
        "(`minibatches_large.md`).",
    ]


def device_section(path: Path) -> list[str]:
    """The tables of a page on a device as one table, below the page's beginning."""
    rows = [row for row in read_table(path, DEVICE_COLUMNS[-1]) if not row["what"].startswith("gather")]
    text = path.read_text().splitlines()
    simulated = path.with_name("streaming_simulated.md").read_text().splitlines()[-2:]
    begins = next(at for at, line in enumerate(text) if line.startswith(("## ", "|")))
    lines = ["", f"#{text[0]}", *text[1:begins], DEVICE_NOTE, head(DEVICE_COLUMNS, words=DEVICE_COLUMNS)]
    return [*lines, *(table_row(row[name] for name in DEVICE_COLUMNS) for row in rows), "", *simulated]


def device_sentence(path: Path) -> str:
    """How fast and how slow epochs on a device are."""
    rows = read_table(path, "sagann s")
    # Rows are named 'epoch, MODEL' and 'streamed within 1/8, MODEL'.
    epochs, streamed = (
        {(row["what"].partition(", ")[2], row["on"]): row for row in rows if row["what"].startswith(kind)}
        for kind in ("epoch", "streamed")
    )
    fast = [float(row["is"]) for row in epochs.values() if row["is"] != "-"]
    whole = [float(row["is"]) for row in streamed.values() if row["is"] != "-"]
    ordinary = [
        float(row["sagann s"]) / float(epochs[case]["sagann s"]) for case, row in streamed.items() if case in epochs
    ]
    return (
        f"[On a CUDA device](#on-a-cuda-device) an epoch in memory is {min(fast):.1f} to {max(fast):.1f} times as fast as PyG's best. One "
        f"streamed within\nan eighth of the memory of P = 1 takes {min(whole):.0f} to {max(whole):.0f} times as long as streamed with P = 1, and "
        f"{min(ordinary):.0f} to {max(ordinary):.0f} times as long as the ordinary\nepoch in memory."
    )


def _fast_sentence(name: str, rows: Sequence[Row]) -> str:
    speeds = [row.speedup for row in rows if row.speedup is not None]
    slower = sum(speed < 1 for speed in speeds)
    compared = "never slower" if not slower else f"slower in {slower} of {len(speeds)} cases"
    return f"- {CONTESTS[name]}: {compared}, {geometric_mean(speeds):.1f} times as fast in the geometric mean of {len(speeds)} cases."


def _small_sentence(streamed: Sequence[dict[str, str]], size: Sequence[dict[str, str]]) -> str:
    cases = [ways for _, ways in _by_case(streamed)]
    times = [float(ways[ON_DISK]["times P = 1 folded"]) for ways in cases]
    ordinary = [float(ways[ON_DISK]["s"]) / float(ways[ORDINARY]["s"]) for ways in cases]
    killed = [row["who"] for row in size if row["outcome"] == "killed"]
    return (
        f"With an eighth of its memory as the budget, and the rest on disk, an epoch takes {min(times):.1f} to {max(times):.1f} times as long\n"
        f"as streamed with P = 1, and {min(ordinary):.1f} to {max(ordinary):.1f} times as long as an ordinary epoch in memory. "
        f"Features of 10.5 GiB train\nwithin 6 GiB, where {len(killed)} of {len(size) - 1} variants of PyG and DGL are killed."
    )


def _sure_sentence(contests: Mapping[str, Sequence[Record]], streamed: Sequence[dict[str, str]]) -> str:
    counts = [_sound(records) for records in contests.values()]
    sound, compared = (sum(column) for column in zip(*counts, strict=True))
    limited = [row for row in streamed if row["budget MiB"] != "-"]
    differing = max(float(row["loss differs by"]) for row in limited)
    beyond = max(
        float(row["measured MiB"]) - float(row["budget MiB"]) for row in limited if row["epoch"] == ON_DISK
    )
    return (
        f"Its losses equal those of PyG and DGL in {sound} of {compared} comparisons. Training within a budget changes losses by at most "
        f"{differing:.0e}\n(float32), and a process holds at most {math.ceil(round(beyond, 1))} MiB beyond its budget: weights, gradients, Adam's "
        "moments, the C library."
    )


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


def _records(path: Path) -> list[Record]:
    """The measurements of a file of records; the last one of a task counts."""
    return list({key_of(record): record for record in _lines(path)[1:]}.values())


def _lines(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    main()
