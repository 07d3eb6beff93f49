"""What is gathered from constant features, kept: computed in the first epoch and read in all others.

A kept tensor belongs to one program, one topology and one tensor of features; it goes when any of them does, and when the
features or the edge data have changed. What would exceed the budget is not kept.

References:
    Ma et al., NGra, 2018, Sec. 3.2 hoists within an epoch; this is the same across epochs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sagann.compiler.program import LayerProgram
from sagann.graph.topology import Topology
from sagann.graph.versions import version_of

Key = tuple[int, int, int]
Versions = tuple[int, int]
"Of the features, and of the edge data or -1."


class Invariants:
    """Keeps gathered tensors within a budget.

    Args:
        budget_bytes: bytes kept at most, over all layers; None for no limit, 0 to keep nothing.
    """

    def __init__(self, budget_bytes: int | None = None) -> None:
        self.budget_bytes = budget_bytes
        self.held_bytes = 0
        self._kept: dict[Key, tuple[Tensor, Versions, list[Any]]] = {}
        self._constant: dict[int, weakref.ref[Tensor]] = {}

    def is_constant(self, x: Tensor) -> bool:
        """Whether ``x`` is constant: it needs no gradient although gradients are recorded, now or earlier.

        Without recording nothing needs gradients, hidden features neither.
        """
        if x.requires_grad or self.budget_bytes == 0:
            return False
        key = id(x)
        if torch.is_grad_enabled() and key not in self._constant:
            self._constant[key] = weakref.ref(x, lambda _: self._constant.pop(key, None))
        return key in self._constant

    def keeps(
        self, size_bytes: int, program: LayerProgram, topology: Topology, x: Tensor, data: Tensor | None
    ) -> bool:
        """Whether what the program gathers, of that size, is kept or would be."""
        if x.is_inference() or (data is not None and data.is_inference()):
            return False
        return self._find(program, topology, x, data) is not None or self._has_room(size_bytes)

    def get(
        self,
        program: LayerProgram,
        topology: Topology,
        x: Tensor,
        data: Tensor | None,
        compute: Callable[[], Tensor],
    ) -> Tensor:
        """What ``compute`` returns, from the second call on without computing it.

        Args:
            program: its gather depends on x, topology and edge data alone.
            topology: the edges.
            x: features that need no gradient.
            data: edge data that needs none.
            compute: the gather.
        """
        if x.is_inference() or (data is not None and data.is_inference()):
            return compute()
        known = self._find(program, topology, x, data)
        if known is not None:
            return known
        result = compute()
        size = result.numel() * result.element_size()
        if result.is_inference():
            # It could not be used in training.
            return result
        if self._has_room(size):
            key = _key(program, topology, x)
            forget = lambda _: self._forget(key)  # noqa: E731 - one callback for the three of them.
            owners = [weakref.ref(owner, forget) for owner in (program, topology, x)]
            self._kept[key] = (result, _versions(x, data), owners)
            self.held_bytes += size
        return result

    def _find(self, program: LayerProgram, topology: Topology, x: Tensor, data: Tensor | None) -> Tensor | None:
        """What is kept; of another version it is let go."""
        key = _key(program, topology, x)
        if key not in self._kept:
            return None
        result, versions, _ = self._kept[key]
        if versions == _versions(x, data):
            return result
        self._forget(key)
        return None

    def _has_room(self, size_bytes: int) -> bool:
        return self.budget_bytes is None or self.held_bytes + size_bytes <= self.budget_bytes

    def _forget(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.held_bytes -= kept[0].numel() * kept[0].element_size()


def _key(program: LayerProgram, topology: Topology, x: Tensor) -> Key:
    return id(program), id(topology), id(x)


def _versions(x: Tensor, data: Tensor | None) -> Versions:
    return version_of(x), -1 if data is None else version_of(data)
