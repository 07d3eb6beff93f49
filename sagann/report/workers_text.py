"""What ``sagann plan --workers`` says: the parts of the workers, and the cost model that a run has learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from sagann.partition import FEATURES, CostModel
from sagann.report.progress import short_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedPart:
    """The part of one worker."""

    vertices: int
    "Number of own vertices."
    edges: int
    "Number of their in-edges."
    halo: int
    "Number of rows that other workers send, for each tensor that the edges read."
    seconds: float | None
    "Predicted seconds of computing in an epoch; None without a cost model."


def parts_table(parts: Sequence[PlannedPart], *, balance: str) -> Table:
    """A row per worker."""
    table = Table(title=f"Parts of {len(parts)} workers, balanced by {balance}", title_justify="left")
    for name in ("worker", "vertices", "edges", "share of edges", "halo", "predicted per epoch"):
        table.add_column(name, justify="right")
    total = sum(part.edges for part in parts)
    for rank, part in enumerate(parts):
        table.add_row(
            str(rank),
            f"{part.vertices:,}",
            f"{part.edges:,}",
            f"{part.edges / total if total else 0.0:.1%}",
            f"{part.halo:,}",
            "-" if part.seconds is None else short_seconds(part.seconds),
        )
    return table


def policies_text(slowest_s: Mapping[str, float]) -> str:
    """What an epoch takes by each policy: the predicted seconds of the slowest worker."""
    found = ", ".join(f"{name} {short_seconds(seconds)}" for name, seconds in slowest_s.items())
    return f"The slowest worker computes per epoch, as predicted, with parts balanced by: {found}."


def cost_model_table(model: CostModel, operations: Mapping[str, int]) -> Table:
    """A row per kind of operation, with the nanoseconds of one unit of each feature."""
    table = Table(title="Cost model: nanoseconds on a worker of speed 1", title_justify="left")
    table.add_column("kind of operation")
    table.add_column("bytes of a row", justify="right")
    for feature in FEATURES:
        table.add_column(
            f"per {feature.replace('vertices', 'vertex').removesuffix('es').removesuffix('s')}", justify="right"
        )
    for kind, row_bytes in operations.items():
        weights = model.kinds[kind].weights
        shown = (f"{1e9 * weight:.3g}" if weight else "-" for weight in weights)
        table.add_row(kind, f"{row_bytes:,}" if row_bytes else "-", *shown)
    return table


def speeds_text(model: CostModel) -> str:
    """The speeds that were learned, and how well the model fits."""
    speeds = ", ".join(f"{speed:.2f}" for speed in model.speeds)
    return f"Speeds of the workers that were measured: {speeds}. Error of the fit: {model.relative_error:.1%}."
