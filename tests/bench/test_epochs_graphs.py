"""The graphs of the epoch benchmark are what every contestant takes them for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.epochs.graphs import SHAPES, generate, rehearsal
from bench.standalone.stored import Stored


def edges(stored: Stored) -> set[tuple[int, int]]:
    return set(zip(stored.src.tolist(), stored.dst().tolist(), strict=True))


@pytest.mark.parametrize("name", ["tiny", "rehearsal"])
def test_graphs_are_undirected_and_simple_and_sorted(name: str) -> None:
    stored = rehearsal(3, 2) if name == "rehearsal" else generate(SHAPES[name])
    found = edges(stored)
    assert len(found) == len(stored.src)
    assert found == {(dst, src) for src, dst in found}
    assert all(src != dst for src, dst in found)
    keys = stored.dst().long() * stored.num_vertices + stored.src.long()
    assert bool((keys.diff() > 0).all())
    assert stored.src.dtype == torch.int32


def test_a_generated_graph_has_its_shape_exactly() -> None:
    shape = SHAPES["tiny"]
    stored = generate(shape)
    assert (stored.num_vertices, len(stored.src)) == (shape.vertices, shape.edges)
    assert stored.features.shape == (shape.vertices, shape.features)
    assert int(stored.labels.max()) < shape.classes


def test_self_loops_and_degree_weights() -> None:
    stored = generate(SHAPES["tiny"]).with_self_loops()
    assert all((v, v) in edges(stored) for v in range(stored.num_vertices))
    n = stored.num_vertices
    adjacency = np.zeros((n, n))
    adjacency[stored.dst().numpy(), stored.src.numpy()] = 1
    scale = adjacency.sum(1) ** -0.5
    expected = (scale[:, None] * adjacency * scale)[stored.dst().numpy(), stored.src.numpy()]
    np.testing.assert_allclose(stored.gcn_weights().numpy(), expected, rtol=1e-6)
