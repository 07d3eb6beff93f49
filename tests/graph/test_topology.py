"""Topologies: built from edges, kept, copied and refused. However they come about, in-edges ascend by source, on which ties depend."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, strategies as st

from sagann.errors import InputError, LayerError
from sagann.graph import (
    Graph,
    Topology,
    add_inverse_edges,
    checks as checks_module,
    demo_graph,
    rmat_graph,
    symmetrise,
)
from sagann.interop import from_scipy
from tests.graph.graphs import edges_of, graphs


def example(**data):
    return Topology.from_coo(
        src=torch.tensor([3, 0, 2, 3, 1, 0]), dst=torch.tensor([1, 1, 2, 1, 1, 0]), num_src=4, edge_data=data
    )


@given(st.integers(0, 6), st.integers(0, 6), st.data())
def test_from_coo_equals_a_stable_sort(num_dst, more, data):
    num_src = num_dst + more
    ends = st.tuples(st.integers(0, max(num_src - 1, 0)), st.integers(0, max(num_dst - 1, 0)))
    pairs = data.draw(st.lists(ends, max_size=30)) if num_dst else []
    ids = torch.tensor(pairs, dtype=data.draw(st.sampled_from([torch.int32, torch.int64]))).reshape(-1, 2)
    topology = Topology.from_coo(
        src=ids[:, 0], dst=ids[:, 1], num_src=num_src, num_dst=num_dst, edge_data={"at": torch.arange(len(pairs))}
    )
    topology.validate()
    expected = sorted(((*pair, at) for at, pair in enumerate(pairs)), key=lambda edge: (edge[1], edge[0]))
    assert edges_of(topology, "at") == expected
    assert topology.edge_dst().tolist() == [edge[1] for edge in expected]


@given(graphs(), st.booleans())
def test_csr_holds_the_same_edges_by_source(graph, parallel):
    topology = graph.topology
    csr = topology.csr(parallel=parallel)
    edges = [(src, dst, at) for at, (src, dst) in enumerate(edges_of(topology))]
    by_source = sorted(edges, key=lambda edge: edge[0])
    assert csr.indices.tolist() == [edge[1] for edge in by_source]
    assert csr.edge_ids.tolist() == [edge[2] for edge in by_source]
    assert csr.indptr.diff().tolist() == topology.out_degrees().tolist()
    assert csr.edge_ids.dtype == torch.int32
    assert topology.csr() is csr


def test_ids_are_wide_only_where_they_must_be():
    wide = Topology.from_coo(src=torch.tensor([2**31 + 5]), dst=torch.tensor([0]), num_src=2**31 + 6, num_dst=1)
    assert wide.indices.dtype == torch.int64
    assert wide.indices.tolist() == [2**31 + 5]


def test_edge_data_is_read_only_and_replaced_by_a_copy_that_shares():
    topology = example(weight=torch.ones(6))
    csr = topology.csr()
    other = topology.with_edge_data(weight=torch.zeros(6), type=torch.ones(6))
    assert other.indices is topology.indices
    assert other.csr() is csr
    assert sorted(other.edge_data) == ["type", "weight"]
    assert topology.edge_data["weight"].sum() == 6
    with pytest.raises(TypeError):
        topology.edge_data["weight"] = torch.zeros(6)


def test_to_the_same_device_is_the_same_topology():
    topology = example()
    assert topology.to("cpu") is topology
    meta = topology.to("meta")
    assert meta.device.type == "meta"
    assert meta.num_edges == 6


def kept_arrays(topology):
    csr = topology.csr()
    degrees = topology.derived("degrees", topology.in_degrees)
    return [topology.edge_dst(), csr.indptr, csr.indices, csr.edge_ids, degrees]


@pytest.mark.parametrize("asked_in_inference_mode", [True, False])
@pytest.mark.parametrize("made_in_inference_mode", [True, False])
def test_what_is_kept_may_be_saved_for_a_backward_pass(made_in_inference_mode, asked_in_inference_mode):
    with torch.inference_mode(made_in_inference_mode):
        topology = example()
    with torch.inference_mode(asked_in_inference_mode):
        kept_arrays(topology)
    kept = kept_arrays(topology)
    assert not any(array.is_inference() for array in kept)
    for array, expected in zip(kept, kept_arrays(example()), strict=True):
        assert torch.equal(array, expected)
    x = torch.ones(topology.num_dst, requires_grad=True)
    x.index_select(0, topology.edge_dst()).sum().backward()
    assert torch.equal(x.grad, topology.in_degrees().float())


def saved(topology):
    file = io.BytesIO()
    torch.save(topology, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each)), saved])
def test_copies_and_pickles_are_the_same_topology(again):
    block = Topology(
        indptr=torch.tensor([0, 1, 3]),
        indices=torch.tensor([2, 0, 4], dtype=torch.int32),
        num_src=5,
        edge_data={"weight": torch.tensor([0.5, 1.0, 2.0])},
        edge_ids=torch.tensor([7, 8, 9]),
    )
    block.csr()
    block.derived("used", lambda: 3)
    other = again(block)
    assert other is not block
    shares = again is copy.copy
    assert (other.indices.data_ptr() == block.indices.data_ptr()) == shares
    assert (other.edge_data["weight"].data_ptr() == block.edge_data["weight"].data_ptr()) == shares
    assert (other.indptr.tolist(), other.indices.tolist(), other.num_src) == ([0, 1, 3], [2, 0, 4], 5)
    assert other.indices.dtype == torch.int32
    assert other.edge_data["weight"].tolist() == [0.5, 1.0, 2.0]
    assert other.edge_ids.tolist() == [7, 8, 9]
    assert other.csr().edge_ids.tolist() == block.csr().edge_ids.tolist()
    assert other.derived("used", lambda: 4) == 4
    with pytest.raises(TypeError):
        other.edge_data["weight"] = torch.zeros(3)


@pytest.mark.parametrize("array", ["indptr", "indices"])
@pytest.mark.parametrize(
    "again",
    [lambda each: each.with_edge_data(weight=torch.ones(6)), lambda each: each.to("meta"), pickle.dumps],
    ids=["edge data", "to", "pickle"],
)
def test_no_other_topology_is_made_of_overwritten_edges(again, array):
    topology = example()
    again(topology)
    getattr(topology, array)[0] = 1 << 20
    with pytest.raises(LayerError, match=rf"edges of a topology were overwritten.*\(in Topology.{array}\)"):
        again(topology)


def csc(indptr, indices, num_src=3, **rest):
    return Topology(
        indptr=torch.as_tensor(indptr), indices=torch.as_tensor(indices, dtype=torch.int32), num_src=num_src, **rest
    )


def coo(src, dst):
    return Topology.from_coo(src=torch.tensor(src), dst=torch.tensor(dst), num_src=2)


CASES = [
    (
        lambda: csc([0.0, 1.0], [0]),
        r"float32 \[2\], expected torch.int64 \[num_dst \+ 1\] .*indptr.*to\(torch.int64\)",
    ),
    (
        lambda: Topology(indptr=torch.tensor([0, 1]), indices=torch.tensor([0.0]), num_src=1),
        r"float32 \[1\], expected torch.int32 or torch.int64 \[num_edges\] \(in Topology.indices\)",
    ),
    (lambda: csc([0, 0, 0], [], num_src=1), r"more destination than source vertices: num_dst 2, num_src 1"),
    (lambda: csc([0, 1, 2], [0, 1, 2]), r"CSC offsets have the wrong ends: from 0 to 2, expected 0 to 3 .*indptr"),
    (lambda: csc([0, 2, 1, 3], [0, 1, 2]), r"CSC offsets decrease: 2 then 1 at position 1 .*Topology.indptr"),
    (lambda: csc([0, 1, 3], [0, 1, 3]), r"source id out of range: 3, but there are 3 vertices.*indices, edge 2\)"),
    (lambda: coo([0, 1], [0, -1]), r"destination id out of range: -1, but there are 2 vertices.*dst, edge 1\)"),
    (lambda: coo([0, 1], [0]), r"differ in shape: \[2\] and \[1\], expected two arrays \[num_edges\]"),
    (lambda: coo([0.0], [0]), r"float32 \[1\], expected torch.int32 or torch.int64 \[num_edges\] \(in src\)"),
    (
        lambda: example(weight=torch.ones(5)),
        r"rows: \[5\], expected one row for each of 6 edges .*'weight'.*from_coo",
    ),
]


@pytest.mark.parametrize(("make", "message"), CASES, ids=[message for _, message in CASES])
def test_every_broken_invariant_is_named(make, message, monkeypatch):
    monkeypatch.setattr(checks_module, "CHECKED_AT_ONCE", 2)
    with pytest.raises(InputError, match=message):
        make()


def test_from_edge_index_is_from_coo_of_its_rows():
    edge_index, weight = torch.tensor([[3, 0, 2], [1, 1, 2]]), torch.arange(3.0)
    found = Topology.from_edge_index(edge_index, edge_data={"weight": weight})
    expected = Topology.from_coo(src=edge_index[0], dst=edge_index[1], num_src=4, edge_data={"weight": weight})
    assert edges_of(found) == edges_of(expected)
    assert torch.equal(found.edge_data["weight"], expected.edge_data["weight"])
    assert Topology.from_edge_index(edge_index, 9).num_src == 9
    assert Topology.from_edge_index(torch.zeros(2, 0, dtype=torch.int64)).num_src == 0


@pytest.mark.parametrize(
    ("edge_index", "message"),
    [
        (
            torch.zeros(5, 2, dtype=torch.int64),
            r"wrong form: torch.int64 \[5, 2\], expected \[2, num_edges\].*transpose",
        ),
        ([[0], [1]], "a list, expected Tensor"),
        (torch.tensor([[0, 9], [1, 1]]), "out of range"),
    ],
)
def test_an_edge_index_of_another_form_is_refused(edge_index, message):
    with pytest.raises(InputError, match=message):
        Topology.from_edge_index(edge_index, 4)


def test_an_edge_index_of_floats_is_refused_before_its_vertices_are_counted():
    with pytest.raises(InputError, match=r"torch.float32 \[2, 1\], expected torch.int32 or torch.int64"):
        Topology.from_edge_index(torch.tensor([[0.0], [float("nan")]]))


N, NUM_EDGES = 60, 900
ENDS = torch.randint(N, (2, NUM_EDGES), generator=torch.Generator().manual_seed(3))


def drawn() -> Graph:
    data = {"type": torch.arange(NUM_EDGES) % 3}
    return Graph(topology=Topology.from_coo(src=ENDS[0], dst=ENDS[1], num_src=N, edge_data=data), num_edge_types=3)


BUILDERS: dict[str, Callable[[], Graph]] = {
    "demo": demo_graph,
    "rmat": lambda: rmat_graph(N, NUM_EDGES, seed=0),
    "symmetrise": lambda: symmetrise(drawn()),
    "add_inverse_edges": lambda: add_inverse_edges(drawn()),
    "SciPy": lambda: from_scipy(sp.coo_matrix((torch.ones(NUM_EDGES), ENDS), shape=(N, N))),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_in_edges_ascend_by_source(name: str) -> None:
    topology = BUILDERS[name]().topology
    edges = list(zip(topology.edge_dst().tolist(), topology.indices.tolist(), strict=True))
    assert len(edges) > N
    assert edges == sorted(edges)
