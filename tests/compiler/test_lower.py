"""What fuses, operator by operator: the compiled layer gives the naive one's values and gradients in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sagann.compiler import CompilerOptions, lower
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga import NaiveEngine, using_engine
from tests.compiler.layers import Layer, assert_compiles_right, compiled_right, program_of, results
from tests.graphs import block_of, odd_topologies, random_topology, rows, skewed

FUSED: dict[str, Callable[[Layer, Any], Any]] = {
    "source": lambda _, e: e.src,
    "destination": lambda _, e: e.dst,
    "weighted": lambda _, e: e.src * e.data[:, None],
    "scalar per edge": lambda _, e: e.data[:, None] * 2,
    "parameter only": lambda m, e: m.v * e.data.unsqueeze(-1),
    "pow": lambda _, e: (e.src * e.dst) ** 3 + (e.src * e.dst).pow(2) + (e.src + e.dst).abs() ** 1.5,
    "two tensors' pow": lambda _, e: (e.src.abs() + e.dst.abs() + 0.1) ** e.dst,
    "constant's pow": lambda _, e: 2.0 ** (e.src * e.dst),
    "divide": lambda _, e: e.src / (e.dst.abs() + 1) + 1 / (e.data[:, None] + 1),
    "alpha": lambda _, e: torch.add(e.src, e.dst, alpha=3) + torch.sub(e.dst, e.src, alpha=0.5) + torch.rsub(e.dst, e.src),
    "constants compared": lambda _, e: e.src * e.dst * (torch.full((len(e.src), 1), 2.0) > 2.5) + e.src * e.dst * F.hardtanh(torch.full((len(e.src), 1), 0.5), -3, 3),
    "masks compared": lambda _, e: e.src * ((e.src > 0) > (e.dst > 0)) + e.dst * ((e.src > 0) <= (e.dst > 0)) * 2,
    "data of a tensor": lambda m, e: e.src * e.dst.data + e.dst * m.v.data,
    "detached": lambda m, e: (e.src * e.dst).detach() * e.src + ((e.src > e.dst).detach() * m.v.detach()) * e.dst,
    "constants of a type": lambda _, e: (e.src * e.dst) * torch.full_like(e.data.long(), 1.5).to(e.src.dtype)[:, None] + torch.full((len(e.src), 4), 0.1, dtype=torch.float32) * e.src * e.dst,
    "comparisons": lambda _, e: torch.where((e.src > e.dst) & (e.dst < 1) | (e.src == 0), e.src * e.dst, e.dst - 1),
    "masked fill": lambda _, e: (e.src * e.dst).masked_fill(e.dst < 0, -3.0),
    "exp": lambda _, e: torch.exp(e.src - e.dst) + torch.expm1(e.dst * e.src),
    "log": lambda _, e: torch.log(e.src.abs() + e.dst.abs() + 0.5) + torch.log1p((e.src * e.dst).abs()),
    "roots": lambda _, e: torch.sqrt((e.src * e.dst).abs() + 0.1) + torch.rsqrt((e.src + e.dst).abs() + 0.1),
    "trigonometry": lambda _, e: torch.sin(e.src * e.dst) + torch.cos(e.src + e.dst) + torch.tan(e.src - e.dst),
    "rounding": lambda _, e: torch.floor(e.src * e.dst) * e.src + torch.sign(e.src - e.dst) * e.dst,
    "rounded": lambda _, e: torch.ceil(e.src * e.dst) * e.src + torch.trunc(e.src - e.dst) * e.dst + torch.round(e.src + e.dst) * e.src,
    "erf": lambda _, e: torch.erf(e.src * e.dst),
    "tanh": lambda _, e: torch.tanh(e.src + e.dst),
    "sigmoid": lambda _, e: torch.sigmoid(e.src + e.dst) * e.src + F.logsigmoid(e.src - e.dst),
    "relu": lambda _, e: F.relu(e.src + e.dst) + F.relu6(3 * e.src * e.dst),
    "leaky relu": lambda m, e: F.leaky_relu(e.src - e.dst, 0.3),
    "elu": lambda _, e: F.elu(e.src - e.dst, 0.7) + F.selu(e.src * e.dst) + F.celu(e.src + e.dst, 2.0),
    "gelu": lambda _, e: F.gelu(e.src + e.dst) + F.gelu(e.src - e.dst, approximate="tanh"),
    "silu": lambda _, e: F.silu(e.src + e.dst) + F.mish(e.src - e.dst),
    "softplus": lambda _, e: F.softplus(e.src + e.dst, 2.0, 3.0),
    "prelu": lambda m, e: F.prelu(e.src + e.dst, m.v) + F.prelu(e.src - e.dst, m.b),
    "shrunk": lambda _, e: F.hardshrink(e.src + e.dst) + F.softshrink(e.src - e.dst, 0.3) + F.threshold(e.src * e.dst, 0.1, 20),
    "hard": lambda _, e: F.hardtanh(e.src + e.dst, -0.3, 0.4) * F.hardtanh(e.src * e.dst),
    "clamp": lambda _, e: (e.src * e.dst).clamp(-0.5, 0.5) + (e.src + e.dst).clamp(min=0) + (e.src + e.dst).clamp_max(0.1),
    "extrema": lambda _, e: torch.maximum(e.src, e.dst) - torch.minimum(e.src, e.dst + 0.1),
    "addcmul": lambda m, e: torch.addcmul(e.src, e.dst, e.src, value=2) + torch.addcdiv(e.src, e.dst, e.src.abs() + 1) + torch.lerp(e.src, e.dst, 0.3),
    "parameters": lambda m, e: (e.src * m.v + e.dst * m.a + m.b) * m.v.sum(),
    "sum": lambda _, e: (e.src * e.dst).sum(-1, keepdim=True) * e.src + (e.src * e.dst).sum(1, keepdim=True),
    "one number per edge": lambda m, e: (e.src * e.dst).sum(-1) * m.b,
    "mean": lambda _, e: (e.src * e.dst).mean(-1, keepdim=True) * e.dst,
    "variance": lambda _, e: (e.src * e.dst).var(-1, keepdim=True) + (e.src - e.dst).std(-1, keepdim=True),
    "amax": lambda _, e: (e.src * e.dst).amax(-1, keepdim=True) * e.src + (e.src * e.dst).amin(-1, keepdim=True),
    "softmax over features": lambda _, e: torch.softmax(e.src * e.dst, -1) * e.src,
    "log softmax over features": lambda _, e: F.log_softmax(e.src + e.dst, 1),
    "logsumexp": lambda _, e: torch.logsumexp(e.src * e.dst, -1, keepdim=True) * e.src + torch.logsumexp((e.src + e.dst).view(-1, 2, 2), (1, 2))[:, None],
    "layer norm": lambda m, e: F.layer_norm(e.src * e.dst, (4,), m.v, m.v),
    "norm": lambda _, e: F.normalize(e.src * e.dst + 1, dim=-1) + (e.src - e.dst).norm(dim=-1, keepdim=True),
    "distance": lambda _, e: F.pairwise_distance(e.src, e.dst)[:, None] * e.src,
    "cosine similarity": lambda m, e: F.cosine_similarity(e.src, e.dst, -1)[:, None] * e.src + F.cosine_similarity(e.src * e.dst, m.v, eps=0.5)[:, None],
    "heads": lambda _, e: ((e.src.view(-1, 2, 2) * e.dst.view(-1, 2, 2)).sum(-1).unsqueeze(-1) * e.src.view(-1, 2, 2)).flatten(1),
    "three dimensions": lambda _, e: e.src.view(-1, 2, 2) * e.dst.view(-1, 2, 2),
    "permuted": lambda _, e: (e.src.view(-1, 2, 2) * e.dst.view(-1, 2, 2)).transpose(1, 2).reshape(-1, 4) + (e.src.view(-1, 2, 2) + e.dst.view(-1, 2, 2)).permute(0, 2, 1).flatten(1),
    "slices": lambda _, e: torch.cat([(e.src * e.dst)[:, 1:], (e.src + e.dst)[:, ::2], (e.src * e.dst)[:, 3:4]], 1),
    "select": lambda _, e: (e.src * e.dst)[:, 1] + (e.src * e.dst).select(1, -1),
    "stack": lambda _, e: torch.stack([e.src * e.dst, e.src + e.dst], 1),
    "split": lambda _, e: (lambda parts: parts[0] * parts[1])((e.src * e.dst).chunk(2, 1)),
    "unbind": lambda _, e: (lambda parts: parts[0] * parts[1])((e.src * e.dst).view(-1, 2, 2).unbind(1)),
    "glu": lambda _, e: F.glu(torch.cat([e.src, e.dst], -1) * e.data[:, None]),
    "expand": lambda m, e: m.v.expand(len(e.src), 4) * e.src + (e.src * e.dst).sum(-1, keepdim=True).expand(-1, 4),
    "squeeze": lambda _, e: (e.src * e.dst).sum(-1, keepdim=True).squeeze(-1).unsqueeze(1) * e.src,
    "zeros": lambda _, e: torch.zeros(len(e.src), 4, dtype=e.src.dtype) + e.src * e.dst,
    "cast": lambda _, e: (e.src > e.dst).to(e.src.dtype) * e.src * e.dst + (e.src * e.dst).double(),
    "dot product": lambda _, e: torch.einsum("ef,ef->e", e.src, e.dst)[:, None] * e.src,
    "small products": lambda _, e: (e.src.view(-1, 2, 2) @ e.dst.view(-1, 2, 2)).flatten(1),
    "edge network": lambda m, e: F.linear(torch.relu(e.src + e.dst) @ m.w, m.w, m.v),
    "map of heads": lambda m, e: F.linear((e.src * e.dst).view(-1, 2, 2), m.w[:, :2], m.v).flatten(1),
    "map of data": lambda m, e: F.linear(torch.cat([e.src, e.data[:, None] * e.dst], -1), m.wide)[:, :4] * e.dst,
    "map of a difference": lambda m, e: F.linear(torch.cat([e.dst, e.src - e.dst], -1), m.wide, m.wide.sum(1)),
    "cross product": lambda m, e: torch.cross(e.src[:, 1:], e.dst[:, :3], dim=1) + torch.linalg.cross(e.dst[:, 1:], m.v[:3].expand(len(e.src), 3)),
    "maps as sums of products": lambda m, e: torch.einsum("ei, oi -> eo", e.src * e.dst, m.w) + torch.einsum("bhi,io->bho", (e.src - e.dst).view(-1, 2, 2), m.w[:2]).sum(1),
    "one matrix of heads": lambda m, e: ((e.src * e.dst).view(-1, 2, 2) @ m.w[:2]).sum(1),
    "RMS norm": lambda m, e: F.rms_norm(e.src * e.dst, (4,), m.v) + F.rms_norm(e.src + e.dst, (4,), eps=0.1),
    "made empty": lambda m, e: (lambda out: out.copy_(e.src * e.dst))(e.src.new_empty(len(e.src), 4)),
    "addmm": lambda m, e: torch.addmm(m.v, e.src * e.dst, m.w, beta=2, alpha=0.5),
    "in place on a copy": lambda _, e: (e.src * e.dst).mul_(2).add_(e.src),
    "hoisted": lambda m, e: torch.sigmoid(e.src @ m.w + F.linear(e.dst, m.w, m.v)) * e.src,
    "widened": lambda m, e: torch.cat([e.src, 2 * e.src, e.src.relu()], -1) * e.data[:, None],
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_a_fused_layer_equals_the_naive_one(name: str) -> None:
    program = compiled_right(Layer(FUSED[name]).double(), dialect="naive")
    assert program.edges.function is not None, program.notes


SOFTMAX: dict[str, Callable[[Layer, Any], Any]] = {
    "one head": lambda m, e: ((e.src * e.dst).sum(-1), e.src),
    "data": lambda m, e: (e.data * 3, e.src * e.dst),
    "two heads": lambda m, e: ((e.src * e.dst).view(-1, 2, 2).sum(-1), (e.src @ m.w).view(-1, 2, 2) * e.data.view(-1, 1, 1)),
    "per feature": lambda m, e: (e.src * e.dst, (e.src + e.dst).unsqueeze(-1)),
    "projected": lambda m, e: (F.leaky_relu(e.src @ m.v + e.dst @ m.v), e.src @ m.w),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "graph"),
    [*((name, "skewed") for name in SOFTMAX), *(("two heads", graph) for graph in odd_topologies())],
)
def test_softmax(name: str, graph: str) -> None:
    layer = Layer(SOFTMAX[name], accumulator="softmax").double()
    assert compiled_right(layer, odd_topologies()[graph], dialect="naive").edges.function is not None


WITH_INTEGERS: dict[str, Callable[[Layer, Any], Any]] = {
    "less than a fraction": lambda _, e: e.src * (e.data < 1.5)[:, None],
    "equal to a fraction": lambda _, e: e.src * (e.data == 0.5)[:, None] + e.dst * (e.data != 1.5)[:, None],
    "clamped to a fraction": lambda _, e: e.src * e.data.clamp(min=0.5)[:, None] + e.dst * e.data.clamp(max=1.5)[:, None],
    "booleans and numbers": lambda _, e: e.src * ((e.data > 0) < 2)[:, None] + e.dst * ((e.data > 0) > 0.5)[:, None],
    "sum of booleans": lambda _, e: e.src * ((e.data > 0) + (e.data < 2))[:, None] + e.dst * ((e.data > 0) * (e.data < 2))[:, None],
    "arithmetic": lambda _, e: e.src * ((e.data + 2) * e.data - 3 - (-e.data))[:, None],
    "where": lambda _, e: e.src * torch.where(e.data > 1, e.data, -1)[:, None],
    "logical": lambda _, e: e.src * torch.logical_and(e.data, e.data - 1)[:, None] + e.dst * torch.logical_not(e.data)[:, None],
    "sum": lambda _, e: e.src * torch.stack([e.data, e.data + 1], 1).sum(1, keepdim=True),
    "number of features": lambda _, e: e.src * (e.src > e.dst).sum(1, keepdim=True),
    "true division": lambda _, e: e.src * (e.data / 2)[:, None] + e.dst * torch.sqrt(e.data)[:, None],
}  # fmt: skip
ON_INTEGERS: dict[str, Callable[[Layer, Any], Any]] = {
    "pow": lambda _, e: e.src * (e.data**2)[:, None],
    "abs": lambda _, e: e.src * (e.data - 2).abs()[:, None],
    "floor": lambda _, e: e.src * torch.floor(e.data)[:, None],
    "maximum": lambda _, e: e.src * torch.maximum(e.data, e.data * 2 - 1)[:, None],
    "div": lambda _, e: e.src * torch.div(e.data, 2, rounding_mode="floor")[:, None],
    "amax": lambda _, e: e.src * torch.stack([e.data, e.data - 1], 1).amax(1, keepdim=True),
}


def why_not_fused(
    layer: Layer, dtype: torch.dtype = torch.float64, dialect: Any = "naive", dim: int = 4
) -> str | None:
    """Compile the layer for edge data of a type, compare it with the naive one, and say why it is not fused."""
    data = torch.randint(0, 4, (skewed().num_edges,), generator=torch.Generator().manual_seed(0))
    topology = skewed().with_edge_data(weight=data.to(dtype))
    notes = compiled_right(layer.double(), topology, rows(topology, dim), dialect=dialect).notes
    return next((note.text for note in notes if note.kind == "not fused"), None)


@pytest.mark.parametrize(
    ("dialect", "dtype"), [("naive", torch.int32), pytest.param("cpu", torch.int64, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", WITH_INTEGERS)
def test_integer_data_is_computed_with_as_in_pytorch(name: str, dtype: torch.dtype, dialect: str) -> None:
    assert why_not_fused(Layer(WITH_INTEGERS[name]), dtype, dialect) is None


@pytest.mark.parametrize("name", ON_INTEGERS)
def test_an_operator_without_an_integer_form_is_not_fused(name: str) -> None:
    reason = why_not_fused(Layer(ON_INTEGERS[name]), torch.int64)
    assert reason is not None
    assert f"operator aten.{name}" in reason
    assert "on integers has no fused form" in reason


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16], ids=str)
def test_narrow_integers_are_not_fused(dtype: torch.dtype) -> None:
    reason = why_not_fused(Layer(lambda _, e: e.src * e.data[:, None]), dtype)
    assert reason == f"values of type {dtype} have no fused form; convert them to int64 or a floating type"


CONSTANTS: dict[str, Callable[[Layer, Any], Any]] = {
    "alike in six digits": lambda _, e: torch.where((e.data >= 1_700_000_000) & (e.data < 1_700_003_600), 2.0, 1.0)[:, None] * e.src,
    "close floats": lambda _, e: e.src * 1.0000001 + e.dst * 1.0000002,
    "nan": lambda _, e: torch.where(e.src > e.dst, e.src, float("nan")),
    "signs of zeros": lambda _, e: 1 / torch.where(e.src > e.dst, 0.0 * e.dst.abs(), -0.0 * e.dst.abs()),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANTS)
@pytest.mark.parametrize("dialect", ["naive", "cpu"])
def test_constants_are_what_they_are(name: str, dialect: str) -> None:
    times = torch.arange(skewed().num_edges) * 1000 + 1_700_000_000 - 3000
    times[::3] = 2**53 + torch.arange(len(times[::3])) % 3
    topology = skewed().with_edge_data(weight=times)
    layer = Layer(CONSTANTS[name], accumulator="max" if name in ("nan", "signs of zeros") else "sum").double()
    engine = CompiledEngine(dialect=dialect)
    expected, actual = (results(each, layer, topology, rows(topology))[0] for each in (NaiveEngine(), engine))
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert program_of(layer, topology, rows(topology), engine).edges.function is not None


@pytest.mark.parametrize(("dialect", "dtype"), [("naive", torch.float16), ("cpu", torch.bfloat16)])
def test_half_precision_is_compared_with_rounded_numbers(dtype: torch.dtype, dialect: str) -> None:
    data = torch.full((skewed().num_edges,), 0.1, dtype=dtype)
    data[::2] = 0.2
    topology = skewed().with_edge_data(weight=data)
    layer = Layer(lambda m, e: e.src * (e.data <= 0.1)[:, None] + e.src * (e.data == 0.2)[:, None] * 4).to(dtype)
    x = rows(topology, dtype=torch.float32).to(dtype)
    engines = NaiveEngine(), CompiledEngine(dialect=dialect)
    expected, actual = (results(engine, layer, topology, x)[0].float() for engine in engines)
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("dialect", ["naive", "cpu"])
def test_a_tensor_that_is_one_number_is_compared_in_the_type_of_the_rows(dialect: Any) -> None:
    topology = skewed().with_edge_data(weight=torch.full((skewed().num_edges,), 0.7))
    layer = Layer(lambda m, e: e.src * (e.data >= m.threshold)[:, None])
    layer.register_buffer("threshold", torch.tensor(0.7, dtype=torch.float64))
    x = rows(topology, dtype=torch.float32)
    assert compiled_right(layer, topology, x, dialect=dialect).edges.function is not None


def test_what_is_rounded_to_half_precision_to_be_compared_is_not_fused() -> None:
    layer = Layer(lambda m, e: e.src * (e.src * e.dst >= m.threshold)).half()
    layer.register_buffer("threshold", torch.tensor(0.7))
    program = program_of(layer, skewed(), rows(skewed()).half(), CompiledEngine())
    assert program.edges.why_not.startswith("operator aten.ge.Tensor rounds what it compares to torch.float16")


HEADS_FIRST: dict[str, Callable[[Layer, Any], Any]] = {
    "a row for each head": lambda _, e: (e.src.view(-1, 2) * e.dst.view(-1, 2)).sum(-1).view(-1, 2),
    "heads before rows": lambda _, e: (e.src.view(-1, 2, 2).transpose(0, 1) * e.dst.view(-1, 2, 2).transpose(0, 1)).sum(-1).t(),
    "maps of heads": lambda m, e: F.linear(e.src.view(-1, 2), m.w[:2, :2]).view(-1, 4) * torch.tanh(F.linear(e.dst.view(-1, 2), m.w[:2, :2])).view(-1, 4),
    "chunks of a map": lambda m, e: torch.sigmoid(F.linear(e.dst, m.w).chunk(2, 1)[0] + F.linear(e.src, m.w).chunk(2, 1)[1]),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS_FIRST)
@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("fuse", [False, True])
def test_rows_may_be_seen_in_other_ways(name: str, block: bool, fuse: bool) -> None:
    topology = block_of(random_topology(40, 301), 10) if block else random_topology(40, 301)
    compiled_right(Layer(HEADS_FIRST[name]).double(), topology, options=CompilerOptions(fuse=fuse), tile_edges=60)


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_a_rounded_division_is_pytorchs(mode: Any) -> None:
    topology = skewed().with_edge_data(weight=torch.arange(skewed().num_edges) % 30 / 10)
    layer = Layer(lambda m, e: e.src * e.dst * torch.div(e.data, 0.1, rounding_mode=mode)[:, None]).double()
    notes = compiled_right(layer, topology).notes
    assert any(f"rounded by '{mode}' has no fused form" in note.text for note in notes)


@pytest.mark.parametrize("dialect", ["naive", "cpu"])
@pytest.mark.parametrize("fuse", [True, False])
def test_scores_are_not_rounded_to_the_type_of_the_values(dialect: str, fuse: bool) -> None:
    """Times as scores: seconds since 1970 differ by less than single precision shows."""
    seconds = 1.7e9 + torch.arange(skewed().num_edges, dtype=torch.float64) % 7
    topology = skewed().with_edge_data(weight=seconds)
    layer = Layer(lambda m, e: (e.data, e.src * e.dst), accumulator="softmax")
    x = rows(topology, dtype=torch.float32).requires_grad_()
    found = []
    for engine in (
        NaiveEngine(),
        CompiledEngine(dialect=dialect, options=CompilerOptions(fuse=fuse), tile_edges=50),
    ):
        with using_engine(engine):
            out = layer(topology, x)
        found.append((out, *torch.autograd.grad(out.square().sum(), x)))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)
    assert found[0][0].dtype == torch.float32


def test_rows_without_features_are_concatenated() -> None:
    assert why_not_fused(Layer(lambda _, e: torch.cat([e.src, e.dst], 1)), dim=0) is None
    assert why_not_fused(Layer(lambda _, e: torch.cat([e.src * e.dst, e.data[:, None]], 1)), dim=0) is None


@pytest.mark.parametrize("narrow", [False, True])
def test_no_map_moves_where_types_are_promoted(narrow: bool) -> None:
    """Single rows times double numbers are double, and so is the map that follows; one of single rows would fail."""

    def edge(m: Layer, e: Any) -> torch.Tensor:
        return (
            e.src.float() * e.data[:, None]
            if narrow
            else F.linear(e.src.float(), m.wide.T[:, :4].float()) * e.data[:, None]
        )

    layer = Layer(edge, (lambda m, _, a: F.linear(a, m.w[:2])) if narrow else None).double()
    topology, x = skewed(), rows(skewed()).float().double()
    expected = results(NaiveEngine(), layer, topology, x)
    actual = results(CompiledEngine(dialect="naive"), layer, topology, x, expected[2])
    # The rows pass through single precision.
    torch.testing.assert_close(actual[0], expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("vertex", [lambda m, v, a: v * m.v, lambda m, v, a: torch.ones(len(v), 2, dtype=v.dtype)])
def test_what_reads_nothing_gathered_runs_as_written(vertex: Callable[..., Any]) -> None:
    topology, x = skewed(), rows(skewed())
    layer = Layer(lambda _, e: e.src * e.dst, vertex).double()
    for options in (CompilerOptions(), CompilerOptions(hoist=False, commute=False, split_concat=False)):
        engine = assert_compiles_right(layer, topology, x, engine=CompiledEngine(options=options))
        data = topology.edge_data["weight"].double()
        assert engine.why_not(layer, x, data) == "apply_vertex does not read what was gathered"


def test_rows_that_take_too_many_registers_at_once_are_not_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(_: Layer, edge: Any) -> Any:
        return edge.src / edge.dst.norm(dim=1, keepdim=True)

    monkeypatch.setattr(lower, "most_lanes", lambda device: 6)
    assert why_not_fused(Layer(scaled), dim=6) is None
    # Where each feature depends on itself alone, rows of any width are done tile by tile.
    assert why_not_fused(Layer(lambda _, edge: edge.src * edge.dst), dim=7) is None
    reason = why_not_fused(Layer(lambda _, edge: edge.src / (edge.src - edge.dst).norm(dim=1, keepdim=True)), dim=7)
    assert reason.startswith(
        "a row on the edges has 7 features, of which an operator reads others than its own; up to 6"
    )
