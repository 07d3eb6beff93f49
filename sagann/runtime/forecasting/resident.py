"""Resident memory: what ``top`` will show (RES) of a process that trains within a budget.

A budget counts the tensors of an epoch. The system counts pages: those of the interpreter, of libraries and kernels, and those of
mapped files that were read, which it takes back when memory is short.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from sagann.graph import Graph
from sagann.graph.feature_store import row_bytes
from sagann.graph.graph import named_arrays

TRAINING_BYTES = 265 << 20
"""Pages of libraries that training touches, compiled kernels and small objects, beyond what a process has that has loaded the program:
measured on Linux, with two threads."""
_VERTEX_BYTES = 100
"Bytes per vertex that no budget counts: offsets, labels, masks, ids, predictions (docs/memory.md, What the budget counts)."
_COPIES = 5
"Copies of the parameters: weights, gradients, two moments of Adam, and the best weights."
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resident:
    """Parts of the resident memory of a process that trains, in bytes."""

    process_bytes: int
    "Interpreter, libraries and kernels."
    budget_bytes: int
    "Peak bytes of the budget that an epoch takes."
    graph_bytes: int
    "Arrays of the graph, as it is opened and as the model reads it: in mapped files, or in memory where they are small."
    other_bytes: int
    "Parameters with their gradients and the optimizer's state, and what is kept of each vertex."

    @property
    def total_bytes(self) -> int:
        return self.process_bytes + self.budget_bytes + self.graph_bytes + self.other_bytes


def resident_bytes() -> int | None:
    """Resident memory of this process; None where the system does not tell."""
    return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE if _STATM.exists() else None


def expected_resident(
    model: nn.Module, graphs: Iterable[Graph], *, loaded_bytes: int, budget_bytes: int, num_vertices: int
) -> Resident:
    """The resident memory of a process that trains ``model`` and takes so much of its budget.

    Arrays of the graph as it is opened and as the model reads it count once; ``loaded_bytes`` are those of a process without a graph.
    """
    graphs = list(graphs)
    found = (each for graph in graphs for _, each in named_arrays(graph))
    arrays = {each.data_ptr(): each.nbytes for each in found if isinstance(each, Tensor)}
    stores = {
        id(rows): rows for graph in graphs if (rows := graph.features) is not None and not isinstance(rows, Tensor)
    }
    parameters = sum(each.nbytes for each in model.parameters())
    return Resident(
        process_bytes=loaded_bytes + TRAINING_BYTES,
        budget_bytes=budget_bytes,
        graph_bytes=sum(arrays.values()) + sum(each.num_rows * row_bytes(each) for each in stores.values()),
        other_bytes=_COPIES * parameters + _VERTEX_BYTES * num_vertices,
    )
