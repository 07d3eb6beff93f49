"""Sections of the page of performance that repeat what files of results say: mini-batches, workers, and devices."""

from __future__ import annotations

from pathlib import Path

from bench.pages import captioned_tables, head, read_table, row as table_row

MINIBATCHES = """## Mini-batches

Speed-up over the faster of PyG (with torch-sparse) and DGL, each with its best variant, alternating in one run. The pages in `bench/results`
say where the time goes, and [mini-batches](minibatches.md) how to train this way.
"""
SAMPLED = (
    ("minibatches.md", "it / sagann", "sampled epochs in memory", "`python -m bench.minibatches`"),
    (
        "minibatches_on_disk.md",
        "it / sagann",
        "sampled batches, features on disk, a limit of a quarter of them; one batch of PyG",
        "`python -m bench.minibatches.on_disk`",
    ),
)
"Files of results, the column of ratios, what is measured, and the command."
PAGES = ("pyg_models.md",)
"Files of results that are sections as they are."
DEVICE_COLUMNS = ("what", "on", "sagann s", "against", "s", "is", "remarks")
"Columns of the table of a CUDA device."
DEVICE_NOTE = """*Is* is, for an epoch in memory, how many times as fast as PyG it is; within 1/8 of what P = 1 takes by plan, how many times as long as P = 1 an
epoch takes. `bench/results/device.md` says what limits each, and has the gathers; `minibatches_cuda.md`, `hybrid_device.md` and
`cold_bytes_device.md` beside it have sampled epochs, hybrid training and rows of features.
"""


def minibatch_section(results: Path) -> list[str]:
    """The section on mini-batches; none without any of its results.

    Args:
        results: folder of the benchmarks' files.
    """
    rows = []
    for name, column, what, command in SAMPLED:
        for caption, table in captioned_tables(results / name, column):
            peers = [row for row in table if not row["contestant"].startswith("sagann") and row[column] != "-"]
            if peers:
                best = min(peers, key=lambda row: float(row[column]))
                case = caption.removesuffix(":") if caption.endswith(":") else "2-layer SAGE"
                rows.append(table_row([what, case, best["contestant"], f"**{best[column]}**", command]))
    header = head(
        ("measured", "case", "the faster peer", "times as fast", "command"),
        words=("case", "the faster peer", "command"),
    )
    return ["", MINIBATCHES, header, *rows, *_large(results / "minibatches_large.md")] if rows else []


def _large(path: Path) -> list[str]:
    """A sentence on a graph whose features are larger than a hard limit; nothing where it was not trained."""
    trained = [row for row in read_table(path, "s / batch") if row["outcome"] == "ok"]
    if not trained:
        return []
    row = trained[0]
    return [
        "",
        f"A quarter of papers100M's shape (27.75M vertices, 400M edges, 13.2 GiB of features on disk) trains a SAGE of three layers within a hard "
        f"limit of 6 GiB:\n{row['s / batch']} s a batch of {row['rows / batch']} rows, {row['held MiB']} MiB held "
        "(`minibatches_large.md`).",
    ]


def page_section(path: Path) -> list[str]:
    """A page of figures as a section; none without it."""
    if not path.exists():
        return []
    # Headings stand one level deeper.
    return ["", *(f"#{line}" if line.startswith("#") else line for line in path.read_text().splitlines())]


def device_section(path: Path) -> list[str]:
    """The tables of a page on a device as one table, below the page's beginning; none without the page."""
    rows = [row for row in read_table(path, DEVICE_COLUMNS[-1]) if not row["what"].startswith("gather")]
    if not rows:
        return []
    text = path.read_text().splitlines()
    begins = next(at for at, line in enumerate(text) if line.startswith(("## ", "|")))
    lines = ["", f"#{text[0]}", *text[1:begins], DEVICE_NOTE, head(DEVICE_COLUMNS, words=DEVICE_COLUMNS)]
    return [*lines, *(table_row(row[name] for name in DEVICE_COLUMNS) for row in rows)]


def device_sentence(path: Path) -> str:
    """How fast and how slow epochs on a device are; that nothing is measured without its results."""
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
    if not fast or not whole or not ordinary:
        return "Nothing is measured on a CUDA device."
    return (
        f"[On a CUDA device](#on-a-cuda-device) an epoch in memory is {min(fast):.1f} to {max(fast):.1f} times as fast as PyG's best. One "
        f"streamed within\nan eighth of the memory of P = 1 takes {min(whole):.0f} to {max(whole):.0f} times as long as streamed with P = 1, and "
        f"{min(ordinary):.0f} to {max(ordinary):.0f} times as long as the ordinary\nepoch in memory."
    )
