"""Team: the processes that train one model together. Alone, a process is a team of one, which exchanges nothing: :data:`SOLO`.

What several would exchange is, for one, there already.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.nn import Parameter

START_TIMEOUT_S = 1800.0
"Seconds for which workers wait for each other before they train: one may check a large dataset meanwhile."


class Team:
    """One process alone; :class:`sagann.runtime.workers.Workers` are several, and say what each method does."""

    rank, size, balance, timeout_s = 0, 1, "edges", 0.0

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run folder and reports."""
        return self.rank == 0

    def bounds_of(self, count: int) -> list[int]:
        """First unit, of so many, that each process computes, and ``count``."""
        return [count * rank // self.size for rank in range(self.size + 1)]

    def share_of(self, count: int) -> slice:
        """The units, of so many, that this process computes."""
        return slice(*self.bounds_of(count)[self.rank : self.rank + 2])

    def together(self, doing: str) -> AbstractContextManager[None]:
        """Inside the ``with`` block, which all enter at the same time, an error of sagann at one process ends all of them, naming it."""
        return nullcontext()

    def texts(self, text: str, doing: str, *, timeout_s: float | None = None) -> list[str]:
        """The texts of all processes, in the order of the ranks; ``doing`` is for errors, a ``timeout_s`` of None that of training."""
        return [text]

    def from_first(self, content: bytes | None, doing: str, *, timeout_s: float | None = None) -> bytes:
        """Bytes that the first process has, at every process."""
        assert content is not None
        return content

    def any(self, flag: bool, doing: str, *, timeout_s: float | None = None) -> bool:
        """Whether ``flag`` is set at any process."""
        return flag

    def rows_at(self, own: Tensor, bounds: Sequence[int], doing: str, *, first_only: bool) -> Tensor:
        """The rows of all units [n, ...], from each process's own, which ``bounds`` divide; with ``first_only`` at the first one, elsewhere none."""
        return own

    def forward(self) -> AbstractContextManager[None]:
        """Measures the forward pass of a step inside the ``with`` block, and its backward pass until the gradients are added."""
        return nullcontext()

    def add_gradients(self, parameters: Sequence[Parameter], numbers: Tensor) -> Tensor:
        """Replace each parameter's gradient by the sum over all processes; where none has one, there is none. The sum of ``numbers`` [n].

        All processes have the random numbers of the first one afterwards.
        """
        return numbers

    def share(self, tensors: Iterable[Tensor], doing: str) -> None:
        """Give every process the values that tensors have at the first one."""

    def share_random_numbers(self, device: torch.device) -> None:
        """Set PyTorch's generators to the states that they have at the first process."""


SOLO = Team()
"This process alone."
