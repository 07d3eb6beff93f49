"""A streaming plan in words."""

from __future__ import annotations

from collections import Counter

from sagann.plan.intervals import sizes
from sagann.plan.steps import Move, Step
from sagann.report.machine import format_bytes
from sagann.runtime.planning import Planned

_KINDS = {
    "value": "vertex data",
    "grad": "gradients of vertex data",
    "incoming": "gradients as edges read them",
    "extra": "softmax and extrema, for the backward",
    "handed": "gradients at edges",
    "edges": "edges",
}


def plan_text(planned: Planned) -> str:
    """What an epoch does, how much memory it takes, and what it copies.

    Args:
        planned: a plan of a whole epoch.
    """
    schedule, plan = planned.schedule, planned.plan
    rows = sizes(plan.bounds)
    steps = [operation for operation in plan.operations if isinstance(operation, Step)]
    lines = [
        f"P = {plan.num_intervals}: "
        + (
            "everything fits; nothing is cut."
            if plan.num_intervals == 1
            else f"intervals of {min(rows):,} to {max(rows):,} vertices."
        ),
        f"Memory: at most {format_bytes(plan.peak_bytes)} of {format_bytes(plan.budget_bytes)}, for vertex data, edges, "
        "gradients and temporaries. Parameters, their gradients, the optimizer, Python and PyTorch come on top.",
        "Stages: "
        + ("kept for the backward." if schedule.saves else "run once more in the backward; gathers are not."),
        f"An epoch: {len(steps):,} steps, {format_bytes(plan.loaded_bytes)} loaded, "
        f"{format_bytes(plan.stored_bytes)} stored.",
        f"On disk: {format_bytes(schedule.edge_bytes)} of edges, {format_bytes(schedule.constant_bytes)} gathered once from "
        f"constant features, up to {format_bytes(plan.spilled_bytes)} of an epoch.",
    ]
    moves = [operation for operation in plan.operations if isinstance(operation, Move)]
    for direction, verb in (("load", "Loaded"), ("store", "Stored")):
        found: Counter[str] = Counter()
        for move in moves:
            if move.kind == direction:
                found[move.block.kind] += move.num_bytes
        parts = (f"{_KINDS[kind]} {format_bytes(size)}" for kind, size in found.most_common())
        lines += [f"{verb}: {', '.join(parts)}."] if found else []
    hungriest = max(steps, key=lambda step: step.temporary_bytes + sum(map(schedule.sizes.of, step.blocks)))
    size = hungriest.temporary_bytes + sum(map(schedule.sizes.of, hungriest.blocks))
    lines.append(f"The hungriest step, {_named(hungriest)}, takes {format_bytes(size)} by itself.")
    return "\n".join(lines)


def _named(step: Step) -> str:
    of = "gather" if step.kind in ("gather", "finish", "arrive", "gather_grad", "finish_grad") else "stage"
    with_loss = " with the loss" if step.kind == "transform_loss" else ""
    what = ("the gradient of " if step.kind.endswith("_grad") else "") + f"{of} {step.number}{with_loss}"
    where = f"chunk ({step.interval}, {step.other})" if step.other >= 0 else f"interval {step.interval}"
    return f"{what} on {where}"
