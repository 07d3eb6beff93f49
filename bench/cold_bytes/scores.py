"""Bytes that sampled epochs read from the cold tier, by score: ``python -m bench.cold_bytes.scores --data FOLDER``. Prints a Markdown table.

The hot rows are those of the highest scores, and stay the same. The oracle's are those that these very epochs read most often.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import Tensor

from bench.cold_bytes.sampled_epochs import ROW_BYTES, Case, add_arguments, cases, numbers
from bench.epochs.__main__ import commit
from sagann.tiering import SCORES, hottest


def main() -> None:
    """Print a row for every graph and list of fanouts."""
    options = _options()
    print(f"`python -m bench.cold_bytes.scores {' '.join(sys.argv[1:])}` at {commit()}.\n")
    print(f"{options.hot:.0%} of the rows are hot; {options.epochs} epochs. Rows of {ROW_BYTES} bytes.")
    print('"x% less" is relative to no tiering.\n')
    columns = ["graph", "fanouts", "no tiering, MiB", *SCORES, "oracle"]
    print(f"| {' | '.join(columns)} |")
    print("|---|---" + "|--:" * (len(columns) - 2) + "|", flush=True)
    for case in cases(options):
        for fanouts in options.fanouts:
            print("|", " | ".join(row_of(case, fanouts, options.hot, options.epochs)), "|", flush=True)


def row_of(case: Case, fanouts: tuple[int, ...], hot: float, num_epochs: int) -> list[str]:
    """The row of the table for a graph and fanouts."""
    num_vertices = case.topology.num_src
    reads = torch.zeros(num_vertices, dtype=torch.int64)
    for ids in case.batches(fanouts, num_epochs):
        reads[torch.from_numpy(ids)] += 1
    total = int(reads.sum())

    def less(score: Tensor) -> str:
        return f"{int(reads[hottest(score, int(hot * num_vertices))].sum()) / total:.1%} less"

    scores = [case.score(by, fanouts) for by in SCORES]
    mib = f"{total * ROW_BYTES / 2**20:,.1f}"
    return [case.name, ", ".join(map(str, fanouts)), mib, *map(less, scores), less(reads)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--fanouts", type=numbers, nargs="+", default=[(25, 10), (15, 10, 5)])
    return parser.parse_args()


if __name__ == "__main__":
    main()
