"""Scores: which vertices' features sampled mini-batches will read most.

All scores read the in-edges of a whole graph, in CSC. Self-loops and multi-edges count like any other edges, as they do for a sampler.
Edge types and weights are not read.

Scores pass from destinations to the sources of their edges (:func:`spread`), on one thread, so the result has the same bits for any number of
threads. Edges of destinations of value 0 are not read. The topology is read once in ascending order, so it may be mapped from files.

References:
    Graph Neural Network Training with Data Tiering, 2021, Sec. 3.1 and Algorithm 1. We differ in what the paper leaves open: the damping
    is 0.85, and the score of a vertex without in-edges goes nowhere, since a sampler finds nothing there.

    Kaler et al., Communication-Efficient Graph Neural Networks with Probabilistic Neighborhood Expansion Analysis and Caching, MLSys
    2023, Sec. 3: vertex inclusion probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sagann.errors import InputError, require_choice, require_type
from sagann.graph.checks import require_array, wrong_form
from sagann.graph.graph import Graph
from sagann.graph.topology import Topology
from sagann.jit import Array, compiled
from sagann.ranges import require_integer
from sagann.sampling.arguments import require_fanouts, require_square

Score = Literal["degree", "rpr", "wrpr", "vip"]
"""degree: number of out-edges. rpr: reverse PageRank. wrpr: weighted reverse PageRank, which begins at the vertices that batches start
from. vip: vertex inclusion probability, that a batch of given size and fanouts reads the vertex."""
SCORES: tuple[Score, ...] = get_args(Score)
"Names of all scores."

DAMPING = 0.85
"Share of a score that its vertex passes on in an iteration: the usual one, since the paper names none."
FANOUTS, BATCH_SIZE = (25, 10), 1024
"Fanouts and number of seeds of the batches that 'vip' is for, by default."
WEIGHTED_ITERATIONS = 5
"Iterations of the weighted reverse PageRank, by default: those of the paper."
# Scores have converged when the sum of their changes is below this. The scores add up to at most 1.
_TOLERANCE = 1e-6
_MOST_ITERATIONS = 100


def score_vertices(
    graph: Graph,
    by: str,
    *,
    fanouts: Sequence[int] = FANOUTS,
    batch_size: int = BATCH_SIZE,
    seeds: Tensor | None = None,
) -> Tensor:
    """Score a graph's vertices by the name of a score.

    Args:
        graph: any graph on the processor; its arrays may be mapped from files.
        by: name of the score.
        fanouts: for 'vip', those of the sampler; the first is that of the hop nearest the seeds.
        batch_size: for 'vip', number of seeds in a batch.
        seeds: for 'wrpr' and 'vip', the vertices that batches start from, bool [num_vertices]. None for those of the split 'train'; without
            that split, for all labelled vertices (:func:`labelled_vertices`).
    Returns:
        float64 [num_vertices].
    Raises:
        InputError: no score has that name, 'wrpr' or 'vip' finds no labelled vertex, or a number is out of range.
    Example:
        >>> from sagann.graph import demo_graph
        >>> graph = demo_graph()
        >>> hot = hottest(score_vertices(graph, "wrpr"))[: graph.num_vertices // 10]
    """
    require_choice(by, SCORES, what="unknown score", where="score_vertices")
    if by == "degree":
        return out_degree(graph.topology)
    if by == "rpr":
        return reverse_pagerank(graph.topology)
    seeds = labelled_vertices(graph) if seeds is None else seeds
    if by == "wrpr":
        return weighted_reverse_pagerank(graph.topology, seeds)
    return inclusion_probability(graph.topology, seeds, fanouts, batch_size=batch_size)


def labelled_vertices(graph: Graph) -> Tensor:
    """The vertices that batches of training start from, as a mask."""
    train = graph.splits.get("train")
    if graph.labels is None and graph.targets is None and train is None:
        raise InputError(
            f"no vertex is labelled: neither a split 'train' nor labels nor targets (in graph '{graph.name}')",
            hint="Take the score 'rpr' or 'degree', which need no labels, or name the vertices: a split 'train', or 'seeds' in Python.",
        )
    if train is None:
        train = torch.ones(graph.num_vertices, dtype=torch.bool)
    return train if graph.labels is None or graph.multi_label else train & (graph.labels >= 0)


def out_degree(topology: Topology) -> Tensor:
    """Count the out-edges of every vertex: one hop of sampling, from any vertex.

    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([0, 0, 1]), dst=torch.tensor([1, 2, 2]), num_src=3)
        >>> out_degree(topology).tolist()
        [2.0, 1.0, 0.0]
    """
    require_square(topology, where="out_degree, topology")
    return spread(topology, torch.ones(topology.num_dst, dtype=torch.float64))


def reverse_pagerank(topology: Topology) -> Tensor:
    r"""Score vertices by the vertices that sampling reaches them from, over any number of hops.

    Every vertex begins with 1/N, N the number of vertices. In an iteration every vertex divides its score by its in-degree and gives
    the quotient to each in-neighbour:

    .. math:: s_u' = (1 - d) / N + d \sum_{u \to v} s_v / \text{in-degree}(v), \quad d = 0.85

    Iterations end when the scores have converged: they change by less than a millionth of their sum, or 100 iterations are done.

    Args:
        topology: a whole graph's, on the processor; its arrays may be mapped from files.
    Returns:
        float64 [num_vertices].
    References:
        Bar-Yossef and Mashiach, Local approximation of PageRank and reverse PageRank, CIKM 2008.
    """
    require_square(topology, where="reverse_pagerank, topology")
    score = _uniform(topology.num_dst)
    for _ in range(_MOST_ITERATIONS):
        before, score = score, _iterated(topology, score)
        if float((score - before).abs_().sum()) < _TOLERANCE:
            break
    return score


def weighted_reverse_pagerank(
    topology: Topology, labelled: Tensor, *, iterations: int = WEIGHTED_ITERATIONS
) -> Tensor:
    """Score vertices as :func:`reverse_pagerank`, with more weight around the vertices that batches start from.

    The first scores of labelled vertices are multiplied by N / L, for N vertices of which L are labelled. There are few iterations, so
    that the first scores still matter in the end. ``labelled`` is bool [num_vertices], with at least one vertex.

    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([1, 2, 3]), dst=torch.tensor([0, 1, 0]), num_src=4)
        >>> labelled = torch.tensor([True, False, False, False])
        >>> weighted_reverse_pagerank(topology, labelled, iterations=1)[1:3].tolist()
        [0.4625, 0.25]
    """
    where = "weighted_reverse_pagerank"
    require_integer(iterations, "iterations", where=f"{where}, iterations")
    num_labelled = _count_labelled(labelled, topology, where=where)
    score = _uniform(topology.num_dst)
    score[labelled] *= topology.num_dst / num_labelled
    for _ in range(iterations):
        score = _iterated(topology, score)
    return score


def inclusion_probability(
    topology: Topology, labelled: Tensor, fanouts: Sequence[int], *, batch_size: int = BATCH_SIZE
) -> Tensor:
    r"""The probability that a sampled batch reads a vertex: its vertex inclusion probability (VIP), hop by hop.

    A batch starts from ``batch_size`` of the labelled vertices, each with the same probability, and a destination v picks an in-edge
    with probability min(1, fanout / in-degree(v)). Edges are taken as independent of each other:

    .. math:: 1 - p_u' = (1 - p_u) \prod_{u \to v} (1 - p_v \min(1, f / \text{in-degree}(v)))

    They are not quite, so values are off by some percent, and too high where there are multi-edges; the order of the vertices suffers
    less. Times the number of batches, values foretell the reads of an epoch.

    Args:
        topology: a whole graph's, on the processor; its arrays may be mapped from files.
        labelled: bool [num_vertices], the vertices that batches start from; at least one.
        fanouts: number of in-edges that a destination of each hop picks, without replacement; -1 for all. The first is that of the hop
            nearest the seeds.
        batch_size: number of seeds in a batch, at least 1.
    Returns:
        float64 [num_vertices], from 0 to 1.
    References:
        Kaler et al., MLSys 2023, Sec. 3.1. We differ in that a destination picks anew in each hop, as our sampler's do.
    Example:
        >>> topology = Topology.from_coo(src=torch.tensor([1, 2, 3]), dst=torch.tensor([0, 0, 1]), num_src=4)
        >>> labelled = torch.tensor([True, False, False, False])
        >>> inclusion_probability(topology, labelled, [1, 1]).tolist()
        [1.0, 0.75, 0.75, 0.5]
    """
    where = "inclusion_probability"
    fanouts = require_fanouts(fanouts, where=f"{where}, fanouts")
    require_integer(batch_size, "batch_size", where=f"{where}, batch_size")
    num_labelled = _count_labelled(labelled, topology, where=where)
    in_degrees = topology.in_degrees().double()
    # Logarithms of the probability that a vertex is not in the batch.
    absent = torch.log1p(-labelled.double() * min(1.0, batch_size / num_labelled))
    for fanout in fanouts:
        picks = 1.0 if fanout == -1 else fanout / in_degrees.clamp(min=fanout)
        absent = absent + spread(topology, torch.log1p(torch.expm1(absent) * picks))
    return -torch.expm1(absent)


def hottest(score: Tensor) -> Tensor:
    """The vertices by descending score; of equal scores, the lower id comes first.

    That is the order of Data Tiering's Algorithm 2, for :func:`sagann.graph.relabel`: vertex ``hottest(score)[0]`` becomes
    vertex 0.

    Args:
        score: [num_vertices], finite.
    Returns:
        int64 [num_vertices].
    Raises:
        InputError: a score is not a number.
    Example:
        >>> hottest(torch.tensor([0.1, 0.4, 0.2, 0.4])).tolist()
        [1, 3, 2, 0]
    """
    require_type(score, Tensor, where="hottest, score", hint="Convert it with torch.as_tensor.")
    if score.ndim != 1 or bool(score.isnan().any()):
        raise InputError(
            f"a score is not a number for every vertex: {score.dtype} {list(score.shape)}, "
            f"{int(score.isnan().sum())} of NaN (in hottest, score)",
            hint="Pass one number for each vertex.",
        )
    return torch.sort(score, descending=True, stable=True).indices


def _iterated(topology: Topology, score: Tensor) -> Tensor:
    # A vertex without in-edges gives its score to nobody, so its divisor does not matter.
    shares = score / topology.in_degrees().clamp_(min=1)
    return spread(topology, shares).mul_(DAMPING).add_((1 - DAMPING) / max(1, topology.num_dst))


def _uniform(num_vertices: int) -> Tensor:
    return torch.full((num_vertices,), 1 / max(1, num_vertices), dtype=torch.float64)


def _count_labelled(labelled: Tensor, topology: Topology, *, where: str) -> int:
    """Number of labelled vertices; refuse anything but the topology of a whole graph and a mask of at least one of its vertices."""
    require_square(topology, where=f"{where}, topology")
    where, hint = f"{where}, labelled", "Pass a mask, such as graph.splits['train']."
    require_array(labelled, (torch.bool,), f"[{topology.num_dst}]", where=where, hint=hint)
    if len(labelled) != topology.num_dst:
        raise wrong_form(labelled, f"torch.bool [{topology.num_dst}]", where=where, hint=hint)
    count = int(labelled.sum())
    if not count:
        raise InputError(
            f"no vertex is labelled: 0 of {topology.num_dst} vertices (in {where})",
            hint="Mark the vertices that batches start from.",
        )
    return count


def spread(topology: Topology, values: Tensor) -> Tensor:
    """Add up, for every source, the values of the destinations of its out-edges: float64 [num_src]."""
    result = np.zeros(topology.num_src)
    indptr, indices, given = (array.contiguous().numpy() for array in (topology.indptr, topology.indices, values))
    _add(indptr, indices, given, result)
    return torch.from_numpy(result)


@compiled()
def _add(indptr: Array, indices: Array, values: Array, result: Array) -> None:
    for dst in range(len(indptr) - 1):
        value = values[dst]
        if value != 0:
            for e in range(indptr[dst], indptr[dst + 1]):
                result[np.uint64(indices[e])] += value
