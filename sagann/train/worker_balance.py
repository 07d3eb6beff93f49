"""WorkerBalance: how an epoch was divided among workers, a part of its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sagann.storage.json_fields import as_integer, as_list, as_number

_BOUNDS = "worker_bounds"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerBalance:
    """The parts of an epoch, and the seconds that the workers computed. Workers that are balanced by cost have one for each epoch."""

    bounds: tuple[int, ...]
    "Bounds of the ranges of vertices that the workers owned in the epoch, one more than there are workers."
    edges: tuple[int, ...]
    "Number of edges of each worker's part."
    seconds: tuple[float, ...]
    "Seconds of each worker's own computing in the epoch: waiting for others does not count, nor does the optimizer's step."
    predicted_s: tuple[float, ...] | None
    "What the cost model predicted for each worker before the epoch; None before it has learned."
    moved_to: tuple[int, ...] | None
    "Bounds from the next epoch on; None where vertices stayed."
    move_s: float | None = None
    "Seconds that the move took; None where vertices stayed."

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the graph's edges in each worker's part."""
        total = sum(self.edges)
        return tuple(count / total if total else 0.0 for count in self.edges)

    def to_json(self) -> dict[str, Any]:
        """The values as part of a line of metrics.jsonl: lists with an entry per worker, null where there is nothing."""
        return {
            _BOUNDS: list(self.bounds),
            "worker_edges": list(self.edges),
            "worker_s": list(self.seconds),
            "predicted_worker_s": None if self.predicted_s is None else list(self.predicted_s),
            "moved_to": None if self.moved_to is None else list(self.moved_to),
            "move_s": self.move_s,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> WorkerBalance | None:
        """The inverse of :meth:`to_json`; None for a line of a run that is not balanced by cost.

        A KeyError, TypeError or ValueError where a value is missing, or no number of its kind.
        """
        if _BOUNDS not in values:
            return None
        bounds, moved_to, predicted = (values[name] for name in (_BOUNDS, "moved_to", "predicted_worker_s"))
        found = cls(
            bounds=bounds_in(bounds, _BOUNDS),
            edges=tuple(as_integer(count, "num_edges") for count in as_list(values["worker_edges"])),
            seconds=_seconds_in(values["worker_s"], "worker_s"),
            predicted_s=None if predicted is None else _seconds_in(predicted, "predicted_worker_s"),
            moved_to=None if moved_to is None else bounds_in(moved_to, "moved_to"),
            move_s=None if values["move_s"] is None else as_number(values["move_s"], "move_s"),
        )
        num_workers = len(found.bounds) - 1
        others = (found.edges, found.seconds, found.predicted_s or found.seconds, (found.moved_to or bounds)[1:])
        if any(len(each) != num_workers for each in others):
            raise ValueError(f"numbers of other workers than the {num_workers} that {_BOUNDS} states")
        return found


def bounds_in(value: object, name: str) -> tuple[int, ...]:
    """The bounds of ranges of vertices in a list; a TypeError or ValueError where they do not begin with 0, or decrease."""
    bounds = tuple(as_integer(bound, "num_vertices") for bound in as_list(value))
    if len(bounds) < 2 or bounds[0] != 0 or any(stop < start for start, stop in pairwise(bounds)):
        raise ValueError(f"{name} is {bounds!r:.80}, expected ids from 0 on that do not decrease")
    return bounds


def _seconds_in(value: object, name: str) -> tuple[float, ...]:
    return tuple(as_number(number, name) for number in as_list(value))
