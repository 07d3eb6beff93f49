"""Slices: which gathers go feature by feature, and that the slices put together are the whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sagann.compiler.slices import sliced
from sagann.nn import GNN, ModelConfig, build_model
from sagann.runtime.streaming.capturing import captured
from sagann.saga import Edge, SagaLayer
from tests.graphs import labelled_graph

NUM_LINKS = {"gcn": 2, "sage": 2, "gated-gcn": 5, "maxpool-gcn": 5, "gat": 5, "gatv2": 2, "edgeconv": 2, "pna": 2}
"With gathers of the widest rows, of 64 features or 4 heads, in 4 slices, and of narrower ones in fewer."


@pytest.mark.parametrize("name", NUM_LINKS)
def test_gathers_are_cut_where_edges_compute_every_feature_or_head_by_itself(name: str) -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model=name, hidden=64, heads=4, layers=2, dropout=0.0), graph)
    graph = model.prepare(graph)
    assert graph.features is not None
    program = captured(model, graph.hops(model.num_hops), graph.features, x_is_constant=False)
    assert sliced(program, 1) is program
    found = sliced(program, 4)
    assert len(program.links) == 2
    assert len(found.links) == NUM_LINKS[name]
    assert len(found.stages) == len(found.links) + 1
    for gather in found.gathers:
        assert gather.edges.function is not None
        for given, value in zip(gather.edges.stage.inputs, gather.inputs, strict=True):
            if value in found.forms:
                assert gather.edges.function.value(given).shape == found.forms[value].shape
    # Every stage reads what was made before it, and all that is made is read.
    made, read = {"x"}, {found.output}
    for number, stage in enumerate(found.stages):
        read.update(stage.inputs)
        assert {name for name in stage.inputs if name in found.forms} <= made
        made.update(stage.outputs)
        if number < len(found.links):
            link = found.gather(number)
            assert {name for name in link.inputs if name in found.forms} <= made
            made.add(link.result)
            read.update(link.inputs)
    assert made - {"x"} <= read


class _Mixing(SagaLayer):
    """Messages of which each feature reads another one, or all."""

    accumulator = "sum"

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.shift = nn.Parameter(torch.zeros(8))

    def apply_edge(self, edge: Edge) -> Tensor:
        x = torch.sigmoid(edge.src + edge.dst)
        if self.how == "rolled":
            return torch.cat([x[:, 4:], x[:, :4]], 1)
        if self.how == "summed":
            return x * x.sum(1, keepdim=True)
        return x * self.shift if self.how == "parameter" else x

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return accum


@pytest.mark.parametrize("how", ["rolled", "summed", "parameter", "by itself"])
def test_features_that_read_others_are_gathered_together(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sagann.compiler.slices.FEATURES", 1)
    graph = labelled_graph()
    program = captured(GNN([_Mixing(how)]), graph.hops(1), torch.zeros(53, 8), x_is_constant=False)
    assert (sliced(program, 4) is program) == (how != "by itself")
