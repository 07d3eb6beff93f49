"""The report of the size benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from bench.pages import head, mebibytes, row
from bench.size.contest import Result
from bench.size.limit import Ended

LOSSES = "loss before the first and the last step"
HEADER = head(
    ("who", "outcome", "came to", "epoch s", "whole run s", "held MiB", "limit hit", LOSSES),
    words=("outcome", "came to", LOSSES),
)
NOTES = """\
*Killed* is by the kernel's own count of the group's kills. *Held* is the most memory of the processes' own, looked at twice
a second; the rest of a group is the cache of files, which makes way when the limit is *hit*. Epoch seconds are the median;
the whole run is with imports, checks, preparation, and sagann's evaluation of all splits."""
_SHOWN = ("P = ", "Memory:", "An epoch:", "On disk:", "Expected:", "Of that,")


def plan_lines(plan: Ended) -> list[str]:
    """What ``sagann plan`` foretells: bytes and seconds of an epoch."""
    lines = [line for line in plan.output.splitlines() if line.startswith(_SHOWN)]
    made = f"`sagann plan`, in the same limit: {plan.outcome}, {plan.seconds:.0f} s, held {mebibytes(plan.own_bytes)} MiB."
    return [made, *lines]


def row_of(result: Result) -> str:
    """A line of the table."""
    ended = result.ended
    cells = [
        result.name,
        ended.outcome,
        result.got_to,
        f"{median(result.epoch_s):.1f}" if result.epoch_s else "-",
        f"{ended.seconds:.0f}",
        mebibytes(ended.own_bytes),
        str(ended.hits),
        f"{result.losses[0]:.4f}, {result.losses[-1]:.4f}" if result.losses else "-",
    ]
    return row(cells)


def trains(ours: Sequence[Result]) -> bool:
    """Whether all processes end well, and the loss falls."""
    losses = ours[0].losses
    return all(each.ended.outcome == "ok" for each in ours) and len(losses) > 1 and losses[-1] < losses[0]


def verdict(ours: Sequence[Result], others: Sequence[Result]) -> str:
    """In a sentence."""
    killed = [other.name for other in others if other.ended.outcome == "killed"]
    peers = (
        f"; killed: {', '.join(killed) or 'nobody'} of {', '.join(other.name for other in others)}"
        if others
        else ""
    )
    return f"sagann {'trains, and its loss falls' if trains(ours) else 'does not train'}{peers}."
