"""Where graph and model must lie."""

from __future__ import annotations

import pytest
import torch

from sagann.errors import InputError
from sagann.nn import ModelConfig, build_model
from sagann.runtime.places import device_named, require_on_host
from sagann.runtime.streaming.stream import stream
from tests.graphs import labelled_graph


@pytest.mark.parametrize("name", ["tpu", "mps", "cuda:99", "meta"])
def test_devices_that_are_not_there_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"no such device: .*stream\.device.*cuda:N"):
        device_named(name)
    assert device_named("cpu") == torch.device("cpu")
    graph = labelled_graph()
    model = build_model(ModelConfig(model="gcn", hidden=8), graph)
    with pytest.raises(InputError, match="no such device"):
        stream(model, model.prepare(graph), budget_bytes=1 << 20, device=name)


def test_a_graph_on_a_device_is_to_be_left_on_the_host() -> None:
    require_on_host(torch.device("cpu"), "edges")
    with pytest.raises(
        InputError, match=r"its edges are on cuda:0.*Leave the graph on the CPU and pass device='cuda'"
    ):
        require_on_host(torch.device("cuda", 0), "edges")
