"""A degree-corrected stochastic block model with features and labels, from which a GNN can learn; the embedded demo is one.

A vertex has a class, a weight drawn from a power law, and features around the centre of its class. An undirected edge joins
two vertices that are drawn in proportion to their weights. With probability ``homophily`` the second vertex is drawn
from the class of the first, otherwise from the other classes. Neighbours average out the noise of the features. Draws
depend on the seed and a counter alone, so the number of threads does not change the graph.

References:
    Karrer and Newman, Stochastic blockmodels and community structure in networks, Physical Review E 83, 2011.
    We differ in fixing the share of edges inside classes (homophily) rather than a matrix of rates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from sagann.errors import InputError
from sagann.graph.graph import Graph
from sagann.graph.random_numbers import GOLDEN, key_of, mix, normals, stream_of, uniforms, unit
from sagann.graph.rows import offsets_of
from sagann.graph.split import planetoid_split
from sagann.graph.topology import Topology
from sagann.jit import compiled, pytorch_threads
from sagann.ranges import require_integer

LABELS, WEIGHTS, EDGES, CENTRES, NOISE = range(5)
# Draws that repeat an edge are replaced in further rounds; dense graphs converge slowly, so rounds are limited.
MAX_ROUNDS = 20
# A draw that hits its own start is repeated; a class may have only one vertex, so repeats are limited.
MAX_TRIES = 16


def sbm_graph(
    num_vertices: int,
    *,
    num_classes: int,
    average_degree: float,
    homophily: float = 0.67,
    degree_exponent: float = 2.5,
    num_features: int,
    feature_noise: float = 0.37,
    seed: int,
) -> Graph:
    """Draw an undirected graph (both directions stored), without self-loops and multi-edges, and without splits.

    Args:
        num_vertices: number of vertices, in classes of about equal size.
        num_classes: number of classes, at least 1.
        average_degree: directed edges per vertex, at most ``num_vertices - 1``.
        homophily: expected share of the edges that join vertices of one class, in [0, 1].
        degree_exponent: exponent of the degrees' power law, above 2; a higher exponent gives more even degrees.
            Expected degrees are cut at about ``sqrt(num_vertices * average_degree)``.
        num_features: number of features per vertex, float32.
        feature_noise: standard deviation of the noise in every feature. Centres of classes are at a distance
            of about sqrt(2) from each other.
        seed: seed of all draws.
    Raises:
        InputError: an argument is out of range.
    """
    counts = {"num_vertices": num_vertices, "num_classes": num_classes, "num_features": num_features}
    for name, count in counts.items():
        require_integer(count, name, where="sbm_graph")
    limits = {
        "num_classes": (num_classes, 1, 2**48, "at least 1"),
        "average_degree": (average_degree, 0, max(0, num_vertices - 1), "from 0 to num_vertices - 1"),
        "homophily": (homophily, 0, 1, "from 0 to 1"),
        "degree_exponent": (degree_exponent, np.nextafter(2, 3), np.inf, "above 2"),
        # Features are float32, and a normal number is below 10.
        "feature_noise": (feature_noise, 0, 1e36, "from 0 to 1e+36"),
    }
    for name, (value, low, high, expected) in limits.items():
        if not low <= value <= high:
            raise InputError(
                f"parameter of the block model out of range: {value:g}, expected {expected} (in {name} of sbm_graph)",
                hint="Pass a value in the range.",
            )
    labels = (uniforms(num_vertices, seed=seed, purpose=LABELS) * num_classes).long()
    weights = (1 - uniforms(num_vertices, seed=seed, purpose=WEIGHTS)) ** (-1 / (degree_exponent - 1))
    if num_vertices:
        # A vertex of mean weight gets average_degree edges.
        limit = max(1.0, (num_vertices / max(average_degree, 1e-9)) ** 0.5)
        weights.clamp_(max=limit * float(weights.mean()))
    num_pairs = round(num_vertices * average_degree / 2)
    src, dst = _draw_edges(labels, num_classes, weights, num_pairs, homophily, seed)
    centres = normals(num_classes, num_features, seed=seed, purpose=CENTRES) / max(1, num_features) ** 0.5
    features = normals(num_vertices, num_features, seed=seed, purpose=NOISE)
    features.mul_(feature_noise).add_(centres[labels])
    return Graph(
        topology=Topology.from_coo(src=torch.cat([src, dst]), dst=torch.cat([dst, src]), num_src=num_vertices),
        features=features,
        labels=labels,
        num_classes=num_classes,
        name=f"sbm-{num_vertices}",
    )


def demo_graph(*, seed: int = 0) -> Graph:
    """Draw the demo graph: 19,717 vertices, 88,726 directed edges, 3 classes, 500 features, a Planetoid split.

    Homophily and noise are tuned for 20 labelled vertices per class: a two-layer GCN then has a test accuracy of about
    80 %, and the same network without edges about 68 %.

    Args:
        seed: seed of all draws; other seeds give other graphs of the same kind.
    """
    graph = sbm_graph(
        19_717,
        num_classes=3,
        average_degree=4.5,
        degree_exponent=3.0,
        num_features=500,
        seed=seed,
    )
    return replace(planetoid_split(graph, train=20, val=500, test=1000, seed=seed), name="demo")


def _draw_edges(
    labels: Tensor, num_classes: int, weights: Tensor, num_pairs: int, homophily: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Draw ``num_pairs`` distinct pairs src < dst, or fewer if the rounds do not find so many."""
    num_vertices = len(labels)
    # Vertices grouped by class, with running sums of their weights: drawing is a binary search.
    order = torch.sort(labels, stable=True).indices
    running = torch.zeros(num_vertices + 1, dtype=torch.float64)
    torch.cumsum(weights[order], 0, out=running[1:])
    class_ptr = offsets_of(torch.bincount(labels, minlength=num_classes))
    pairs = torch.empty(0, dtype=torch.int64)
    drawn = 0
    for _ in range(MAX_ROUNDS):
        missing = num_pairs - len(pairs)
        if missing <= 0:
            break
        fresh = torch.empty(missing, dtype=torch.int64)
        with pytorch_threads():
            _fill_pairs(
                key_of(seed, EDGES),
                drawn,
                homophily,
                running.numpy(),
                class_ptr.numpy(),
                order.numpy(),
                fresh.numpy(),
            )
        drawn += missing
        pairs = torch.cat([pairs, fresh[fresh >= 0]]).unique()
    return pairs // max(1, num_vertices), pairs % max(1, num_vertices)


@compiled(parallel=True)
def _fill_pairs(
    key: Any, first: int, homophily: float, running: Any, class_ptr: Any, order: Any, pairs: Any
) -> None:
    """Encode each drawn edge as low * num_vertices + high; -1 where no partner was found."""
    num_vertices = len(order)
    num_classes = len(class_ptr) - 1
    total = running[num_vertices]
    for i in prange(len(pairs)):
        state = stream_of(key, first + i)
        pairs[i] = -1
        for _ in range(MAX_TRIES):
            state += GOLDEN
            at = _draw(running, 0, num_vertices, unit(mix(state)) * total)
            own = np.searchsorted(class_ptr, at, side="right") - 1
            begin, end = class_ptr[own], class_ptr[own + 1]
            state += GOLDEN
            same = num_classes == 1 or unit(mix(state)) < homophily
            state += GOLDEN
            if same:
                partner = _draw(
                    running, begin, end, running[begin] + unit(mix(state)) * (running[end] - running[begin])
                )
            else:
                # The weights of all other classes: the own class is cut out of the running sum.
                outside = total - (running[end] - running[begin])
                if outside <= 0:
                    continue
                point = unit(mix(state)) * outside
                if point >= running[begin]:
                    point += running[end] - running[begin]
                partner = _draw(running, 0, num_vertices, point)
            if partner != at:
                low, high = min(order[at], order[partner]), max(order[at], order[partner])
                pairs[i] = low * num_vertices + high
                break


@compiled()
def _draw(running: Any, begin: int, end: int, point: float) -> Any:
    """The position in [begin, end) whose piece of the running sum holds ``point``."""
    return begin + np.searchsorted(running[begin + 1 : end], point, side="right")
