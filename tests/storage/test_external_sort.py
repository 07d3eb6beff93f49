"""Sorting more edges than memory holds gives what sorting them at once gives, to the bit."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from sagann.errors import DatasetError
from sagann.graph import Graph, Topology
from sagann.graph.rmat import rmat_graph
from sagann.graph.transform import coalesce, remove_self_loops, symmetrise
from sagann.import_config import LEAST_MEMORY_BYTES
from sagann.storage import ImportOptions, check_dataset, edge_spool, open_graph, write_rmat
from sagann.storage.edge_spool import EdgeSpool
from sagann.storage.import_source import Dtype, EdgeChunk, ImportSource
from sagann.storage.importer import import_dataset
from sagann.storage.manifest import read_manifest
from tests.storage.conftest import assert_same_graph

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, kw_only=True)
class ArrayEdges:
    """Edges from arrays, in chunks."""

    src: Array
    dst: Array
    data: Mapping[str, Array]
    chunk_edges: int = 50_000

    @property
    def num_edges(self) -> int:
        return len(self.src)

    @property
    def columns(self) -> Mapping[str, Dtype]:
        return {name: np.dtype((rows.dtype, rows.shape[1:])) for name, rows in self.data.items()}

    @property
    def chunks(self) -> Iterator[EdgeChunk]:
        for begin in range(0, len(self.src), self.chunk_edges):
            part = slice(begin, begin + self.chunk_edges)
            yield EdgeChunk(
                src=self.src[part],
                dst=self.dst[part],
                data={name: rows[part] for name, rows in self.data.items()},
                file="test",
                first_row=begin,
            )


def draw_edges(kind: str, num_vertices: int, num_edges: int) -> tuple[Array, Array]:
    numbers = np.random.default_rng(7)
    if kind == "uniform":
        src, dst = numbers.integers(0, num_vertices, (2, num_edges))
        return src, dst
    if kind == "power law":
        src, dst = (num_vertices * numbers.random((2, num_edges)) ** 6).astype(np.int64)
        return src, dst
    if kind == "one destination":
        return numbers.integers(0, num_vertices, num_edges), np.full(num_edges, num_vertices // 2)
    assert kind == "one pair"
    return np.full(num_edges, num_vertices - 1), np.full(num_edges, num_vertices // 2)


def edge_data(names: str, num_edges: int) -> dict[str, Array]:
    numbers = np.random.default_rng(8)
    # Whole numbers, so that sums are exact in whatever order.
    every = {
        "weight": numbers.integers(1, 4, num_edges).astype(np.float32),
        "type": numbers.integers(0, 3, num_edges),
        "vector": numbers.random((num_edges, 2)).astype(np.float32),
    }
    return {name: every[name] for name in names.split()}


def import_arrays(out: Path, edges: ArrayEdges, **options: Any) -> Graph:
    source = ImportSource(name="test", description="arrays", edges=edges)
    import_dataset(source, out, ImportOptions(**options))
    check_dataset(out)
    assert [entry.name for entry in out.parent.iterdir()] == [out.name]
    return open_graph(out)


def at_once(edges: ArrayEdges, num_vertices: int, options: Mapping[str, bool]) -> Graph:
    topology = Topology.from_coo(
        src=torch.from_numpy(edges.src),
        dst=torch.from_numpy(edges.dst),
        num_src=num_vertices,
        edge_data={name: torch.from_numpy(rows) for name, rows in edges.data.items()},
    )
    graph = Graph(topology=topology, num_edge_types=3 if "type" in edges.data else 0)
    graph = remove_self_loops(graph) if options.get("drop_self_loops") else graph
    if options.get("symmetrise"):
        return symmetrise(graph)
    return coalesce(graph) if options.get("coalesce") else graph


def assert_same_edges(found: Graph, expected: Graph) -> None:
    assert torch.equal(found.topology.indptr, expected.topology.indptr)
    assert torch.equal(found.topology.indices, expected.topology.indices)
    for name, rows in expected.topology.edge_data.items():
        assert torch.equal(found.topology.edge_data[name], rows), name


@pytest.mark.parametrize("kind", ["power law", "one destination", "one pair"])
@pytest.mark.parametrize("data", ["", "weight type vector"])
@pytest.mark.parametrize(
    "options",
    [{}, {"coalesce": True}, {"symmetrise": True, "drop_self_loops": True}],
    ids=str,
)
def test_sorted_in_parts_equals_sorted_at_once(
    tmp_path: Path, kind: str, data: str, options: dict[str, bool]
) -> None:
    # With the least memory these edges take several parts, and "one destination" several parts of sources.
    src, dst = draw_edges(kind, 1000, 150_000)
    edges = ArrayEdges(src=src, dst=dst, data=edge_data(data, len(src)))
    found = import_arrays(tmp_path / "g", edges, num_vertices=1000, memory_bytes=LEAST_MEMORY_BYTES, **options)
    assert_same_edges(found, at_once(edges, 1000, options))


@pytest.mark.parametrize("kind", ["one destination", "one pair"])
@pytest.mark.parametrize("coalesce", [False, True])
def test_in_edges_of_one_destination_are_sorted_within_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, coalesce: bool
) -> None:
    # Of the default size, a histogram takes more than the edges here.
    monkeypatch.setattr(edge_spool, "_MAX_BINS", 2**12)
    src, dst = draw_edges(kind, 1000, 500_000)
    edges = ArrayEdges(src=src, dst=dst, data=edge_data("weight", len(src)))
    # Compiles or loads the kernels, which takes more memory than the sort.
    import_arrays(tmp_path / "g", edges, memory_bytes=2**21, coalesce=coalesce)
    tracemalloc.start()
    try:
        found = import_arrays(tmp_path / "g", edges, memory_bytes=2**21, coalesce=coalesce, overwrite=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 2**21
    assert_same_edges(found, at_once(edges, found.num_vertices, {"coalesce": coalesce}))


def test_many_vertices_and_few_edges(tmp_path: Path) -> None:
    src, dst = draw_edges("uniform", 500_000, 1000)
    edges = ArrayEdges(src=src, dst=dst, data=edge_data("weight", 1000))
    found = import_arrays(tmp_path / "g", edges, num_vertices=500_000, memory_bytes=LEAST_MEMORY_BYTES)
    assert_same_edges(found, at_once(edges, 500_000, {}))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pairs=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=60),
    chunk_edges=st.integers(1, 20),
    options=st.fixed_dictionaries({name: st.booleans() for name in ("symmetrise", "coalesce", "drop_self_loops")}),
    data=st.sampled_from(["", "weight", "weight type"]),
)
def test_any_small_graph(
    tmp_path: Path, pairs: list[tuple[int, int]], chunk_edges: int, options: dict[str, bool], data: str
) -> None:
    src, dst = np.array(pairs, dtype=np.int64).reshape(-1, 2).T.copy()
    edges = ArrayEdges(src=src, dst=dst, data=edge_data(data, len(src)), chunk_edges=chunk_edges)
    found = import_arrays(tmp_path / "g", edges, num_vertices=10, overwrite=True, **options)
    assert_same_edges(found, at_once(edges, 10, options))


def test_number_of_vertices_is_the_largest_id_unless_stated(tmp_path: Path) -> None:
    edges = ArrayEdges(src=np.array([0, 7]), dst=np.array([3, 1]), data={})
    assert import_arrays(tmp_path / "g", edges).num_vertices == 8
    assert import_arrays(tmp_path / "g", edges, num_vertices=20, overwrite=True).num_vertices == 20
    # Self-loops count, though they are dropped.
    looped = ArrayEdges(src=np.array([0, 9]), dst=np.array([1, 9]), data={"type": np.array([0, 4])}, chunk_edges=1)
    graph = import_arrays(tmp_path / "g", looped, overwrite=True, drop_self_loops=True)
    assert (graph.num_vertices, graph.num_edges, graph.num_edge_types) == (10, 1, 5)


def test_treatment_of_edges_is_recorded(tmp_path: Path) -> None:
    edges = ArrayEdges(src=np.array([0, 1]), dst=np.array([1, 1]), data={})
    import_arrays(tmp_path / "g", edges, symmetrise=True, drop_self_loops=True)
    assert read_manifest(tmp_path / "g").edges == {
        "symmetrised": True,
        "coalesced": True,
        "self_loops_dropped": True,
    }


def test_hashed_ids_are_refused_before_they_fill_the_disk(tmp_path: Path) -> None:
    edges = ArrayEdges(src=np.array([0, 3_000_000_000]), dst=np.array([1, 1]), data={})
    with pytest.raises(DatasetError, match=r"ids are not numbered from 0: the largest is 3000000000, with 2 edges"):
        import_arrays(tmp_path / "g", edges)


def test_ids_beyond_32_bits_are_spooled_whole(tmp_path: Path) -> None:
    spool = EdgeSpool(tmp_path, columns={}, drop_self_loops=False, mirrors=False, block_edges=2)
    ids = np.array([5, 1, 2**31 + 3, 2**40, 7])
    for begin in range(0, 5, 2):
        part = ids[begin : begin + 2]
        spool.add(EdgeChunk(src=part, dst=part[::-1].copy(), data={}, file="test", first_row=begin))
    spool.finish(2**40 + 1)
    assert np.concatenate([block[0] for block in spool.run.blocks()]).tolist() == ids.tolist()
    assert int(spool.histogram.counts.sum()) == 5
    assert spool.histogram.counts[(2**40) >> spool.histogram.shift] == 1


def test_disk_that_is_too_small_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    edges = ArrayEdges(src=np.zeros(100_000, np.int64), dst=np.zeros(100_000, np.int64), data={})
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 100, 0))
    with pytest.raises(DatasetError, match=r"disk is too small for this import: about 0.0 GiB are needed"):
        import_arrays(tmp_path / "g", edges)
    assert list(tmp_path.iterdir()) == []


def test_progress_tells_every_stage_to_its_end(tmp_path: Path) -> None:
    told: dict[str, tuple[int, int | None, str]] = {}

    def tell(done: int, total: int | None, unit: str, stage: str) -> None:
        assert done >= told.get(stage, (0,))[0]
        told[stage] = (done, total, unit)

    src, dst = draw_edges("uniform", 1000, 150_000)
    edges = ArrayEdges(src=src, dst=dst, data={})
    import_arrays(tmp_path / "g", edges, num_vertices=1000, memory_bytes=LEAST_MEMORY_BYTES, progress=tell)
    whole = (150_000, 150_000, "edges")
    assert told == {"reading edges": whole, "partitioning": whole, "sorting": whole}


def test_edges_are_those_of_the_graph_in_memory(tmp_path: Path) -> None:
    options = ImportOptions(memory_bytes=2**20)
    write_rmat(tmp_path / "r", 5000, 200_000, seed=3, num_features=4, num_classes=5, options=options)
    check_dataset(tmp_path / "r")
    found, expected = open_graph(tmp_path / "r"), rmat_graph(5000, 200_000, seed=3)
    assert torch.equal(found.topology.indptr, expected.topology.indptr)
    assert torch.equal(found.topology.indices, expected.topology.indices)


def test_vertices_do_not_depend_on_memory_but_on_the_seed(tmp_path: Path) -> None:
    for name, seed, memory_bytes in (("a", 1, 2**20), ("b", 1, 2**26), ("c", 2, 2**20)):
        options = ImportOptions(memory_bytes=memory_bytes, name="rmat")
        write_rmat(tmp_path / name, 1000, 5000, seed=seed, num_features=3, num_classes=4, options=options)
    first = open_graph(tmp_path / "a")
    assert_same_graph(open_graph(tmp_path / "b"), first)
    other = open_graph(tmp_path / "c")
    assert not torch.equal(other.features, first.features)
    assert abs(float(first.features.mean())) < 0.1
    assert sorted(first.labels.unique().tolist()) == [0, 1, 2, 3]
    shares = [int(first.splits[name].sum()) / 1000 for name in ("train", "val", "test")]
    assert all(abs(share - wanted) < 0.05 for share, wanted in zip(shares, (0.6, 0.2, 0.2), strict=True))
