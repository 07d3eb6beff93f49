"""Chunks are cut once, and again when the graph is cut anew; those that stay as they are travel in the same parcels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sagann.graph import Topology
from sagann.kernels.dialects import dialect_for
from sagann.kernels.edge import naive
from sagann.kernels.edge.pass_edges import PassEdges
from sagann.plan.steps import Block
from sagann.runtime.device.chunk_parcels import ChunkParcels
from sagann.runtime.device.pinned import PinnedPool
from tests.graphs import random_topology
from tests.runtime.device.late_streams import LateStreams


@pytest.fixture
def dialect() -> Any:
    pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
    return dialect_for("cuda", "gpu")


def parcels_of(dialect: Any) -> tuple[ChunkParcels, LateStreams]:
    streams = LateStreams()
    return ChunkParcels(dialect, streams, PinnedPool(streams)), streams


def landed(parcels: ChunkParcels, form: str, topology: Topology, *, lasting: bool = False) -> PassEdges:
    """A chunk by way of its parcel."""
    edges = PassEdges.of(topology, "dst" if form == "csc" else "src")
    chunk = parcels.of(Block("edges", form, 0, 0), lambda: edges, lasting=lasting)
    views = chunk.parcel.views([run.clone() for run in chunk.parcel.runs])
    found = chunk.landed(parcels.dialect, lambda _: next(views))
    assert isinstance(found, PassEdges)
    return found


def test_a_chunk_is_cut_once_at_each_end_and_again_when_the_graph_is_cut_anew(
    dialect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str] = []
    cut_of = dialect.cut_of

    def counted(edges: PassEdges, at: str) -> object:
        found.append(at)
        return cut_of(edges, at)

    monkeypatch.setattr(dialect, "cut_of", counted)
    parcels, _ = parcels_of(dialect)
    for form, at in (("csc", "dst"), ("csr", "src"), ("numbered csr", "src")):
        for _ in range(2):
            topology = random_topology(9, 20)
            edges = landed(parcels, form, topology)
            expected = PassEdges.of(topology, "dst" if form == "csc" else "src")
            assert torch.equal(edges.indptr, expected.indptr)
            assert torch.equal(edges.indices, expected.indices)
            edges.derived(("edge pass", "gpu", at), lambda: pytest.fail("the edges have no cut"))
    assert found == ["dst", "src"]
    parcels.forget()
    landed(parcels, "csc", random_topology(9, 20))
    assert found == ["dst", "src", "dst"]


def test_a_lasting_chunk_is_read_once_and_its_cut_travels_in_one_run_of_pinned_memory(dialect: Any) -> None:
    parcels, streams = parcels_of(dialect)
    # A vertex of so many edges is cut up, so that the cut has rows to merge.
    topology = Topology.from_coo(src=torch.arange(3000) % 7, dst=torch.zeros(3000, dtype=torch.long), num_src=7)
    edges, block = PassEdges.of(topology, "dst"), Block("edges", "csc", 0, 0)
    first = parcels.of(block, lambda: edges, lasting=True)
    assert parcels.of(block, lambda: pytest.fail("it is read again"), lasting=True) is first
    assert sum(map(streams.is_pinned, first.parcel.runs)) == 1
    of_cut = dialect.cut_of(edges, "dst")
    assert torch.equal(first.cut.items, of_cut.items)
    assert len(of_cut.rows.levels) == len(first.cut.rows.levels) > 0
    for kept, made in zip(first.cut.rows.levels, of_cut.rows.levels, strict=True):
        assert torch.equal(kept, made)


def test_memory_of_cuts_is_used_again_after_the_graph_was_cut_anew(dialect: Any) -> None:
    parcels, streams = parcels_of(dialect)
    topology = random_topology(9, 20)
    landed(parcels, "csc", topology, lasting=True)
    pinned_bytes = streams.pinned_bytes
    parcels.forget()
    landed(parcels, "csc", topology, lasting=True)
    assert streams.pinned_bytes == pinned_bytes


def test_without_cuts_a_parcel_has_the_edges_alone() -> None:
    parcels, streams = parcels_of(naive)
    topology = random_topology(9, 20)
    assert torch.equal(landed(parcels, "csc", topology).indices, topology.indices)
    assert not streams.pinned_bytes
