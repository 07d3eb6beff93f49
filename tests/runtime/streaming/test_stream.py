"""Arguments of streaming."""

from __future__ import annotations

import pytest

from sagann.errors import InputError
from sagann.nn import build_model
from sagann.nn.zoo import ModelConfig
from sagann.runtime.streaming.stream import stream
from sagann.runtime.streaming.streamed import StreamedModel
from tests.graphs import labelled_graph


def test_arguments_of_stream_are_checked() -> None:
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gcn", hidden=8), graph)
    graph = model.prepare(graph)
    for options, message in (
        ({"budget_bytes": "2GiB"}, "stream.budget_bytes"),
        ({"budget_bytes": 1 << 20, "spill": 5}, "stream.spill"),
        ({"budget_bytes": 1 << 20, "cut": "foo"}, "unknown way to cut"),
        ({"budget_bytes": 1 << 20, "num_intervals": 2.5}, "stream.num_intervals"),
        ({"budget_bytes": 1 << 20, "num_intervals": 50_000}, "50000, expected 1 to 256"),
        ({"budget_bytes": 1 << 20, "num_intervals": 0}, "0, expected 1 to 256"),
        ({"budget_bytes": 1 << 20, "order": "rows"}, "unknown order of the chunks"),
        ({"budget_bytes": 1 << 20, "select": "some"}, "rows: 'some', expected one of auto, never, always"),
    ):
        with pytest.raises(InputError, match=message):
            stream(model, graph, **options)
    with pytest.raises(InputError, match=r"stream\.graph"):
        stream(model, graph.topology, budget_bytes=1 << 20)
    assert len(stream(model, graph, budget_bytes=1 << 30, cut="edges", num_intervals=3).bounds) == 4
    assert stream(model, graph, budget_bytes=1 << 20, order="row").order == "row"
    with pytest.raises(InputError, match="unknown order of the chunks"):
        StreamedModel(model, graph.hops(2), (0, 53), order="rows")
    with pytest.raises(InputError, match="memory policy: 'fifo', expected one of auto, belady, dp, lru, none"):
        StreamedModel(model, graph.hops(2), (0, 53), memory_policy="fifo")
