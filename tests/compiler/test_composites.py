"""Composite operators at the ends of the range and at kinks: values and slopes are those of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import NaiveEngine, using_engine
from tests.compiler.layers import Layer, compiled_right, results
from tests.graphs import skewed, topology_of

ENDS: dict[str, Callable[[Layer, Any], Any]] = {
    "relu": lambda _, e: F.relu(e.src * e.dst),
    "silu": lambda _, e: F.silu(e.src * e.dst),
    "mish": lambda _, e: F.mish(e.src * e.dst),
    "hardswish": lambda _, e: F.hardswish(e.src * e.dst),
    "elu": lambda _, e: F.elu(e.src * e.dst),
    "sign": lambda _, e: torch.sign(e.src * e.dst),
    "root": lambda _, e: (e.src * e.dst) ** 0.5 + (e.src * e.dst) ** -0.5,
    "pow": lambda _, e: (e.src * e.dst) ** 3 + (e.src * e.dst) ** -1.0,
    "pow of zero": lambda _, e: 0.0 ** (e.src * e.dst),
    "pow of zeros": lambda _, e: torch.zeros_like(e.src) ** (e.src * e.dst),
    "prelu": lambda m, e: F.prelu(e.src * e.dst, m.b.to(e.src.dtype)),
    "threshold": lambda _, e: F.threshold(e.src * e.dst, 0.1, 20),
    "hardshrink": lambda _, e: F.hardshrink(e.src * e.dst),
    "round": lambda _, e: torch.round(e.src * e.dst),
    "logsumexp": lambda _, e: torch.logsumexp(e.src * e.dst / 1e4, -1, keepdim=True) * e.dst,
}


@pytest.mark.parametrize(
    ("dialect", "dtype"), [("naive", torch.float64), pytest.param("cpu", torch.float32, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ENDS)
def test_ends_of_the_range_are_those_of_pytorch(name: str, dialect: Any, dtype: torch.dtype) -> None:
    ends = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 0.5, -1.0, 2.0, 1e4, -1e4]
    pairs = [(src, src + len(ends)) for src in range(len(ends))]
    topology = topology_of(pairs, 2 * len(ends))
    x = torch.cat([torch.tensor(ends, dtype=dtype), torch.ones(len(ends), dtype=dtype)])[:, None].expand(-1, 5)
    layer, x = Layer(ENDS[name]), x.requires_grad_()
    found = []
    for engine in (NaiveEngine(), CompiledEngine(dialect=dialect)):
        with using_engine(engine):
            out = layer(topology, x)
        (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
        # At NaN PyTorch's own gradients are not always the same.
        found.append((out, gradient[1 : len(ends)]))
    torch.testing.assert_close(*found, equal_nan=True)


KINKS: dict[str, Callable[[Layer, Any], Any]] = {
    "logsigmoid": lambda _, e: F.logsigmoid(e.src * e.dst),
    "relu": lambda _, e: F.relu(e.src * e.dst) + F.relu(e.src + e.dst),
    "relu6": lambda _, e: F.relu6(e.src * e.dst) + F.relu6(e.src + e.dst),
    "hardtanh": lambda _, e: F.hardtanh(e.src * e.dst) + F.hardtanh(e.src + e.dst, -3, 3),
    "hardsigmoid": lambda _, e: F.hardsigmoid(e.src * e.dst) + F.hardsigmoid(e.src + e.dst),
    "hardswish": lambda _, e: F.hardswish(e.src * e.dst) + F.hardswish(e.src + e.dst),
    "clamp": lambda _, e: (e.src * e.dst).clamp(-3, 3) + (e.src + e.dst).clamp_min(1),
    "threshold": lambda _, e: F.threshold(e.src * e.dst, 1, 20) + F.threshold(e.src + e.dst, 0, -3),
    "softshrink": lambda _, e: F.softshrink(e.src * e.dst, 3) + F.softshrink(e.src + e.dst, 0),
    "prelu": lambda m, e: F.prelu(e.src * e.dst, m.v) * e.src,
    "rounded halves": lambda _, e: e.src * (torch.round(e.src * e.dst / 2) + torch.ceil((e.src - e.dst) / 2) - torch.trunc((e.src + e.dst) / 2) * e.dst),
    "logsumexp": lambda _, e: torch.logsumexp(e.src * e.dst, 1, keepdim=True) * e.src,
    "norm": lambda _, e: (e.src * e.dst).norm(dim=1, keepdim=True) * e.src,
    "norm of order 1": lambda _, e: (e.src * e.dst).norm(1, dim=1, keepdim=True) * e.src,
    "norm of order 1/2": lambda _, e: (e.src * e.dst).norm(0.5, dim=1, keepdim=True) * e.src,
    "norm of order inf": lambda _, e: (e.src * e.dst).norm(float("inf"), dim=1, keepdim=True) * e.src,
    "norm of order 0": lambda _, e: (e.src * e.dst).norm(0, dim=1, keepdim=True) * e.src,
    "normalize": lambda _, e: F.normalize(e.src * e.dst, dim=1, eps=0.1),
    "distance": lambda _, e: F.pairwise_distance(e.src, e.dst, eps=0)[:, None] * e.src,
    "cosine similarity": lambda _, e: F.cosine_similarity(e.src, e.dst, eps=2)[:, None] * e.src,
    "std": lambda _, e: (e.src * e.dst).std(1, keepdim=True) * e.src,
}  # fmt: skip


@pytest.mark.parametrize("name", KINKS)
def test_slopes_at_kinks_are_those_of_pytorch(name: str) -> None:
    topology = skewed()
    x = torch.tensor([-3.0, -1, 0, 1, 3, 6], dtype=torch.float64)
    x = x[torch.randint(0, 6, (topology.num_src, 4), generator=torch.Generator().manual_seed(0))]
    # Rows of zeros, and rows of one number.
    x[::3], x[1::3] = 0, x[1::3, :1].clone()
    # PyTorch's own hardsigmoid multiplies by a sixth in single precision.
    x = x.float() if name == "hardsigmoid" else x
    layer = Layer(KINKS[name]).to(x.dtype)
    program = compiled_right(layer, topology, x, dialect="naive")
    assert program.edges.function is not None, program.notes
    expected, gradients, _ = results(CompiledEngine(dialect="naive"), layer, topology, x)
    assert expected.isfinite().all()
    assert gradients["x"].isfinite().all()


@pytest.mark.parametrize("function", [torch.log2, torch.log10, torch.exp2])
def test_powers_of_two_and_ten_are_exact(function: Any) -> None:
    """A quotient of logarithms would fall short of whole numbers."""
    weights = torch.tensor([1000.0, 32768, 3, 1e-3, 8])[torch.arange(skewed().num_edges) % 5]
    topology = skewed().with_edge_data(weight=weights if function is not torch.exp2 else weights.log())
    layer = Layer(lambda m, e: e.src * e.dst * torch.floor(function(e.data))[:, None]).double()
    compiled_right(layer, topology)
