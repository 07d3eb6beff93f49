"""Sampled blocks against their twin, against the whole graph, from several threads, from mapped files, and with wrong arguments."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sagann.errors import InputError, LayerError
from sagann.graph import Topology, rmat_graph
from sagann.sampling import NeighborSampler
from sagann.storage import open_graph, save_graph
from sagann.train.resources import peak_rss_bytes
from tests.graphs import labelled_graph, odd_topologies, random_topology
from tests.sampling import naive
from tests.sampling.naive import assert_same, assert_same_block

SEVERAL = random_topology(300, 9000, types=3)


@pytest.mark.parametrize("weights", [None, "weight"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("fanouts", [[1], [-1, 2], [4, -1, 1]])
@pytest.mark.parametrize("name", [*odd_topologies(), "several"])
def test_blocks_equal_the_twins(name: str, fanouts: list[int], replace: bool, weights: str | None) -> None:
    topology = SEVERAL if name == "several" else odd_topologies(types=2)[name]
    seeds = torch.randperm(topology.num_dst, generator=torch.Generator().manual_seed(1))[:20]
    sampler = NeighborSampler(topology, fanouts, replace=replace, weights=weights, seed=3)
    sampled = sampler.sample(seeds, epoch=1, batch=2)
    expected, src_ids = naive.blocks(
        topology, fanouts, seeds.tolist(), replace=replace, weights=weights, seed=3, epoch=1, batch=2
    )
    for block, other in zip(sampled.blocks, expected, strict=True):
        block.validate()
        assert_same_block(block, other)
    assert sampled.src_ids.tolist() == src_ids
    assert sampled.seeds.equal(seeds)
    assert sampled.num_edges == sum(block.num_edges for block in expected)


def test_threads_sample_what_one_thread_samples() -> None:
    graph = rmat_graph(2000, 20_000, seed=0).topology
    sampler = NeighborSampler(graph, [7, 5, 3], seed=1)
    seeds = [torch.randperm(2000, generator=torch.Generator().manual_seed(n))[: 1 + 29 * n] for n in range(40)]
    expected = [sampler.sample(each, batch=batch) for batch, each in enumerate(seeds)]
    fresh = NeighborSampler(graph, [7, 5, 3], seed=1)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            found = list(pool.map(lambda batch: fresh.sample(seeds[batch], batch=batch), reversed(range(40))))
            for ours, other in zip(found, reversed(expected), strict=True):
                assert_same(ours, other)


def test_ids_of_64_bits() -> None:
    wide = Topology(
        indptr=SEVERAL.indptr,
        indices=SEVERAL.indices.long(),
        num_src=SEVERAL.num_src,
        edge_data=dict(SEVERAL.edge_data),
    )
    seeds = torch.arange(20)
    for given in ({}, {"weights": "weight"}, {"replace": True}):
        ours, expected = (NeighborSampler(each, [3, 4], **given).sample(seeds) for each in (wide, SEVERAL))
        assert_same(ours, expected)


def test_a_mapped_graph_gives_what_it_gives_in_memory(tmp_path: Path) -> None:
    graph = labelled_graph()
    save_graph(graph, tmp_path / "graph")
    mapped = open_graph(tmp_path / "graph")
    seeds = torch.arange(0, 53, 4)
    for weights in (None, "weight"):
        ours, expected = (
            NeighborSampler(each.topology, [3, 2], weights=weights).sample(seeds) for each in (mapped, graph)
        )
        assert_same(ours, expected)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's account of memory")
def test_more_edges_than_32_bits_count_are_mapped_and_not_read(tmp_path: Path) -> None:
    # The file has a hole instead of zeros: every edge comes from vertex 0.
    num_edges, num_vertices = 2**31 + 100, 8
    path = tmp_path / "indices"
    with path.open("wb") as file:
        file.truncate(4 * num_edges)
    indices = torch.from_numpy(np.memmap(path, dtype=np.int32, mode="c"))
    indptr = torch.linspace(0, num_edges, num_vertices + 1, dtype=torch.float64).long()
    topology = Topology(indptr=indptr, indices=indices, num_src=num_vertices, validate=False)
    # From here on the system counts the peak anew; that of earlier tests may be higher than what this one takes.
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_rss_bytes()
    sampled = NeighborSampler(topology, [5, 60]).sample(torch.tensor([7, 3]))
    assert peak_rss_bytes() - before < 200 << 20
    outer, inner = sampled.blocks
    assert (inner.num_edges, outer.num_edges) == (10, 180)
    assert inner.edge_ids.dtype == torch.int64
    assert bool((inner.edge_ids[:5] >= indptr[7]).all())
    assert sampled.src_ids.tolist() == [7, 3, 0]


def test_edge_data_of_any_type_and_width_is_taken_along() -> None:
    data = torch.randn(SEVERAL.num_edges, 3, 2, generator=torch.Generator().manual_seed(0))
    types = (torch.bfloat16, torch.float16, torch.int8, torch.bool)
    made = {f"{dtype}": data.transpose(1, 2).to(dtype) for dtype in types}
    topology = SEVERAL.with_edge_data(**made, **{f"{name}, narrow": rows[:, 0, 0] for name, rows in made.items()})
    (block,) = NeighborSampler(topology, [3]).sample(torch.arange(9)).blocks
    for name, rows in topology.edge_data.items():
        assert block.edge_data[name].equal(rows[block.edge_ids])


def test_edge_data_that_learns_gets_gradients() -> None:
    learned = torch.ones(SEVERAL.num_edges, requires_grad=True)
    topology = SEVERAL.with_edge_data(learned=learned)
    (block,) = NeighborSampler(topology, [2]).sample(torch.arange(5)).blocks
    block.edge_data["learned"].sum().backward()
    assert learned.grad.nonzero().squeeze(1).equal(block.edge_ids.long().sort().values)


BLOCK = Topology(indptr=torch.tensor([0, 1]), indices=torch.tensor([1]), num_src=2)


def weighted(value: float, *, learns: bool = False) -> dict[str, Any]:
    """Edges one of which has this weight."""
    weights = torch.ones(SEVERAL.num_edges, dtype=torch.float64)
    weights[17] = value
    return {"topology": SEVERAL.with_edge_data(cost=weights.requires_grad_(learns)), "weights": "cost"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"topology": labelled_graph()}, "NeighborSampler.topology). Pass a topology: that of a graph is graph.topology."),
        ({"topology": SEVERAL.to("meta")}, "they are on a device of type 'meta'"),
        ({"fanouts": 5}, "a int, expected list or tuple (in fanouts)"),
        ({"fanouts": [5, "5"]}, "a str, expected int (in fanouts, hop 1)"),
        ({"fanouts": [3, 0]}, "fanout out of range: 0, expected an integer from 1 to 2^31 - 1, or -1 for all edges (in fanouts, hop 1)"),
        ({"fanouts": []}, "there are no hops"),
        ({"topology": BLOCK}, "2 sources, 1 destinations"),
        (weighted(1.0, learns=True), "weights that learn do not pick edges"),
        (weighted(-1.0), "0 to 1e+300 (in edge data 'cost', edge 17)"),
        (weighted(float("nan")), "weight of an edge out of range"),
        (weighted(1e301), "weight of an edge out of range"),
        ({"weights": "cost"}, "no edge data of that name: 'cost', there are type, weight"),
        ({"weights": "type"}, "expected torch.float32 or torch.float64 [num_edges] (in edge data 'type')"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError) as error:
        NeighborSampler(**{"topology": SEVERAL, "fanouts": [2], **arguments})
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("seeds", "named"),
    [
        ([0, 300], "vertex id out of range: 300, but there are 300 vertices, numbered from 0 (in seeds, position 1)"),
        ([5, 6, 5], "seed repeated: 5 stands a second time at position 2 (in seeds)"),
        ([], "batch is empty: 0 seeds, at least 1 is needed (in seeds)"),
        ([[1]], "torch.int64 [1, 1], expected torch.int64 [n] (in seeds)"),
    ],
)  # fmt: skip
def test_wrong_seeds_are_named(seeds: list[Any], named: str) -> None:
    sampler = NeighborSampler(SEVERAL, [2])
    with pytest.raises(InputError) as error:
        sampler.sample(torch.tensor(seeds, dtype=torch.int64))
    assert named in str(error.value)
    assert sampler.sample(torch.tensor([5])).seeds.tolist() == [5]
    with pytest.raises(InputError, match="for a mask"):
        sampler.sample(torch.ones(300, dtype=torch.bool))


@pytest.mark.parametrize("name", ["indptr", "indices"])
def test_edges_that_were_overwritten_are_refused(name: str) -> None:
    topology = SEVERAL.mapped(torch.clone)
    sampler = NeighborSampler(topology, [-1])
    getattr(topology, name).zero_()
    for use in (lambda: sampler.sample(torch.arange(5)), lambda: NeighborSampler(topology, [-1])):
        with pytest.raises(
            LayerError, match=f"the edges of a topology were overwritten: .* \\(in Topology.{name}\\)"
        ):
            use()


def test_edges_picked_with_replacement_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = labelled_graph().topology
    with pytest.raises(
        InputError, match=r"fanout out of range: 2147483647, expected an integer from 1 to 65536, or -1"
    ):
        NeighborSampler(topology, [2**31 - 1], replace=True)
    assert NeighborSampler(topology, [2**31 - 1]).sample([0, 1]).num_edges < topology.num_edges
    monkeypatch.setattr("sagann.sampling.arguments.MOST_DRAWN", 100)
    sampler = NeighborSampler(topology, [20, 20], replace=True)
    message = r"a hop picks too many edges with replacement: [\d,]+ for [\d,]+ destinations of 20 each, at most 100 are allowed \(in fanouts, hop 1\)"
    with pytest.raises(InputError, match=message):
        sampler.sample(topology.indices[:1].long())
