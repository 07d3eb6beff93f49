"""Gathers of constant features, kept: computed in the first epoch, and read in later epochs.

A kept tensor belongs to one owner, one topology and its tensors of features. It is dropped when one of these is freed, or when the features
or the edge data have changed. Programs of a layer that gather the same rows, as in training and in evaluation, have one owner.

References:
    Ma et al., NGra, 2018, Sec. 3.2 hoists within an epoch; this is the same across epochs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import Tensor

from sagann.compiler.program import LayerProgram
from sagann.graph.feature_store import is_constant, version_of
from sagann.graph.topology import Topology
from sagann.kernels.feature_rows import FeatureRows

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer

Key = tuple[int, ...]
"Identities of the owner, the topology and the tensors of features."
Versions = tuple[tuple[int, int], ...]
"Identity and version of each tensor of features and edge data."


class Owner:
    """Owner of the tensors that a layer gathers of constant features."""

    __slots__ = ("__weakref__",)


class Invariants:
    """Keeps gathered tensors of all layers, or none at all."""

    def __init__(self, *, is_on: bool = True) -> None:
        self._is_on = is_on
        self._kept: dict[Key, tuple[Tensor, Versions, list[Any]]] = {}
        self._owners: WeakKeyDictionary[SagaLayer, dict[object, Owner]] = WeakKeyDictionary()
        self._owner_of: WeakKeyDictionary[LayerProgram, Owner] = WeakKeyDictionary()

    @property
    def held_bytes(self) -> int:
        return sum(result.nbytes for result, _, _ in list(self._kept.values()))

    def is_constant(self, x: Tensor | FeatureRows) -> bool:
        """Whether ``x`` was declared constant, and anything is kept."""
        return self._is_on and isinstance(x, Tensor) and is_constant(x)

    def owner(self, layer: SagaLayer, program: LayerProgram) -> Owner:
        """The owner of the tensors that a program of the layer gathers."""
        if program not in self._owner_of:
            owner, edges = Owner(), program.edges
            # Gathers that are not fused, or that go by pairs with edge types, are not compared.
            if edges.function is not None and program.typed is None:
                content = edges.gathering, edges.dtype, repr(edges.function)
                owner = self._owners.setdefault(layer, {}).setdefault(content, owner)
            self._owner_of[program] = owner
        return self._owner_of[program]

    def get(
        self,
        owner: Owner,
        topology: Topology,
        x: Mapping[str, Any],
        data: Mapping[str, Tensor],
        compute: Callable[[], Tensor],
    ) -> Tensor:
        """The result of ``compute``, which runs at the first call alone.

        The gather depends on topology, features and edge data alone, which need no gradient.
        """
        versions = versions_of(x, data)
        if versions is None:
            return compute()
        key: Key = (id(owner), id(topology), *map(id, x.values()))
        kept = self._kept.get(key)
        if kept is not None and kept[1] == versions:
            return kept[0]
        self._kept.pop(key, None)
        result = compute()
        if result.is_inference():
            # Training could not use it.
            return result
        owners = [weakref.ref(each, lambda _: self._kept.pop(key, None)) for each in (owner, topology, *x.values())]
        self._kept[key] = (result, versions, owners)
        return result


def versions_of(x: Mapping[str, Any], data: Mapping[str, Tensor]) -> Versions | None:
    """The versions, or None where a tensor was made in inference mode and so has no version."""
    tensors = (*x.values(), *data.values())
    if any(each.is_inference() for each in tensors):
        return None
    return tuple((id(each), version_of(each)) for each in tensors)
