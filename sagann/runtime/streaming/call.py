"""Call: one call of a streamed model and its backward. The forward is repeated once if the device runs out of memory.

A plan counts the memory of the model. Other processes, fragments between tensors and workspaces of libraries may leave less
than the budget. Then the call is planned with half the budget and starts again, with the same random numbers. This happens once per
model. A second failure, and one in the backward, is an error that names a budget.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sagann.byte_size import with_exact
from sagann.errors import SagannError, first_line
from sagann.graph.feature_store import TensorRows
from sagann.graph.topology import Topology
from sagann.kernels.first_order import Saved, first_order_only
from sagann.runtime.streaming.executor import Executor


class DeviceMemoryError(SagannError, torch.OutOfMemoryError):
    """A device that has less memory than a streamed epoch needs."""

    @classmethod
    def after(cls, budget_bytes: int, error: BaseException, hint: str = "") -> DeviceMemoryError:
        lower = f"Lower the budget below {with_exact(budget_bytes)}, or end what else takes the device's memory."
        return cls(
            f"the device ran out of memory in a streamed epoch: with a budget of {with_exact(budget_bytes)}; "
            f"{first_line(error)} (in StreamedModel)",
            hint=hint or lower,
        )


def warn_of_less(before_bytes: int, now_bytes: int, num_intervals: int, error: BaseException) -> None:
    """Warn that an epoch starts again with less memory."""
    warnings.warn(
        f"the device ran out of memory in a streamed epoch: the budget was {with_exact(before_bytes)}, and is "
        f"{with_exact(now_bytes)} from now on, in {num_intervals} intervals; {first_line(error)} (in StreamedModel). The epoch begins "
        f"again. Lower the budget to {with_exact(now_bytes)}, or end what else takes the device's memory.",
        RuntimeWarning,
        stacklevel=2,
    )


class Call:
    """One call: ``begin`` makes the executor of the current plan, ``shrink`` plans with less memory, or raises.

    The edges of ``hops``, and the tensors ``read`` besides features and parameters, must not change before the backward.
    """

    def __init__(
        self,
        begin: Callable[[], Executor],
        shrink: Callable[[BaseException], None],
        *,
        hops: Sequence[Topology],
        read: Sequence[Tensor],
    ) -> None:
        self.read = read
        self._hops, self._begin, self._shrink = hops, begin, shrink
        self._executor: Executor | None = None

    @property
    def executor(self) -> Executor:
        """Executor of the forward."""
        assert self._executor is not None
        return self._executor

    def forward(self) -> Tensor:
        """The result, or the loss."""
        while True:
            try:
                self._executor = self._begin()
                return self._executor.forward()
            except torch.OutOfMemoryError as error:
                # The frames of the traceback hold blocks.
                failed = error.with_traceback(None)
            self._executor = None
            self._shrink(failed)

    def backward(self, grad: Tensor) -> Executor:
        """Compute the gradients; the epoch of the executor holds them."""
        for topology in self._hops:
            topology.require_unwritten()
        executor = self.executor
        if executor.epoch.loss_of is None:
            # Several devices load their rows of it, as they load other blocks.
            executor.epoch.upstream = TensorRows(grad if len(executor.epoch.replicas) == 1 else grad.cpu())
        # As in the forward. The caller has seen the result, so the random numbers must be the same.
        with torch.autocast(executor.device.type, enabled=False):
            try:
                executor.backward()
            except torch.OutOfMemoryError as error:
                plan = executor.plan
                raise DeviceMemoryError.after(min(plan.budget_bytes, plan.peak_bytes), error) from error
        return executor


class Streamed(torch.autograd.Function):
    """A call as a function of features and parameters."""

    @staticmethod
    def forward(ctx: Any, call: Call, x: Tensor | None, *parameters: Tensor) -> Tensor:
        ctx.call = call
        # In the backward, PyTorch refuses tensors that were changed in place.
        ctx.save_for_backward(x, *parameters, *call.read)
        return call.forward()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        call: Call = ctx.call
        executor = call.backward(grad)
        epoch, program = executor.epoch, executor.program
        names = [name for name, _ in program.parameters]
        gradients = [epoch.of_x, *epoch.parameter_gradients(names, program.param.outputs)]
        if epoch.loss_of is not None:
            gradients = [
                None if gradient is None else gradient * grad.to(gradient.device) for gradient in gradients
            ]
        return None, *gradients
