"""Random numbers by seed, whatever the threads."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

from sagann.errors import InputError
from sagann.graph import edge_split, random_split, rmat_edges, sbm_graph
from sagann.graph.random_numbers import GOLDEN, mix, normals, uniforms
from sagann.jit import pytorch_threads
from sagann.partition import vertex_order
from sagann.sampling import LinkSampler, NeighborSampler, hold_out_links
from tests.graphs import labelled_graph


def test_mix_is_splitmix64():
    # The reference outputs of SplitMix64 for the seed 1234567.
    state, outputs = np.uint64(1234567), []
    with np.errstate(over="ignore"):
        for _ in range(3):
            state = state + GOLDEN
            outputs.append(int(mix(state)))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_normals_are_standard_normal():
    sample = normals(200, 501, seed=3, purpose=1).double()
    assert sample.shape == (200, 501)
    size = sample.numel()
    # Moments within five standard errors: 1, sqrt(2) and sqrt(96) are those of one number.
    assert abs(sample.mean()) < 5 / size**0.5
    assert abs(sample.var() - 1) < 5 * (2 / size) ** 0.5
    assert abs((sample**4).mean() - 3) < 5 * (96 / size) ** 0.5
    assert abs((sample[:, 1:] * sample[:, :-1]).mean()) < 5 / size**0.5


def block_model(seed):
    graph = sbm_graph(
        4000, num_classes=4, average_degree=8, homophily=0.7, num_features=3, feature_noise=0.5, seed=seed
    )
    return torch.cat([graph.topology.indices, graph.labels, graph.features.flatten()])


DRAWS = {
    "normals": lambda seed: normals(7, 3, seed=seed, purpose=0),
    "uniforms": lambda seed: uniforms(21, seed=seed, purpose=0),
    "R-MAT": lambda seed: torch.stack(rmat_edges(1000, 5000, seed=seed)),
    "block model": block_model,
}


@pytest.mark.parametrize("name", DRAWS)
def test_seed_decides_and_threads_do_not(name):
    draw, threads = DRAWS[name], numba.get_num_threads()
    first = draw(5)
    try:
        numba.set_num_threads(1)
        assert torch.equal(draw(5), first)
    finally:
        numba.set_num_threads(threads)
    assert not torch.equal(draw(6), first)


@pytest.mark.parametrize("seed", [-(2**70), 2**64 + 3])
def test_a_seed_of_one_draw_is_a_seed_of_all(seed: int) -> None:
    graph = labelled_graph()
    assert edge_split(graph.topology, seed=seed).train.num_edges > 0
    assert NeighborSampler(graph.topology, [2], seed=seed).sample([1, 2]).num_edges > 0
    assert len(LinkSampler(graph.topology, seed=seed).sample(torch.arange(3), torch.arange(3)).seeds) > 0
    held = hold_out_links(graph, seed=seed, most=5)
    same = hold_out_links(graph, seed=seed % 2**64, most=5)
    assert torch.equal(held.links.src, same.links.src)
    assert torch.equal(held.links.negatives, same.links.negatives)
    split = random_split(graph, seed=seed)
    assert torch.equal(split.splits["train"], random_split(graph, seed=seed % 2**64).splits["train"])
    order = vertex_order(graph, "random", seed=seed)
    assert torch.equal(order, vertex_order(graph, "random", seed=seed % 2**64))


def test_what_numba_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        raise ValueError("The threading layer requested 'x' is unknown to Numba.")

    monkeypatch.setattr(numba, "set_num_threads", refuse)
    with (
        pytest.raises(InputError, match=r"layer requested 'x' is unknown .*Unset NUMBA_NUM_THREADS and"),
        pytorch_threads(),
    ):
        pytest.fail("loops may not run")
