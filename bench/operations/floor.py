"""What a gather cannot do without, forward and backward: rows read over the edges, bytes at vertices and edges.

As in :mod:`bench.epochs.floor`: everything pointwise is part of one pass, and edge tensors are never written, but the
attention's gradients. Exponentials are not counted. float32.
"""

from __future__ import annotations

from bench.epochs.floor import Work


def work_of(operation: str, *, vertices: int, edges: int, features: int, heads: int) -> Work:
    """The work of one run of an operation.

    Args:
        operation: of :data:`bench.operations.__main__.OPERATIONS`.
        vertices: of the graph.
        edges: of the graph.
        features: of a row.
        heads: of the softmax.
    """
    work = Work()
    if operation in ("sum", "weighted-sum"):
        # Sources forward, destinations' gradients backward.
        work.gathers += [features, features]
    if operation == "weighted-sum":
        work.move(edges, edges)
    if operation == "max":
        work.gathers.append(features)
        # Which edge was the largest is written, and read to bring the gradient back: read, read, written.
        work.move(2 * vertices * features, 3 * vertices * features)
    if operation == "gated":
        # Forward: the source. Backward for destinations: the source again; for sources: the destination and its gradient.
        work.gathers += 4 * [features]
        # Destinations forward; destinations and their gradients backward; two gradients that are added up.
        work.move(2 * vertices * features, 3 * vertices * features)
    if operation == "softmax":
        # Forward: value and score of the source. Backward, over the out-edges: gradient, score, normaliser and product
        # of gradient and output of the destination.
        work.gathers += [features, heads, features, 3 * heads]
        # The gradient of the scores goes to the other side of each edge through memory: written, read.
        work.move(0, 2 * edges * heads)
        # Scores read the rows, forward and backward.
        work.move(vertices * features, vertices * features)
    return work
