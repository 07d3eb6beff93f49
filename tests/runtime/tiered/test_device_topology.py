"""Edges lie on the device or in pinned memory, as the budget has room; simulated devices."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from sagann.errors import InputError, LayerError
from sagann.graph import Topology
from sagann.runtime.tiered import DeviceTopology
from tests.graphs import labelled_graph, random_topology
from tests.runtime.device.drivers import SimulatedDevices

EDGES = random_topology(300, 9000, types=3)
MANY = random_topology(300, 200_000, types=3)
OFFSETS, SOURCES = EDGES.indptr.nbytes, EDGES.indices.nbytes
DATA = sum(rows.nbytes for rows in EDGES.edge_data.values())


def of(memory: Any = "auto", topology: Topology = EDGES, **options: Any) -> tuple[DeviceTopology, SimulatedDevices]:
    devices = SimulatedDevices(**options)
    return DeviceTopology(topology, memory, devices=devices), devices


@pytest.mark.parametrize(
    ("memory", "free_bytes", "on_device"),
    [
        ("100%", 1 << 20, OFFSETS + SOURCES + DATA),
        ("0%", 1 << 20, 0),
        (OFFSETS - 1, 1 << 20, 0),
        (OFFSETS, 1 << 20, OFFSETS),
        ("auto", 1 << 20, OFFSETS + SOURCES + DATA),
        ("auto", 2 * (OFFSETS + SOURCES), OFFSETS + SOURCES),
    ],
)
def test_arrays_lie_on_the_device_as_far_as_there_is_room(memory: Any, free_bytes: int, on_device: int) -> None:
    edges, devices = of(memory, free_bytes=(free_bytes,))
    assert edges.device_bytes == on_device
    assert edges.in_place_bytes == sum(devices.pinned.values()) == OFFSETS + SOURCES + DATA - on_device
    assert (edges.num_vertices, edges.num_edges) == (EDGES.num_src, EDGES.num_edges)
    ids = torch.tensor([5, 0, 299, 5])
    assert torch.equal(edges.offsets(ids + 1), EDGES.indptr[ids + 1])
    assert torch.equal(edges.sources(ids), EDGES.indices[ids])
    found = edges.edge_data(ids.int())
    assert found.keys() == EDGES.edge_data.keys()
    for name, rows in found.items():
        assert torch.equal(rows, EDGES.edge_data[name][ids])


@pytest.mark.parametrize("num_devices", [2, 3])
def test_linked_devices_share_the_edges_in_equal_parts_and_each_has_the_offsets(num_devices: int) -> None:
    edges, _ = of("100%", MANY, free_bytes=(1 << 23,) * num_devices)
    offsets = MANY.indptr.nbytes
    data = MANY.indices.nbytes + sum(rows.nbytes for rows in MANY.edge_data.values())
    ids = torch.randint(MANY.num_edges, (999,))
    for number in range(num_devices):
        seen = edges.seen_from(number)
        assert seen.device_bytes - offsets == pytest.approx(data / num_devices, rel=0.05)
        assert seen.in_place_bytes == 0
        assert torch.equal(seen.offsets(ids % 300), MANY.indptr[ids % 300])
        assert torch.equal(seen.sources(ids), MANY.indices[ids])
        for name, found in seen.edge_data(ids).items():
            assert torch.equal(found, MANY.edge_data[name][ids])
    assert sum(edges.seen_from(number).device_bytes - offsets for number in range(num_devices)) == data


def test_devices_without_a_link_and_a_small_one_read_what_the_others_do_not_have_in_place() -> None:
    edges, devices = of("auto", MANY, free_bytes=(1 << 23, 1 << 23, 2 * MANY.indptr.nbytes), links=[(0, 1)])
    first, second, third = (edges.seen_from(number) for number in range(3))
    assert (first.in_place_bytes, second.in_place_bytes) == (0, 0)
    assert third.device_bytes == MANY.indptr.nbytes
    assert third.in_place_bytes == sum(devices.pinned.values()) > 0
    ids = torch.tensor([0, 4095, 4096, MANY.num_edges - 1])
    for seen in (first, second, third):
        assert torch.equal(seen.sources(ids), MANY.indices[ids])


@pytest.mark.parametrize("memory", ["0%", "100%"])
def test_edges_that_were_overwritten_are_refused(memory: str) -> None:
    topology = EDGES.mapped(torch.clone)
    edges, _ = of(memory, topology)
    topology.indices.zero_()
    for use in (
        lambda: edges.sources(torch.tensor([0])),
        lambda: edges.offsets(torch.tensor([0])),
        lambda: of(memory, topology),
    ):
        with pytest.raises(LayerError, match="the edges of a topology were overwritten"):
            use()


def test_an_array_that_has_no_room_leaves_room_for_smaller_ones() -> None:
    edges, _ = of(SOURCES - 1)
    assert OFFSETS <= edges.device_bytes < SOURCES


def test_large_arrays_are_pinned_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.runtime.tiered.device_topology._SMALL_BYTES", 0)
    alone = Topology(indptr=EDGES.indptr, indices=EDGES.indices, num_src=EDGES.num_src)
    _, devices = of(OFFSETS, alone)
    assert devices.registered == [(EDGES.indices.data_ptr(), SOURCES)]


def test_memory_is_pinned_no_longer_than_it_is_read() -> None:
    edges, devices = of("0%")
    assert devices.pinned
    del edges
    gc.collect()
    assert not devices.pinned


def test_a_graph_without_edges() -> None:
    none = torch.empty(0, dtype=torch.int32)
    for memory in ("0%", "100%"):
        edges, _ = of(memory, Topology(indptr=torch.zeros(4, dtype=torch.int64), indices=none, num_src=3))
        assert edges.offsets(torch.arange(4)).tolist() == [0, 0, 0, 0]
        assert len(edges.sources(none.long())) == 0


@pytest.mark.parametrize(
    ("memory", "options", "message"),
    [
        ("0%", {"refuse_at": 0}, r"offsets of the topology cannot be read in place by cpu: .* let the proc"),
        ("0%", {"forgets": True}, r"reports success, but the memory is not pinned"),
        ("100%", {"free_bytes": (1000,)}, r"memory of device 0: .* what finds no room is read in place"),
        ("much", {}, r"DeviceTopology, memory"),
    ],
)
def test_what_cannot_be_is_refused(memory: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        of(memory, **options)


def test_edges_that_learn_or_are_no_whole_graph_are_refused() -> None:
    learned = EDGES.with_edge_data(weight=torch.ones(EDGES.num_edges, requires_grad=True))
    with pytest.raises(InputError, match=r"edge data 'weight' learn, and a device that samples has no gradients"):
        of("100%", learned)
    with pytest.raises(InputError, match=r"DeviceTopology, topology"):
        of("100%", labelled_graph())
