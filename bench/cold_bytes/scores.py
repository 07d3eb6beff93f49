"""Bytes that sampled epochs read from the cold tier, by score: ``python -m bench.cold_bytes.scores --data FOLDER``. Prints a Markdown table.

The hot rows are those of the highest scores, and stay the same. The oracle's are those that these very epochs read most often, so no choice
of rows is better. "other epochs" takes the rows that as many other epochs of the same seeds read most often: how far the oracle is beyond
what can be known before the epochs run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from bench.cold_bytes.sampled_epochs import OPTIONS, ROW_BYTES, Case, cases, numbers
from bench.pages import command_line, figure, head, parser_of, row
from sagann.tiering import SCORES, hottest, measured_accesses

COMPARED = ("wrpr", "vip")
"Scores whose bytes are divided by those of out-degree and of the oracle."


def main() -> None:
    options = _options()
    print(f"`{command_line('bench.cold_bytes.scores')}`.\n")
    print(
        f'{options.epochs} epochs. Rows of {ROW_BYTES} bytes. "x% less" is relative to no tiering; "/" divides cold bytes.\n'
    )
    columns = ["graph", "fanouts", "hot", "no tiering, MiB", *SCORES, "other epochs", "oracle"]
    columns += [f"{score} / {other}" for other in ("degree", "oracle") for score in COMPARED]
    print(head(columns, words=("fanouts",)), flush=True)
    for case in cases(options):
        for fanouts in options.fanouts:
            for cells in rows_of(case, fanouts, options.hot, options.epochs):
                print(row(cells), flush=True)


def rows_of(case: Case, fanouts: tuple[int, ...], parts: Iterable[float], num_epochs: int) -> Iterator[list[str]]:
    """The rows of the table for a graph and fanouts, one for each part of hot rows."""
    reads = _reads(case, fanouts, range(num_epochs))
    scores: dict[str, Tensor] = {by: case.score(by, fanouts) for by in SCORES}
    scores["other epochs"] = _reads(case, fanouts, range(num_epochs, 2 * num_epochs))
    scores["oracle"] = reads
    total = int(reads.sum())
    for part in parts:
        num_hot = int(part * len(reads))
        cold = {by: total - int(reads[hottest(score)[:num_hot]].sum()) for by, score in scores.items()}
        yield [
            case.name,
            ", ".join(map(str, fanouts)),
            f"{part:.0%}",
            f"{total * ROW_BYTES / 2**20:,.1f}",
            *(f"{1 - count / total:.1%} less" for count in cold.values()),
            *(
                figure(cold[by] / cold[other] if cold[other] else None, ".3f")
                for other in ("degree", "oracle")
                for by in COMPARED
            ),
        ]


def _reads(case: Case, fanouts: tuple[int, ...], epochs: Iterable[int]) -> Tensor:
    """How many batches of the epochs read each row, int64 [num_vertices]."""
    sampled = (
        measured_accesses(case.topology, case.seeds, fanouts, batch_size=case.batch_size, epoch=epoch)
        for epoch in epochs
    )
    return torch.stack(list(sampled)).sum(0)


def _options() -> argparse.Namespace:
    hot, fanouts = ([0.1], "parts of the rows that are hot"), ([(25, 10), (15, 10, 5)], "fanouts", numbers)
    return parser_of(__doc__, {"epochs": 3}, **OPTIONS, hot=hot, fanouts=fanouts).parse_args()


if __name__ == "__main__":
    main()
