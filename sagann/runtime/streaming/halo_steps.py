"""Halo steps: the steps of an epoch in which a worker exchanges rows of its halo, and their gradients, with the others."""

from __future__ import annotations

from collections.abc import Callable

from sagann.plan.epoch import Planned
from sagann.plan.steps import Exchanged, Step
from sagann.runtime.blocks.host import Host, picked
from sagann.runtime.blocks.residents import Residents
from sagann.runtime.streaming.part import BlockExchange, Travel


class HaloSteps:
    """Runs the halo steps of one epoch.

    Args:
        planned: plan of the epoch.
        exchange: sends and receives blocks.
        host: keeps the blocks that are not on the device.
        resident: blocks on the device.
    """

    def __init__(self, planned: Planned, exchange: BlockExchange, host: Host, resident: Residents) -> None:
        self._part, self._forms = planned.schedule.part, planned.program.forms
        self._exchange, self._host, self._resident = exchange, host, resident
        self._travels: dict[tuple[str, bool], Travel] = {}
        "Exchanges under way, in the order in which they began."

    @property
    def steps(self) -> dict[str, Callable[[Step], None]]:
        """What runs a step, by its kind."""
        return {
            "collect": self._collect,
            "begin_exchange": self._begin,
            "send_rows": self._send,
            "exchange": self._wait,
            "exchange_grad": self._wait,
            "collect_grad": self._collect_grad,
        }

    def close(self) -> None:
        """End exchanges that nobody has waited for."""
        while self._travels:
            # The first one: the others wait for it.
            self._travels.pop(next(iter(self._travels))).abort()

    def _collect(self, step: Step) -> None:
        """Copy the rows that other workers need."""
        (read,) = step.reads
        for block in step.writes:
            rows = self._exchange.sent_rows(self._part, block)
            self._resident[block] = picked({"": self._resident[read]}, rows)[""]

    def _begin(self, step: Step) -> None:
        """Let the blocks of a value or of its gradient travel, which lie outside of the device."""
        exchanged = _exchanged(step)
        self._travels[exchanged.key] = self._exchange.begin(
            self._part,
            self._host,
            exchanged,
            form=self._forms[exchanged.value],
            doing=f"exchanging {'gradients' if exchanged.is_grad else 'rows'} of the halo",
            after=next(reversed(self._travels.values()), None),
        )

    def _send(self, step: Step) -> None:
        travel = self._travels[_exchanged(step).key]
        for block in step.sends:
            travel.send(block, self._resident.stored())

    def _wait(self, step: Step) -> None:
        key = _exchanged(step).key
        self._travels[key].wait()
        del self._travels[key]

    def _collect_grad(self, step: Step) -> None:
        """Add the gradients that other workers have sent back, in the order of their ranks."""
        (at,) = step.writes
        total = self._resident[at].clone()
        for block in step.reads:
            if block.kind == "returned":
                # A worker asks for a row once, so each addition has one summand per row.
                rows = self._exchange.sent_rows(self._part, block)
                total.index_add_(0, rows.to(total.device), self._resident[block])
        self._resident[at] = total


def _exchanged(step: Step) -> Exchanged:
    assert step.exchanged is not None
    return step.exchanged
