"""sagann's sampler: "plain", and "prepared", which makes the out-edges and the division of work of every block as well.

"device" samples on a CUDA device, with the edges in its memory; "in place" does so with the edges in pinned memory of the host.
"""

from __future__ import annotations

from torch import Tensor

from bench.device.clock import finish
from bench.standalone.sampling import REQUESTS, Batches, Sample, StoredEdges, batches_of, read_edges
from bench.standalone.serve import serve
from sagann.graph import Topology
from sagann.runtime.places import device_named
from sagann.runtime.tiered import CudaDevices, DeviceTopology
from sagann.sampling import DeviceSampler, NeighborSampler

ON_DEVICE = {"device": "100%", "in place": "0%"}
"Variants that a device samples, and the part of the edges that lies in its memory."


def build(specification: dict, graph: StoredEdges) -> Batches:
    """The sampler, and whether its batches are prepared."""
    topology = Topology(indptr=graph.indptr, indices=graph.indices, num_src=len(graph.indptr) - 1, validate=False)
    variant = specification["variant"]
    if variant in ON_DEVICE:
        return batches_of(specification, graph, _of_device(specification, topology, ON_DEVICE[variant]))
    sampler = NeighborSampler(topology, specification["fanouts"])
    prepares = variant == "prepared"

    def sample(seeds: Tensor, number: int) -> int:
        sampled = sampler.sample(seeds, batch=number)
        return (sampled.prepare() if prepares else sampled).num_edges

    return batches_of(specification, graph, sample)


def _of_device(specification: dict, topology: Topology, memory: str) -> Sample:
    device = device_named(specification["device"])
    edges = DeviceTopology(topology, memory, devices=CudaDevices([device]))
    sampler = DeviceSampler(edges, specification["fanouts"])

    def sample(seeds: Tensor, number: int) -> int:
        num_edges = sampler.sample(seeds, batch=number).num_edges
        finish(device)
        return num_edges

    return sample


if __name__ == "__main__":
    serve(read_edges, build, REQUESTS)
