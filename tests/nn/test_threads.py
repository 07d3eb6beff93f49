"""The number of threads changes no bit of what sagann computes by kernels of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from sagann.graph import Graph, demo_graph
from sagann.nn import ModelConfig, build_model
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import using_engine

aten = torch.ops.aten

# The activation of gat and the gradient of gin's eps are PyTorch's, which cuts them by the number of threads.
MODELS = ("gcn", "maxpool-gcn", "gated-gcn", "ggnn", "sage")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    with using_engine(CompiledEngine(dialect="cpu")):
        yield
    torch.set_num_threads(before)


class _ProductsByOneThread(TorchDispatchMode):
    """Has one thread compute products of matrices: a BLAS library may add in an order that depends on the number of threads."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        num_threads = torch.get_num_threads()
        if func.overloadpacket in (aten.mm, aten.addmm, aten.addmm_, aten.bmm):
            torch.set_num_threads(1)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch.set_num_threads(num_threads)


def trained(name: str, graph: Graph, num_threads: int) -> list[torch.Tensor]:
    """Results and gradients of a few epochs with dropout."""
    torch.set_num_threads(num_threads)
    torch.manual_seed(0)
    model = build_model(ModelConfig(model=name, hidden=16), graph)
    graph = model.prepare(graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(2):
        optimizer.zero_grad()
        with _ProductsByOneThread():
            out = model(graph.hops(model.num_hops), graph.features)
            F.cross_entropy(out, graph.labels).backward()
        optimizer.step()
        found += [out.detach(), *(each.grad.clone() for each in model.parameters() if each.grad is not None)]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_zoo_trains_to_the_same_bits_by_any_number_of_threads(name: str) -> None:
    graph = demo_graph()
    expected = trained(name, graph, 1)
    for num_threads in (2, 3):
        assert all(map(torch.equal, trained(name, graph, num_threads), expected))
