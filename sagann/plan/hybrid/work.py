"""Work: bytes and seconds of the stages of an iteration, equations 7 to 13 of HyScale-GNN.

The equations are printed with indices that do not agree with Table I: with them, the aggregation of the first layer would read rows of the
width of its result. Here layer l reads rows of width f(l-1) along the edges into the vertices of layer l, and maps these vertices to
width f(l). A layer that concatenates (GraphSAGE) maps rows of width 2 f(l-1).

What the equations leave out is a part of :class:`Refinements`, by name; none of it is on in :data:`AS_PRINTED`.

References:
    Lin and Prasanna, HyScale-GNN, IPDPS 2023, Sec. V.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from sagann.plan.hybrid.batches import BatchCounts
from sagann.plan.machine import Machine

VALUE_BYTES = 4
"Bytes of a feature, a weight and a gradient (S_feat)."
EDGE_BYTES = 8
"Bytes of an edge on its way to an accelerator: two ids of 32 bits."


@dataclass(frozen=True, kw_only=True, slots=True)
class Widths:
    """A model of L layers, as far as the equations know it."""

    features: tuple[int, ...]
    "Widths f(0) to f(L): of the features, of each hidden layer, of the result."
    concatenates: bool = False
    "Whether a vertex's own row is put beside its aggregate (GraphSAGE), so that layers have twice the weights."

    @property
    def model_bytes(self) -> int:
        """Bytes of all weight matrices."""
        return VALUE_BYTES * sum(self.inputs(before) * after for before, after in pairwise(self.features))

    def inputs(self, width: int) -> int:
        """Width of the rows that a layer maps, whose sources have rows of ``width``."""
        return 2 * width if self.concatenates else width


@dataclass(frozen=True, kw_only=True, slots=True)
class Refinements:
    """What the paper's equations leave out."""

    deduplicates: bool = True
    "A vertex that several edges of a hop reach is loaded, copied and mapped once: fewer vertices."
    launches: bool = True
    "A trainer loses ``step_s`` for every layer, forward and backward: more seconds of propagation."
    both_gradients: bool = True
    "The backward of a layer computes the gradients of its weights and of its inputs, so it maps twice, but for the first layer."
    copies_edges: bool = True
    "The edges of a mini-batch are copied to the accelerator beside its features: more bytes."
    shares_memory: bool = True
    "Loading and the processor's sums over edges share the host's memory, and delay each other: more seconds of both."


AS_PRINTED = Refinements(
    deduplicates=False, launches=False, both_gradients=False, copies_edges=False, shares_memory=False
)
"Equations 7 to 13 and nothing else."


def rows_bytes(counts: BatchCounts, widths: Widths) -> float:
    """Bytes of the features of a mini-batch: the numerators of equations 7 and 8."""
    return counts.vertices[0] * widths.features[0] * VALUE_BYTES


def copied_bytes(counts: BatchCounts, widths: Widths, refinements: Refinements) -> float:
    """Bytes that an accelerator gets for a mini-batch (equation 8)."""
    edges = EDGE_BYTES * counts.num_edges if refinements.copies_edges else 0.0
    return rows_bytes(counts, widths) + edges


def propagation_s(
    counts: BatchCounts, widths: Widths, device: Machine, *, pipelined: bool, refinements: Refinements
) -> float:
    """Seconds of the forward and backward of a mini-batch on a device (equation 10).

    Args:
        counts: the mini-batch.
        widths: the model.
        device: rates of the device: ``gather_bytes``, ``matmul_flops`` and ``step_s``.
        pipelined: whether the device aggregates and maps at the same time, so that a layer takes the longer of both, not their sum.
        refinements: what is counted beside the equation.
    """

    def layer_s(gather_s: float, map_s: float) -> float:
        launch_s = device.step_s if refinements.launches else 0.0
        return launch_s + (max(gather_s, map_s) if pipelined else gather_s + map_s)

    total = 0.0
    for number, (gather_s, map_s) in enumerate(_layers(counts, widths, device)):
        total += layer_s(gather_s, map_s)
        if not number:
            # The features get no gradient.
            total += layer_s(0.0, map_s)
        else:
            total += layer_s(gather_s, 2 * map_s if refinements.both_gradients else map_s)
    return total


def gathered_bytes(counts: BatchCounts, widths: Widths) -> float:
    """Bytes of rows that the forward and backward of a mini-batch read along edges: the numerators of equation 11."""
    first, *others = (
        edges * width * VALUE_BYTES for edges, width in zip(counts.edges, widths.features[:-1], strict=True)
    )
    return first + 2 * sum(others)


def synchronisation_bytes(model_bytes: int) -> int:
    """Bytes that a model takes over the link of an accelerator: its gradients to the host, their mean back (equation 13)."""
    return 2 * model_bytes


def _layers(counts: BatchCounts, widths: Widths, device: Machine) -> Iterator[tuple[float, float]]:
    """Seconds of aggregation (equation 11) and of the map (equation 12) of each layer."""
    for layer, (before, after) in enumerate(pairwise(widths.features)):
        gather_s = counts.edges[layer] * before * VALUE_BYTES / device.gather_bytes
        multiply_adds = counts.vertices[layer + 1] * widths.inputs(before) * after
        yield gather_s, 2 * multiply_adds / device.matmul_flops
