"""What a streamed epoch keeps for its backward takes the bytes that the plan counts: no view of something larger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.graph import Topology
from sagann.kernels.memory import allocated_bytes
from sagann.nn import ModelConfig, build_model
from sagann.plan import equal_vertices
from sagann.plan.steps import Block, Step
from sagann.runtime.blocks.residents import Residents
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import SagaLayer
from tests.graphs import labelled_graph, random_topology
from tests.runtime.streaming.test_streamed import Model


@pytest.mark.parametrize(("dtype", "on_disk"), [(torch.float64, False), (torch.bfloat16, True)])
def test_blocks_are_as_large_as_planned(
    dtype: torch.dtype, on_disk: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sliced(m: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
        wide = m.widen(x)
        one, two = m.plain(hops[0], wide[:, :5]), m.b(hops[0], wide[:, 5:10].relu())
        result: Tensor = torch.cat([one, two, m.c(hops[0], wide[:, 10:15]), m.d(hops[0], wide[:, 15:20])], -1)
        return result

    model = Model(sliced).to(dtype)
    model.plain, model.widen = SagaLayer(), nn.Linear(4, 256).to(dtype)
    x = torch.randn(4000, 4, dtype=dtype, requires_grad=True)
    bounds, spill = equal_vertices(4000, 4), tmp_path if on_disk else None
    streamed = StreamedModel(model, [random_topology(4000, 9000)], bounds, spill=spill)
    _, schedule, plan = streamed.plan(x)
    most, begin = 0, Residents.begin
    compared = {"value", "grad", "gather_saved", "grad_inputs"}
    found = set()

    def begun(residents: Residents, number: int, step: Step) -> None:
        nonlocal most
        begin(residents, number, step)
        storages = {}
        for at, content in residents._blocks.items():
            if at.kind in compared and content is not None:
                found.add(at.kind)
                tensors = content.values() if isinstance(content, dict) else [content]
                for tensor in tensors:
                    held_bytes = tensor.untyped_storage().nbytes()
                    storages[tensor.untyped_storage().data_ptr()] = held_bytes
                    # Small pieces of memory are rounded up to a word of the processor's caches, large ones by an eighth. The
                    # caller's features are read where they lie.
                    assert at.name == "x" or held_bytes <= 1.125 * tensor.nbytes + 64, at
                assert sum(allocated_bytes(tensor.nbytes) for tensor in tensors) == schedule.sizes.of(at), at
        most = max(most, sum(storages.values()))

    monkeypatch.setattr(Residents, "begin", begun)
    streamed(x).sum().backward()
    assert found == compared
    assert 0 < most <= plan.peak_bytes


@pytest.mark.parametrize(
    ("name", "dropout"),
    [("gcn", 0.5), ("sage", 0.0), ("ggnn", 0.5), ("gat", 0.5), ("gated-gcn", 0.0), ("maxpool-gcn", 0.0)],
)
def test_what_stages_keep_takes_no_more_than_planned(
    name: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = labelled_graph(400, 3000)
    model = build_model(
        ModelConfig(
            model=name, hidden=24, heads=2, layers=2, dropout=dropout, norm="layer" if name == "sage" else None
        ),
        graph,
    )
    graph = model.prepare(graph)
    streamed = StreamedModel(model, graph.hops(model.num_hops), equal_vertices(400, 2))
    _, schedule, _ = streamed.plan(graph.features)
    assert schedule.saves
    found: dict[Block, int] = {}
    set_item = Residents.__setitem__

    def kept(residents: Residents, block: Block, value: Any) -> None:
        if block.kind == "stage_saved":
            found[block] = sum(each.untyped_storage().nbytes() for each in value.values())
        set_item(residents, block, value)

    monkeypatch.setattr(Residents, "__setitem__", kept)
    streamed(graph.features).sum().backward()
    assert found
    assert all(taken <= schedule.sizes.of(block) for block, taken in found.items()), (found, schedule.sizes.of)
    planned = sum(schedule.sizes.of(block) for block in found)
    assert planned <= 3 * sum(found.values()) + 4096 * len(found)
