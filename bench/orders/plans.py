"""What a streamed epoch moves by each order of the chunks, at one budget and one P."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from sagann.compiler.model_program import ModelProgram
from sagann.graph import Topology
from sagann.plan.epoch import plan_epoch
from sagann.plan.fit import fitted_intervals, hop_sizes
from sagann.plan.gradients import Gradients
from sagann.plan.orders import Order
from sagann.plan.residency import BudgetError
from sagann.plan.steps import UNLIMITED, MemoryPolicy, Plan

ORDERS: tuple[Order, ...] = get_args(Order)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Plans of the same epoch, with the loss folded."""

    wanted_bytes: int
    "The budget asked for."
    budget_bytes: int
    "The budget given: more, where an order cannot meet the one asked for."
    bounds: tuple[int, ...]
    "Of the intervals: as many as the order needs that needs the most."
    plans: Mapping[Order, Plan]
    "By order."

    def times_column(self, order: Order) -> float:
        """How many times the bytes of column order an order moves."""
        return self.plans[order].moved_bytes / self.plans["column"].moved_bytes


def compare(
    program: ModelProgram, hops: Sequence[Topology], share: int, memory_policy: MemoryPolicy = "belady"
) -> Compared:
    """Plan an epoch of a captured model by every order.

    Args:
        program: the model.
        hops: the topologies that it walks.
        share: the budget is what the plan of P = 1 takes, divided by this, or the least that all orders can meet.
        memory_policy: which blocks the device keeps.
    """
    gradients = Gradients(program)
    whole = (0, hops[0].num_dst)
    dense = plan_epoch(
        program,
        hop_sizes(program, hops, whole),
        whole,
        UNLIMITED,
        gradients=gradients,
        folded=True,
        same_memory=False,
    ).plan
    wanted_bytes = budget_bytes = dense.peak_bytes // share
    while True:
        try:
            fitted = [
                fitted_intervals(
                    program, hops, budget_bytes, gradients=gradients, order=order, same_memory=False
                ).bounds
                for order in ORDERS
            ]
            bounds = max(fitted, key=len)
            sizes = hop_sizes(program, hops, bounds)
            plans = {
                order: plan_epoch(
                    program,
                    sizes,
                    bounds,
                    budget_bytes,
                    gradients=gradients,
                    folded=True,
                    order=order,
                    memory_policy=memory_policy,
                    same_memory=False,
                ).plan
                for order in ORDERS
            }
        except BudgetError as error:
            if error.needed_bytes <= budget_bytes:
                raise
            budget_bytes = error.needed_bytes
            continue
        return Compared(wanted_bytes=wanted_bytes, budget_bytes=budget_bytes, bounds=bounds, plans=plans)
