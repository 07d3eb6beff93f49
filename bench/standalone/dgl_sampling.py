"""DGL's samplers: GraphBolt's on its fused graph, and the one of ``dgl.dataloading``. Run by DGL's own Python, without sagann.

GraphBolt's steps are those of its ``NeighborSampler``, without the pipes between them.
"""

from __future__ import annotations

import dgl
import dgl.graphbolt as graphbolt
import torch
from sampling import REQUESTS, Batches, Sample, StoredEdges, batches_of, read_edges
from serve import serve
from torch import Tensor


def of_graphbolt(graph: StoredEdges, fanouts: list[int]) -> Sample:
    """Picks and compacts hop by hop."""
    fused = graphbolt.fused_csc_sampling_graph(graph.indptr, graph.indices)
    wanted = [torch.tensor([fanout]) for fanout in fanouts]

    def sample(seeds: Tensor, number: int) -> int:
        edges, vertices = 0, seeds.to(graph.indices.dtype)
        for fanout in wanted:
            hop = fused.sample_neighbors(vertices, fanout)
            vertices, block = graphbolt.unique_and_compact_csc_formats(hop.sampled_csc, vertices)
            edges += len(block.indices)
        return edges

    return sample


def of_dataloading(graph: StoredEdges, fanouts: list[int]) -> Sample:
    """Blocks of the sampler that DGL had before GraphBolt; it holds Python's lock."""
    edge_ids = torch.arange(len(graph.indices), dtype=torch.int32)
    whole = dgl.graph(("csc", (graph.indptr.int(), graph.indices, edge_ids)), idtype=torch.int32)
    whole = whole.formats("csc")
    sampler = dgl.dataloading.NeighborSampler(fanouts[::-1])

    def sample(seeds: Tensor, number: int) -> int:
        _, _, blocks = sampler.sample_blocks(whole, seeds.int())
        return sum(block.num_edges() for block in blocks)

    return sample


VARIANTS = {"graphbolt": of_graphbolt, "dataloading": of_dataloading}


def build(specification: dict, graph: StoredEdges) -> Batches:
    """The sampler of the variant."""
    return batches_of(specification, graph, VARIANTS[specification["variant"]](graph, specification["fanouts"]))


if __name__ == "__main__":
    serve(read_edges, build, REQUESTS)
