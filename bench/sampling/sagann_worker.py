"""sagann's sampler: "plain", and "prepared", which makes the out-edges and the division of work of every block as well."""

from __future__ import annotations

from torch import Tensor

from bench.standalone.sampling import REQUESTS, Batches, StoredEdges, batches_of, read_edges
from bench.standalone.serve import serve
from sagann.graph import Topology
from sagann.sampling import NeighborSampler


def build(specification: dict, graph: StoredEdges) -> Batches:
    """The sampler, and whether its batches are prepared."""
    topology = Topology(indptr=graph.indptr, indices=graph.indices, num_src=len(graph.indptr) - 1, validate=False)
    sampler = NeighborSampler(topology, specification["fanouts"])
    prepares = specification["variant"] == "prepared"

    def sample(seeds: Tensor, number: int) -> int:
        sampled = sampler.sample(seeds, batch=number)
        return (sampled.prepare() if prepares else sampled).num_edges

    return batches_of(specification, graph, sample)


if __name__ == "__main__":
    serve(read_edges, build, REQUESTS)
