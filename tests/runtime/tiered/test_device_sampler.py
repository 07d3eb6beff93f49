"""Blocks that a device samples are those of the processor, bit by bit: in Triton's interpreter, over simulated devices."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch

from sagann.errors import InputError, MissingDependencyError
from sagann.graph import Topology, rmat_graph
from sagann.kernels.edge import dialect_for
from sagann.kernels.row_dropout import rows_of
from sagann.nn import ModelConfig, build_model
from sagann.runtime.tiered import CudaDevices, DeviceFeatures, DeviceSampler, DeviceTopology
from sagann.runtime.tiered.device_sampler import Room
from sagann.sampling import MiniBatch, NeighborSampler
from tests.graphs import labelled_graph, odd_topologies, random_topology
from tests.plain import auto_dialect
from tests.runtime.device.drivers import SimulatedDevices
from tests.sampling.naive import assert_same
from tests.tolerances import assert_close, largest

pytest.importorskip("triton", reason="triton is not installed: pip install sagann[cuda]")
interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
SEVERAL = random_topology(300, 9000, types=3)
OPTIONS = [{}, {"replace": True}]


def on_device(topology: Topology, memory: str = "100%") -> DeviceTopology:
    return DeviceTopology(topology, memory, devices=SimulatedDevices())


def check(topology: Topology, fanouts: list[int], seeds: torch.Tensor, memory: str = "100%", **given: Any) -> None:
    expected, ours = (
        make(edges, fanouts, seed=3, **given)
        for make, edges in ((NeighborSampler, topology), (DeviceSampler, on_device(topology, memory)))
    )
    for epoch, batch in ((0, 0), (1, 2)):
        assert_same(ours.sample(seeds, epoch=epoch, batch=batch), expected.sample(seeds, epoch=epoch, batch=batch))


@interpreted
@pytest.mark.parametrize("given", OPTIONS)
@pytest.mark.parametrize("fanouts", [[2, 3], [-1, 2], [4, -1, 1]])
@pytest.mark.parametrize("name", ["no edges", "isolated vertices", "multi-edges", "one hub", "several"])
def test_blocks_are_those_of_the_processor(name: str, fanouts: list[int], given: dict[str, Any]) -> None:
    topology = SEVERAL if name == "several" else odd_topologies(types=2)[name]
    seeds = torch.randperm(topology.num_dst, generator=torch.Generator().manual_seed(1))[:20]
    check(topology, fanouts, seeds, **given)


@interpreted
@pytest.mark.parametrize("given", OPTIONS)
def test_batches_of_all_sizes_find_room_or_are_sampled_again(given: dict[str, Any]) -> None:
    expected, ours = (
        make(edges, [4, -1, 2], seed=3, **given)
        for make, edges in ((NeighborSampler, SEVERAL), (DeviceSampler, on_device(SEVERAL)))
    )
    for batch, count in enumerate((1, 1, 40, 3, 41, 250, 2)):
        seeds = torch.randperm(300, generator=torch.Generator().manual_seed(batch))[:count]
        found, wanted = ours.sample(seeds, batch=batch), expected.sample(seeds, batch=batch)
        assert_same(found, wanted)
        for block, other in zip(found.blocks, wanted.blocks, strict=True):
            for name in ("indptr", "indices", "edge_ids"):
                here, there = (getattr(each.csr(), name) for each in (block, other))
                assert here.dtype == there.dtype
                assert here.equal(there)


@interpreted
@pytest.mark.parametrize(
    ("fanouts", "given", "queued"), [([3, 2], {}, 107), ([3, 2], {"replace": True}, 141), ([-1, 2], {}, 116)]
)
def test_the_host_waits_once_for_a_batch(fanouts: list[int], given: dict[str, Any], queued: int) -> None:
    host_calls = pytest.importorskip("tests.runtime.host_calls")
    sampler, seeds = DeviceSampler(on_device(SEVERAL), fanouts, **given), torch.arange(20)
    for batch in range(4):
        with host_calls.counted(seeds) as calls:
            sampler.sample(seeds, batch=batch)
        # The first batch waits for the edges of each hop.
        assert calls.waits == {"mark": 1 if batch else 3}
    assert calls.queued.total() <= queued


@interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.parametrize(
    ("name", "dialect"),
    [*((name, "naive") for name in ("sage", "gin", "transformer", "pna")), ("gat", "gpu"), ("maxpool-gcn", "gpu")],
)
def test_a_padded_batch_trains_as_the_batch_without_padding(name: str, dialect: str) -> None:
    graph = labelled_graph(300, 3000)
    graph = replace(graph, features=graph.features.double())
    model = build_model(ModelConfig(model=name, hidden=8, heads=2, dropout=0.4), graph).double()
    graph = model.prepare(graph)
    store = DeviceFeatures(graph.features, "30%", devices=SimulatedDevices())
    sampler = DeviceSampler(on_device(graph.topology), [4, 3], seed=3)
    rooms = [Room(150, 120), Room(300, 500)]

    def trained(batch: MiniBatch) -> list[torch.Tensor]:
        x = torch.full((len(batch.src_ids), 8), torch.nan, dtype=torch.float64)
        store.gather(batch.src_ids, store.pick(batch.src_ids[:1]), x)
        torch.manual_seed(7)
        model.zero_grad()
        with auto_dialect(dialect):
            with rows_of(batch.src_ids):
                rows = model(batch.blocks, x)[:16]
            torch.nn.functional.cross_entropy(rows, graph.labels[batch.seeds[:16]]).backward()
        return [rows.detach(), *(each.grad for each in model.parameters())]

    for number in range(3):
        seeds = torch.arange(number, 300, 19)[:16]
        padded, is_beyond, num_edges = sampler.padded(seeds, sampler.keys(0, number), rooms)
        assert not is_beyond
        assert [(each.num_dst, each.num_src, each.num_edges) for each in padded.blocks] == [
            (150, 300, 500),
            (17, 150, 120),
        ]
        for block in padded.blocks:
            block.validate()
            kernels: Any = dialect_for("cpu", dialect)
            for at in ("dst", "src") if dialect == "gpu" else ():
                kernels.set_cut(block, at, kernels.cut_on_device(block, at))
        batch = sampler.sample(seeds, epoch=0, batch=number)
        assert num_edges == batch.num_edges
        expected = trained(batch)
        for ours, theirs in zip(trained(padded), expected, strict=True):
            assert_close(ours, theirs, scale=max(map(largest, expected)))


@interpreted
@pytest.mark.parametrize(
    "rooms", [[Room(40, 120), Room(300, 500)], [Room(150, 30), Room(300, 500)], [Room(150, 120), Room(300, 90)]]
)
def test_a_batch_beyond_its_rooms_raises_a_flag_and_nothing_waits(rooms: list[Room]) -> None:
    host_calls = pytest.importorskip("tests.runtime.host_calls")
    sampler, seeds = DeviceSampler(on_device(SEVERAL), [4, 3], seed=3), torch.arange(16)
    keys = sampler.keys(0, 0)
    with host_calls.counted() as calls:
        padded, is_beyond, _ = sampler.padded(seeds, keys, rooms)
    assert is_beyond
    assert not calls.waits
    # No kernel reads or writes beyond an array.
    for block in padded.blocks:
        block.validate()


@interpreted
@pytest.mark.parametrize(("memory", "given"), [("0%", {}), ("30%", {"replace": True})])
def test_ids_of_64_bits_and_edges_read_in_place(given: dict[str, Any], memory: str) -> None:
    wide = Topology(
        indptr=SEVERAL.indptr,
        indices=SEVERAL.indices.long(),
        num_src=SEVERAL.num_src,
        edge_data=dict(SEVERAL.edge_data),
    )
    for topology in (wide, SEVERAL):
        check(topology, [3, 4], torch.arange(25, 5, -1), memory, **given)


@interpreted
@pytest.mark.parametrize("number", [0, 2])
def test_each_of_several_devices_samples_the_blocks_of_the_processor(number: int) -> None:
    topology, seeds = random_topology(300, 30_000, types=3), torch.arange(20)
    devices = SimulatedDevices((1 << 20,) * 3)
    edges = DeviceTopology(topology, "100%", devices=devices).seen_from(number)
    dealt = sum(rows.nbytes for rows in (topology.indices, *topology.edge_data.values()))
    assert 0 < edges.device_bytes - topology.indptr.nbytes < 0.6 * dealt
    expected, ours = (
        make(each, [3, -1], seed=3) for make, each in ((NeighborSampler, topology), (DeviceSampler, edges))
    )
    assert_same(ours.sample(seeds, epoch=1), expected.sample(seeds, epoch=1))


@interpreted
def test_edge_data_of_any_type_and_width_is_taken_along() -> None:
    draw = torch.Generator().manual_seed(0)
    data = torch.randn(SEVERAL.num_edges, 3, 2, generator=draw)
    topology = SEVERAL.with_edge_data(
        half=data[:, 0].bfloat16(),
        turned=data.transpose(1, 2),
        flag=data[:, 0, 0] > 0,
        byte=data[:, 0, 0].to(torch.int8),
    )
    for memory in ("0%", "100%"):
        check(topology, [3], torch.arange(9), memory)


@pytest.mark.parametrize(
    ("given", "seeds", "message"),
    [
        ({"fanouts": [4, 2000]}, [0], "fanout is too large for sampling on a device: 2000, at most 1024"),
        ({}, [], "batch is empty"),
        ({}, [4, 5, 4], "vertex repeated: 4 stands more than once"),
    ],
)
def test_what_is_no_argument_is_refused(given: dict[str, Any], seeds: list[int], message: str) -> None:
    def sample() -> None:
        options = {"fanouts": [2], **given}
        DeviceSampler(on_device(SEVERAL), options.pop("fanouts"), **options).sample(seeds)

    with pytest.raises(InputError, match=message):
        sample()


@interpreted
def test_a_large_fanout_with_replacement_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.sampling.arguments.MOST_DRAWN", 100)
    sampler = DeviceSampler(on_device(SEVERAL), [2000], replace=True)
    with pytest.raises(InputError, match="a hop picks too many edges with replacement"):
        sampler.sample([0, 1])


def test_triton_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    edges = on_device(SEVERAL)
    monkeypatch.setattr("sagann.runtime.tiered.device_sampler.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="sampling on a CUDA device"):
        DeviceSampler(edges, [2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("memory", ["0%", "60%", "100%"])
@pytest.mark.parametrize("given", OPTIONS)
def test_a_device_samples_what_the_processor_samples(given: dict[str, Any], memory: str) -> None:
    graph = rmat_graph(20_000, 400_000, seed=0).topology
    edges = DeviceTopology(graph, memory, devices=CudaDevices(["cuda"]))
    expected, ours = NeighborSampler(graph, [10, 5, -1], **given), DeviceSampler(edges, [10, 5, -1], **given)
    for batch in range(4):
        seeds = torch.arange(batch, 20_000, 97)
        sampled = ours.sample(seeds, batch=batch)
        assert sampled.src_ids.is_cuda
        assert_same(sampled.to("cpu"), expected.sample(seeds, batch=batch))
