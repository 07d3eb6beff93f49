"""GatherState: the results of a range of rows, over the chunks of edges so far: one chunk in memory, many streamed.

A chunk is a topology over the same rows, with edges and other ends of its own: a chunk of a grid, say. A state accumulates
chunks one after the other, in place, by any dialect. The rows are destinations in a forward pass, and sources in a backward pass
over CSR.

Invariants: a state without chunks holds no tensor. The first chunk is an ordinary pass, so a single chunk has the cost and the
bits of a pass in memory. An edge's id is its position in the chunk plus the chunk's offset, and is below ``num_edges``. Where
chunks come in the order of the ids, ties of extrema go to the lowest id, and results depend on the cut only by rounding.

References:
    Ma et al., NeuGraph, USENIX ATC 2019, Sec. 3.2: edge chunks of a grid, accumulated into an interval of vertices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sagann.graph.rows import id_dtype
from sagann.graph.topology import Topology
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.pass_edges import Edges, grouped, num_groups, used_rows
from sagann.kernels.memory import empty
from sagann.kernels.seeds import Seed

Run = Callable[..., tuple[Tensor, ...]]
"The ``run`` of a dialect, with the arguments of :func:`sagann.kernels.edge.naive.run`."


class GatherState:
    """Partial results of an edge function for a range of rows.

    Args:
        function: the edge function. Its "edge" outputs are not part of the state.
        num_rows: number of rows at ``function.at``.
        num_edges: number of edges of all chunks together.
        device: device of the results.
        tensors: results of :meth:`tensors` of an equal state, to go on from. They become this state's own.

    Example:
        >>> from sagann.kernels.edge import naive
        >>> from sagann.kernels.edge.function import Input, Output
        >>> x = Input(name="x", side="src", shape=(), dtype=torch.float32)
        >>> function = EdgeFunction(inputs=(x,), ops=(), outputs=(Output(reduce="max", values=("x",)),), at="dst")
        >>> state = GatherState(function, num_rows=1, num_edges=2, device="cpu")
        >>> for number, source in enumerate([5.0, 7.0]):
        ...     chunk = Topology(indptr=torch.tensor([0, 1]), indices=torch.tensor([0]), num_src=1)
        ...     _ = state.accumulate(naive.run, chunk, {"x": torch.tensor([source])}, edge_offset=number)
        >>> [result.tolist() for result in state.finish()]
        [[7.0], [1]]
    """

    __slots__ = ("_results", "device", "function", "num_edges", "num_rows")

    def __init__(
        self,
        function: EdgeFunction,
        *,
        num_rows: int,
        num_edges: int,
        device: torch.device | str,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.function = function
        self.num_rows = num_rows
        self.num_edges = num_edges
        self.device = device
        # None stands for neutral results, so that no pass has to read them.
        self._results: tuple[Tensor, ...] | None = None
        if tensors:
            self._results = tuple(tensors.values())
            assert [(tuple(result.shape), result.dtype) for result in self._results] == self._forms()

    def accumulate(
        self, run: Run, edges: Edges, arrays: Mapping[str, Tensor], *, seed: Seed = 0, edge_offset: int = 0
    ) -> tuple[Tensor, ...]:
        """Add the edges of a chunk, of which the first one has the id ``edge_offset``, by a dialect's ``run``; returns the chunk's "edge" outputs."""
        function, groups = self.function, num_groups(edges, self.function.at)
        # Kernels write rows by address.
        assert groups == self.num_rows or used_rows(grouped(edges, function.at)) <= self.num_rows < groups
        # PassEdges are chunks. To start anew for the first chunk would take another kernel and save a part of one chunk.
        is_whole = isinstance(edges, Topology) and groups == self.num_rows
        starts = self._results is None and is_whole and (edge_offset == 0 or not function.numbers_edges)
        if starts:
            results = run(function, edges, arrays, seed=seed)
            pairs = zip(results, function.results, strict=True)
            self._results = tuple(self._owned(result, form.dtype) for result, form in pairs if form.rows != "edge")
        else:
            assert 0 <= edge_offset <= self.num_edges - edges.num_edges
            if not edges.num_edges:
                # A dialect has no kernel for that, and the host would wait for a device.
                self.finish()
                forms = [form for form in function.results if form.rows == "edge"]
                given = [((0, *form.shape), form.dtype or id_dtype(0)) for form in forms]
                return tuple(torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in given)
            results = run(function, edges, arrays, seed=seed, into=self.finish(), edge_offset=edge_offset)
        return tuple(result for result, form in zip(results, function.results, strict=True) if form.rows == "edge")

    def finish(self) -> tuple[Tensor, ...]:
        """The results of all chunks so far, without "edge" outputs: the state's own tensors, which later chunks change."""
        if self._results is None:
            self._results = tuple(
                empty(shape, dtype, self.device).fill_(result.neutral)
                for result, (shape, dtype) in zip(self.function.reduced_results, self._forms(), strict=True)
            )
        return self._results

    def part(self, rows: slice) -> GatherState:
        """The state of a run of the rows. It shares their results: what is added to it is added here."""
        shared = {str(number): result[rows] for number, result in enumerate(self.finish())}
        num_rows = rows.stop - rows.start
        return GatherState(
            self.function, num_rows=num_rows, num_edges=self.num_edges, device=self.device, tensors=shared
        )

    def tensors(self) -> dict[str, Tensor]:
        """The results so far, for another state to go on from: the state's own tensors, or none before the first chunk."""
        return {str(number): result for number, result in enumerate(self._results or ())}

    def _forms(self) -> list[tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each result."""
        return [
            (result.full_shape(self.num_rows), result.dtype or id_dtype(self.num_edges))
            for result in self.function.reduced_results
        ]

    def _owned(self, result: Tensor, dtype: torch.dtype | None) -> Tensor:
        """A result of a pass as a state holds it."""
        dtype = dtype or id_dtype(self.num_edges)
        # Every gather in memory asks, and operators that change nothing take time.
        if result.dtype == dtype and result.is_contiguous() and not result.requires_grad:
            return result
        return result.detach().to(dtype).contiguous()
