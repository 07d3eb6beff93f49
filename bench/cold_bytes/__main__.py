"""Bytes that sampled epochs read from the cold tier, by cache: ``python -m bench.cold_bytes --data FOLDER``. Prints a Markdown table.

No row is read: the caches decide for the batches that the sampler gives, and rows that are not resident are counted. All caches have the
same slots and begin with the vertices that batches most probably read (the score 'vip'), which are read once before the first epoch and not
counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from bench.cold_bytes.sampled_epochs import ROW_BYTES, Case, add_arguments, cases, numbers
from bench.result_tables import table_line
from sagann.tiering import CACHES, AnnouncingCache, Cache, hottest

Batches = Sequence[np.ndarray]


def main() -> None:
    """Print a row for every graph."""
    options = _options()
    torch.set_num_threads(1)
    windows = [f"look-ahead, {window} batches" for window in options.windows]
    columns = ["graph", "batches", "no tiering, MiB", "static", *windows, "optimum", "fewest"]
    print(f"`python -m bench.cold_bytes {' '.join(sys.argv[1:])}`.\n")
    print(f"{options.hot:.0%} of the rows are hot; {options.epochs} epochs; fanouts {options.fanouts}.")
    print(
        f'Rows of {ROW_BYTES} bytes. "x% less" is relative to no tiering; "optimum" looks ahead over all epochs.\n'
    )
    print(f"| {' | '.join(columns)} |")
    print("|---" + "|--:" * (len(columns) - 1) + "|", flush=True)
    for case in cases(options):
        print(table_line(row_of(case, options)), flush=True)


def row_of(case: Case, options: argparse.Namespace) -> list[str]:
    """The row of the table for a graph."""
    topology = case.topology
    batches = list(case.batches(options.fanouts, range(options.epochs)))
    first = hottest(case.score("vip", options.fanouts))
    num_slots = int(options.hot * topology.num_src)

    def cold_rows(cache: str, window: int) -> int:
        made = CACHES[cache](topology.num_src, num_slots, first.numpy())
        began_s = time.perf_counter()
        count = num_cold_rows(made, batches, window)
        if options.speed:
            rate = sum(map(len, batches)) / (time.perf_counter() - began_s)
            print(f"{case.name}, {cache}, window {window}: {rate / 1e6:.1f} million ids / s", file=sys.stderr)
        return count

    num_rows = sum(map(len, batches))
    static = cold_rows("static", 1)
    ahead = [cold_rows("look-ahead", window) for window in options.windows]
    optimum = cold_rows("look-ahead", len(batches))
    shares = [f"{1 - count / num_rows:.1%} less" for count in (static, *ahead, optimum)]
    fewest = "look-ahead" if max(ahead) <= static else "**not look-ahead**"
    return [case.name, str(len(batches)), f"{num_rows * ROW_BYTES / 2**20:,.1f}", *shares, fewest]


def num_cold_rows(cache: Cache, batches: Batches, window: int) -> int:
    """Number of rows that are not resident when their batch is read; ``window`` batches are announced, that one among them."""
    if not isinstance(cache, AnnouncingCache):
        return sum(_num_missing(cache.place(ids).is_resident) for ids in batches)
    for ids in batches[:window]:
        cache.announce(ids)
    cold = 0
    for number in range(len(batches)):
        cold += _num_missing(cache.place_next().is_resident)
        for ids in batches[number + window : number + window + 1]:
            cache.announce(ids)
    return cold


def _num_missing(is_resident: np.ndarray) -> int:
    return len(is_resident) - int(np.count_nonzero(is_resident))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--hot", type=float, default=0.1, help="part of the rows that are hot")
    parser.add_argument("--windows", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--fanouts", type=numbers, default=(25, 10))
    parser.add_argument("--speed", action="store_true", help="print ids per second of each cache as well")
    return parser.parse_args()


if __name__ == "__main__":
    main()
