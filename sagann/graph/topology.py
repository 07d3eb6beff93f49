"""Topology: one bipartite adjacency, in CSC, with CSR built on demand.

A whole graph and an edge chunk are both topologies, so one set of kernels serves both. The id of an edge is its position in CSC order, and
the destination vertices are the first ``num_dst`` source vertices.

sagann orders the in-edges of a destination by source, in a sampled block by the source's id in the graph. Arrays of a caller
need not be in this order, and the order is not checked. Without the order, the number of intervals decides which of several
equal extrema gets a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sagann.errors import InputError, LayerError, require_type
from sagann.graph.checks import (
    AS_TENSOR,
    IDS,
    check_edge_data,
    check_ids,
    check_offsets,
    numbered,
    require_array,
    wrong_form,
)
from sagann.graph.feature_store import version_of
from sagann.graph.rows import Arrays, id_dtype, mapped_arrays
from sagann.ranges import require_integer

if TYPE_CHECKING:
    from sagann.graph.remote import Remote

_AS_IDS = "Convert the ids with .to(torch.int64)."


@dataclass(frozen=True, kw_only=True, slots=True)
class Csr(Arrays):
    """Out-edges grouped by source: the order of a backward pass."""

    indptr: Tensor
    "int64 [num_src + 1]."
    indices: Tensor
    "Destination ids [num_edges], ascending within a source."
    edge_ids: Tensor
    "Position of each edge in CSC order, int32 (int64 from 2^31 edges on) [num_edges]."


class Topology:
    """One bipartite adjacency ``src -> dst`` in CSC, with named per-edge data.

    Args:
        indptr: int64 [num_dst + 1], CSC offsets.
        indices: int32 or int64 [num_edges], source ids grouped by destination.
        num_src: number of source vertices; ``num_dst`` must not exceed it.
        edge_data: tensors with one row per edge, in CSC order ("weight", "type", ...).
        edge_ids: for a part of a larger topology, the edges' ids in the larger topology [num_edges]; else None.
        csr: the same edges grouped by source, which are not checked; by default built when they are first read.
        remote: in a worker's part of a graph, the other workers, which own the sources behind the destinations; else None. Copies on other
            devices and pickles have none.
        validate: check the invariants in O(vertices + edges). Turn it off only for arrays already checked.

    Raises:
        InputError: an invariant does not hold; the message names the first offending position.

    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 1, 2]), dst=torch.tensor([1, 2, 1]), num_src=3)
        >>> topology.indptr.tolist(), topology.indices.tolist()
        ([0, 0, 2, 3], [0, 2, 1])
        >>> topology.in_degrees().tolist()
        [0, 2, 1]
    """

    __slots__ = (
        "__weakref__",
        "_csr",
        "_derived",
        "_edge_data",
        "_edge_dst",
        "_versions",
        "edge_ids",
        "indices",
        "indptr",
        "num_src",
        "remote",
    )

    def __init__(
        self,
        *,
        indptr: Tensor,
        indices: Tensor,
        num_src: int,
        edge_data: Mapping[str, Tensor] | None = None,
        edge_ids: Tensor | None = None,
        csr: Csr | None = None,
        remote: Remote | None = None,
        validate: bool = True,
    ) -> None:
        hint = "Convert the offsets with .to(torch.int64)."
        require_array(indptr, (torch.int64,), "[num_dst + 1]", where="Topology.indptr", hint=hint)
        require_array(indices, IDS, "[num_edges]", where="Topology.indices", hint=_AS_IDS)
        require_integer(num_src, "num_vertices", where="Topology.num_src")
        if indptr.size(0) - 1 > num_src:
            raise InputError(
                f"more destination than source vertices: num_dst {indptr.size(0) - 1}, num_src {num_src} (in Topology)",
                hint="Number the vertices so that the destinations are the first of the sources.",
            )
        check_edge_data(edge_data, indices.size(0))
        if edge_ids is not None:
            check_edge_data({"edge_ids": edge_ids}, indices.size(0))
        self.indptr = indptr
        self.indices = indices
        self.num_src = int(num_src)
        self.edge_ids = edge_ids
        self.remote = remote
        self._edge_data = MappingProxyType(dict(edge_data or {}))
        self._csr = csr
        self._edge_dst: Tensor | None = None
        self._derived: dict[object, Any] = {}
        self._versions = version_of(indptr), version_of(indices)
        if validate:
            self.validate()

    @classmethod
    def from_coo(
        cls,
        *,
        src: Tensor,
        dst: Tensor,
        num_src: int,
        num_dst: int | None = None,
        edge_data: Mapping[str, Tensor] | None = None,
    ) -> Topology:
        """Sort edges by destination, then by source; edges of the same ends keep their order.

        Args:
            src: integer [num_edges], source ids.
            dst: integer [num_edges], destination ids.
            num_src: number of source vertices.
            num_dst: number of destination vertices; default ``num_src``.
            edge_data: tensors with one row per edge, in the order of ``src``; their rows are sorted with the edges.
        Raises:
            InputError: an id is out of range, or the arrays' lengths differ.
        """
        num_dst = num_src if num_dst is None else num_dst
        for name, side, ids, count in (("src", "source", src, num_src), ("dst", "destination", dst, num_dst)):
            require_integer(count, "num_vertices", where=f"Topology.from_coo, num_{name}")
            require_type(ids, Tensor, where=f"Topology.from_coo, {name}", hint=AS_TENSOR)
            require_array(ids, IDS, "[num_edges]", where=name, hint=_AS_IDS)
            check_ids(ids, count, side, where=numbered(name, "edge"))
        if src.shape != dst.shape:
            raise InputError(
                f"source and destination ids differ in shape: {list(src.shape)} and {list(dst.shape)}, expected "
                "two arrays [num_edges] (in Topology.from_coo)",
                hint="Pass one source and one destination id per edge.",
            )
        check_edge_data(edge_data, len(src))
        # Imported here: Numba takes longer to import than all else of `import sagann` together.
        from sagann.graph.counting_sort import group_by_key
        from sagann.graph.row_sort import sort_rows

        edge_data = edge_data or {}
        grouped = group_by_key(dst, num_dst, values=src, value_dtype=id_dtype(num_src), positions=bool(edge_data))
        sort_rows(grouped.indptr, grouped.values, grouped.positions)
        return cls(
            indptr=grouped.indptr,
            indices=grouped.values,
            num_src=num_src,
            edge_data={name: rows.index_select(0, grouped.positions) for name, rows in edge_data.items()},
            validate=False,
        )

    @classmethod
    def from_edge_index(
        cls, edge_index: Tensor, num_vertices: int | None = None, *, edge_data: Mapping[str, Tensor] | None = None
    ) -> Topology:
        """Sort the edges of PyG's ``edge_index``, which go from its first row to its second.

        Args:
            edge_index: integer [2, num_edges].
            num_vertices: number of vertices; default one more than the largest id.
            edge_data: tensors with one row per edge, in the order of ``edge_index``.
        Raises:
            InputError: the form is another one, or an id is out of range.
        Example:
            >>> Topology.from_edge_index(torch.tensor([[0, 1], [1, 2]])).num_src
            3
        """
        where = "Topology.from_edge_index, edge_index"
        hint = "Pass integers, the sources in the first row; transpose edges [num_edges, 2]."
        require_array(edge_index, IDS, "[2, num_edges]", where=where, hint=hint)
        if len(edge_index) != 2:
            raise wrong_form(edge_index, "[2, num_edges]", where=where, hint=hint)
        if num_vertices is None:
            num_vertices = int(edge_index.max()) + 1 if edge_index.numel() else 0
        return cls.from_coo(src=edge_index[0], dst=edge_index[1], num_src=num_vertices, edge_data=edge_data)

    def validate(self) -> None:
        """Check every offset and id, in slices, so that memory-mapped arrays are never copied whole.

        Raises:
            InputError: an invariant does not hold; the message names the first offending position.
        """
        check_offsets(self.indptr, self.num_edges, "CSC offsets", where="Topology.indptr")
        check_ids(self.indices, self.num_src, "source", where=numbered("Topology.indices", "edge"))

    def require_unwritten(self) -> None:
        """Refuse offsets or ids that were changed in place since this topology was made.

        Kernels read memory at these positions without a check, and out-edges are kept from an earlier pass. Layers call this method, and
        so does code that makes another topology of the arrays, because that one starts a count of its own. Changes that PyTorch
        does not count, such as those of a NumPy array that shares the memory, are not found.

        Raises:
            LayerError: offsets or ids were changed.
        """
        found = version_of(self.indptr), version_of(self.indices)
        if found == self._versions:
            return
        name = "indices" if found[0] == self._versions[0] else "indptr"
        raise LayerError(
            "the edges of a topology were overwritten: the array was changed in place after the topology was "
            f"made from it (in Topology.{name})",
            hint=f"Work on topology.{name}.clone(), and make other edges with sagann.Topology.from_coo; then load the graph again.",
        )

    @property
    def num_dst(self) -> int:
        """Number of destination vertices."""
        # Every call of a layer reads this number, and len() of a tensor takes much longer.
        return self.indptr.size(0) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges; every copy of a multi-edge counts."""
        return self.indices.size(0)

    @property
    def num_given(self) -> int:
        """Number of source rows that a layer is called with: all sources; in a worker's part, only the worker's own vertices."""
        return self.num_src if self.remote is None else self.num_dst

    @property
    def edge_data(self) -> Mapping[str, Tensor]:
        """Named tensors with one row per edge, in CSC order; read-only."""
        return self._edge_data

    @property
    def device(self) -> torch.device:
        """Device of the arrays."""
        return self.indices.device

    def edge_dst(self) -> Tensor:
        """The destination of every edge, [num_edges], in CSC order; kept after the first call."""
        if self._edge_dst is None:
            with for_training_as_well():
                self._edge_dst = destinations(self, slice(0, self.num_dst), slice(0, self.num_edges))
        return self._edge_dst

    def csr(self, *, parallel: bool = True) -> Csr:
        """The same edges grouped by source; built at the first call, then kept. Not ``parallel``, one thread builds them."""
        if self._csr is None:
            from sagann.graph.counting_sort import group_by_key

            with for_training_as_well():
                dst = self._edge_dst
                if dst is None:
                    # Not kept: they are as large as the indices.
                    dst = destinations(self, slice(0, self.num_dst), slice(0, self.num_edges))
                grouped = group_by_key(self.indices, self.num_src, values=dst, positions=True, parallel=parallel)
            self._csr = Csr(indptr=grouped.indptr, indices=grouped.values, edge_ids=grouped.positions)
        return self._csr

    def in_degrees(self) -> Tensor:
        """Number of in-edges of every destination, int64 [num_dst]."""
        return self.indptr.diff()

    def out_degrees(self) -> Tensor:
        """Number of out-edges of every source, int64 [num_src]."""
        if self._csr is not None:
            return self._csr.indptr.diff()
        return torch.bincount(self.indices, minlength=self.num_src)

    def with_edge_data(self, **edge_data: Tensor) -> Topology:
        """The same adjacency with edge data added or replaced; arrays are shared.

        Rows are in CSC order: by destination, then by source. Pass edge data in the order of a list of edges to
        :meth:`from_coo`, which sorts the data with the edges.

        Raises:
            LayerError: offsets or ids were changed in place.
        """
        self.require_unwritten()
        topology = Topology(
            indptr=self.indptr,
            indices=self.indices,
            num_src=self.num_src,
            edge_data={**self._edge_data, **edge_data},
            edge_ids=self.edge_ids,
            csr=self._csr,
            remote=self.remote,
            validate=False,
        )
        topology._edge_dst = self._edge_dst
        return topology

    def marked_by_degree(self, name: str) -> Topology:
        """This topology, with edge data marked as the product of the :meth:`degree_factors` of source and destination."""
        self._derived["by degree", name] = version_of(self._edge_data[name])
        return self

    def is_by_degree(self, name: str) -> bool:
        """Whether edge data are marked so and have not changed since. Copies and parts of a topology carry no marks."""
        return 0 <= self._derived.get(("by degree", name), -1) == version_of(self._edge_data[name])

    def degree_factors(self, vertices: slice) -> Tensor:
        """One over the square root of the in-degree, 0 without in-edges: float64."""
        degrees = self.indptr[vertices.start : vertices.stop + 1].diff().double()
        return torch.where(degrees > 0, degrees.rsqrt(), 0.0)

    def derived(self, key: object, build: Callable[[], Any]) -> Any:
        """A value that depends on this topology alone: built at the first call for ``key``, then kept."""
        if key not in self._derived:
            with for_training_as_well():
                self._derived[key] = build()
        return self._derived[key]

    def to(self, device: torch.device | str) -> Topology:
        """The same topology on ``device``; this object itself if it is already there."""
        target = torch.device(device)
        if target == self.device or (target.type == self.device.type and target.index is None):
            return self
        return self.mapped(lambda array: array.to(target))

    def mapped(self, move: Callable[[Tensor], Tensor]) -> Topology:
        """The same topology with every array replaced by the result of ``move``, for example a copy on a device.

        Out-edges are moved too if they are known; derived values are not. Where ``move`` gives a copy that is filled later, filling it must
        not count as a change of the result in place.

        Raises:
            LayerError: offsets or ids were changed in place.
        """
        self.require_unwritten()
        return Topology(
            indptr=move(self.indptr),
            indices=move(self.indices),
            num_src=self.num_src,
            edge_data=mapped_arrays(self._edge_data, move),
            edge_ids=mapped_arrays(self.edge_ids, move),
            csr=mapped_arrays(self._csr, move),
            validate=False,
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles keep the arrays that :meth:`mapped` keeps."""
        self.require_unwritten()
        arrays = {name: getattr(self, name) for name in ("indptr", "indices", "num_src", "edge_ids")}
        return _restored, ({**arrays, "edge_data": dict(self._edge_data), "csr": self._csr},)

    def __repr__(self) -> str:
        data = f", edge_data={sorted(self._edge_data)}" if self._edge_data else ""
        return f"Topology(num_src={self.num_src}, num_dst={self.num_dst}, num_edges={self.num_edges}{data})"


def _restored(given: Mapping[str, Any]) -> Topology:
    return Topology(**given, validate=False)


def destinations(topology: Topology, rows: slice, edges: slice) -> Tensor:
    """The destination of every edge in ``edges``, which are the in-edges of the destinations ``rows``."""
    ids = torch.arange(rows.start, rows.stop, dtype=topology.indices.dtype, device=topology.device)
    degrees = topology.indptr[rows.start : rows.stop + 1].diff()
    return torch.repeat_interleave(ids, degrees, output_size=edges.stop - edges.start)


@contextmanager
def for_training_as_well() -> Iterator[None]:
    """Make tensors inside the ``with`` block that a backward pass can save: without gradients, and not in inference mode."""
    with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext(), torch.no_grad():
        yield
