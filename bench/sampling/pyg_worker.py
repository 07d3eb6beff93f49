"""PyG's samplers, where pyg-lib or torch-sparse is installed: "sampler" gives edges, "loader" also makes ``Data`` of them.

PyG picks edges of new vertices alone: a vertex has the same edges in every hop.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import NeighborSampler, NodeSamplerInput
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

from bench.standalone.sampling import REQUESTS, Batches, Sample, StoredEdges, batches_of, read_edges
from bench.standalone.serve import UnsupportedError, serve


def _data(graph: StoredEdges) -> Data:
    num_vertices = len(graph.indptr) - 1
    dst = torch.repeat_interleave(torch.arange(num_vertices), graph.indptr.diff())
    return Data(edge_index=torch.stack([graph.indices.long(), dst]), num_nodes=num_vertices)


def of_sampler(graph: StoredEdges, fanouts: list[int]) -> Sample:
    """The sampler below the loader."""
    sampler = NeighborSampler(_data(graph), fanouts, is_sorted=True)

    def sample(seeds: Tensor, number: int) -> int:
        return len(sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds)).row)

    return sample


def of_loader(graph: StoredEdges, fanouts: list[int]) -> Sample:
    """A call of the loader, which its own processes make as well."""
    loader = NeighborLoader(_data(graph), fanouts, is_sorted=True)

    def sample(seeds: Tensor, number: int) -> int:
        return int(loader(seeds).num_edges)

    return sample


VARIANTS = {"sampler": of_sampler, "loader": of_loader}


def build(specification: dict, graph: StoredEdges) -> Batches:
    """The sampler of the variant."""
    if not (WITH_PYG_LIB or WITH_TORCH_SPARSE):
        raise UnsupportedError("PyG samples by pyg-lib or torch-sparse, and neither is installed")
    return batches_of(specification, graph, VARIANTS[specification["variant"]](graph, specification["fanouts"]))


if __name__ == "__main__":
    serve(read_edges, build, REQUESTS)
