"""What is gathered from constant features, kept: computed in the first epoch and read in all others.

A kept tensor belongs to one owner, one topology and one tensor of features; it goes when any of them does, and when the
features or the edge data have changed. What would exceed the budget is not kept. Programs of a layer that gather the same, as
those of training and evaluation, have one owner.

References:
    Ma et al., NGra, 2018, Sec. 3.2 hoists within an epoch; this is the same across epochs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import Tensor

from sagann.compiler.program import LayerProgram
from sagann.graph.constant import is_constant
from sagann.graph.topology import Topology
from sagann.graph.versions import version_of
from sagann.kernels.feature_rows import FeatureRows

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer

Key = tuple[int, ...]
Versions = tuple[tuple[int, int], ...]
"Identity and version of each tensor of features and edge data."


class Owner:
    """Of what a layer gathers of constant features."""

    __slots__ = ("__weakref__",)


class Invariants:
    """Keeps gathered tensors within a budget.

    Args:
        budget_bytes: bytes kept at most, over all layers; None for no limit, 0 to keep nothing.
    """

    def __init__(self, budget_bytes: int | None = None) -> None:
        self.budget_bytes = budget_bytes
        # Not for what goes: that may be noticed anywhere, also where the lock is held.
        self._keeping = threading.Lock()
        self._kept: dict[Key, tuple[Tensor, Versions, list[Any]]] = {}
        self._owners: WeakKeyDictionary[SagaLayer, dict[object, Owner]] = WeakKeyDictionary()
        self._owner_of: WeakKeyDictionary[LayerProgram, Owner] = WeakKeyDictionary()

    @property
    def held_bytes(self) -> int:
        """Bytes kept now."""
        return sum(result.nbytes for result, _, _ in list(self._kept.values()))

    def is_constant(self, x: Tensor | FeatureRows) -> bool:
        """Whether ``x`` was declared constant, and something may be kept at all."""
        return self.budget_bytes != 0 and isinstance(x, Tensor) and is_constant(x)

    def owner(self, layer: SagaLayer, program: LayerProgram) -> Owner:
        """The owner of what a program of the layer gathers."""
        if program not in self._owner_of:
            owner, edges = Owner(), program.edges
            # What is not fused, and what follows from pairs with edge types, is not compared.
            if edges.function is not None and program.typed is None:
                content = edges.gathering, edges.dtype, repr(edges.function.content)
                owner = self._owners.setdefault(layer, {}).setdefault(content, owner)
            self._owner_of[program] = owner
        return self._owner_of[program]

    def keeps(
        self, size_bytes: int, owner: Owner, topology: Topology, x: Mapping[str, Any], data: Mapping[str, Tensor]
    ) -> bool:
        """Whether what the owner's programs gather, of that size, is kept or would be."""
        if any(each.is_inference() for each in (*x.values(), *data.values())):
            return False
        return self._find(owner, topology, x, data) is not None or self._has_room(size_bytes)

    def get(
        self,
        owner: Owner,
        topology: Topology,
        x: Mapping[str, Any],
        data: Mapping[str, Tensor],
        compute: Callable[[], Tensor],
    ) -> Tensor:
        """What ``compute`` returns, from the second call on without computing it.

        Args:
            owner: of a gather that depends on x, topology and edge data alone.
            topology: the edges.
            x: features that need no gradient.
            data: edge data that needs none.
            compute: the gather.
        """
        if any(each.is_inference() for each in (*x.values(), *data.values())):
            return compute()
        known = self._find(owner, topology, x, data)
        if known is not None:
            return known
        result = compute()
        if result.is_inference():
            # It could not be used in training.
            return result
        key = _key(owner, topology, x)
        with self._keeping:
            # Another thread may have kept the same meanwhile.
            self._forget(key)
            if self._has_room(result.nbytes):
                forget = lambda _: self._forget(key)  # noqa: E731 - one callback for the three of them.
                owners = [weakref.ref(each, forget) for each in (owner, topology, *x.values())]
                self._kept[key] = (result, _versions(x, data), owners)
        return result

    def _find(
        self, owner: Owner, topology: Topology, x: Mapping[str, Any], data: Mapping[str, Tensor]
    ) -> Tensor | None:
        """What is kept; of another version it is let go."""
        key = _key(owner, topology, x)
        if (kept := self._kept.get(key)) is None:
            return None
        result, versions, _ = kept
        if versions == _versions(x, data):
            return result
        self._forget(key)
        return None

    def _has_room(self, size_bytes: int) -> bool:
        return self.budget_bytes is None or self.held_bytes + size_bytes <= self.budget_bytes

    def _forget(self, key: Key) -> None:
        self._kept.pop(key, None)


def _key(owner: Owner, topology: Topology, x: Mapping[str, Any]) -> Key:
    return id(owner), id(topology), *map(id, x.values())


def _versions(x: Mapping[str, Any], data: Mapping[str, Tensor]) -> Versions:
    return tuple((id(each), version_of(each)) for each in (*x.values(), *data.values()))
