"""Call: one call of a streamed model and its backward, which begin again where the device runs out of memory.

A plan counts what the model takes. What it cannot count (other processes, fragments between tensors, the libraries'
workspaces) may leave less than the budget. Then the call is planned anew, with half the budget, and begun from its start:
nothing that it has made is seen outside before it ends, and its random numbers come from the same seed. In the backward
that takes the forward a second time. It is done once for a model; after that the error is the caller's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sagann.errors import SagannError
from sagann.graph.feature_store import TensorRows
from sagann.kernels.first_order import Saved, first_order_only
from sagann.runtime.streaming.executor import Executor

SHRINK = 2
"By which a budget that did not hold is divided."


class DeviceMemoryError(SagannError, torch.OutOfMemoryError):
    """A device that has less memory than the budget, also after it was lowered."""

    @classmethod
    def after(cls, budget_bytes: int, error: BaseException, fix: str) -> DeviceMemoryError:
        """The error of a budget that did not hold."""
        return cls(
            "the device ran out of memory in a streamed epoch",
            value=f"with a budget of {budget_bytes} bytes; {_first_line(error)}",
            where="StreamedModel",
            fix=fix,
        )


def warn_of_less(before_bytes: int, now_bytes: int, num_intervals: int, error: BaseException) -> None:
    """Say that an epoch begins again with less memory, in the four parts of an error."""
    warnings.warn(
        f"the device ran out of memory in a streamed epoch: the budget was {before_bytes} bytes, and is "
        f"{now_bytes} from now on, in {num_intervals} intervals; {_first_line(error)} (in StreamedModel). The epoch begins "
        f"again. Lower the budget to {now_bytes} bytes, or end what else takes the device's memory.",
        RuntimeWarning,
        stacklevel=2,
    )


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class Call:
    """One call.

    Args:
        begin: makes its executor, by the plan as it is now.
        read: what it reads besides features and parameters, and must find in the backward as it was.
        shrink: plans with less memory; it is told the error, and whether the intervals must stay as they are. It raises
            where it cannot.
        device: what computes.
        has_own_numbers: whether some random numbers depend on how the graph is cut.
    """

    def __init__(
        self,
        begin: Callable[[], Executor],
        shrink: Callable[[BaseException, bool], None],
        *,
        read: Sequence[Tensor],
        device: torch.device,
        has_own_numbers: bool,
    ) -> None:
        self.read = read
        self._device = device
        self._begin = begin
        self._shrink = shrink
        self._has_own_numbers = has_own_numbers
        self.executor: Executor | None = None
        "Of the last attempt."

    def forward(self) -> Tensor:
        """The result, or the loss."""
        return self._attempt(self._forward, keeps_intervals=False)

    def backward(self, grad: Tensor) -> None:
        """Compute the gradients, which the executor's epoch holds then."""
        # As the forward ran. The caller has seen the result: its random numbers must come again.
        with torch.autocast(self._device.type, enabled=False):
            self._attempt(lambda: self._backward(grad), keeps_intervals=self._has_own_numbers)

    def _forward(self) -> Tensor:
        self.executor = self._begin()
        return self.executor.forward()

    def _backward(self, grad: Tensor) -> None:
        if self.executor is None:
            self._forward()
        executor = self.executor
        assert executor is not None
        if executor.epoch.loss_of is None:
            executor.epoch.upstream = TensorRows(grad)
        executor.backward()

    def _attempt(self, run: Callable[[], Any], *, keeps_intervals: bool) -> Any:
        while True:
            try:
                return run()
            except torch.OutOfMemoryError as error:
                # Its frames hold what was made.
                failed = error.with_traceback(None)
            self.executor = None
            self._shrink(failed, keeps_intervals)


class Streamed(torch.autograd.Function):
    """A call as a function of features and parameters."""

    @staticmethod
    def forward(ctx: Any, call: Call, x: Tensor | None, *parameters: Tensor) -> Tensor:
        """Run the call."""
        ctx.call = call
        # PyTorch refuses in the backward what was changed in place since.
        ctx.save_for_backward(x, *parameters, *call.read)
        return call.forward()

    @staticmethod
    @first_order_only
    def backward(ctx: Any, saved: Saved, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Run its backward."""
        call: Call = ctx.call
        call.backward(grad)
        executor = call.executor
        assert executor is not None
        epoch, program = executor.epoch, executor.program
        names = [name for name, _ in program.parameters]
        gradients = [epoch.of_x, *epoch.parameter_gradients(names, program.param.outputs)]
        if epoch.loss_of is not None:
            gradients = [
                None if gradient is None else gradient * grad.to(gradient.device) for gradient in gradients
            ]
        return None, *gradients
