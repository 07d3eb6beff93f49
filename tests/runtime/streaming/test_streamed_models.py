"""Models that are written in unusual ways have the numbers that they have in memory, or are refused by name."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError
from sagann.graph import Graph, Topology, declare_constant
from sagann.nn import GAT, GCN
from sagann.plan import equal_vertices
from sagann.runtime.streaming.stream import stream
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, NaiveEngine, SagaLayer, using_engine
from tests.forks import run_fresh
from tests.tolerances import assert_close

NUM_VERTICES = 60


class Model(nn.Module):
    """A sum over neighbours between two linear maps, and whatever a function makes of them."""

    num_hops = 1

    def __init__(self, forward: Callable[[Model, Sequence[Topology], Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.function = forward
        self.layer, self.first, self.second = SagaLayer(), nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.second(self.layer(hops[0], x)) if self.function is None else self.function(self, hops, x)


def ring(num_vertices: int = NUM_VERTICES, **data: Tensor) -> Topology:
    src = torch.arange(num_vertices)
    return Topology.from_coo(src=src, dst=(src + 1) % num_vertices, num_src=num_vertices, edge_data=data)


def rows(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(NUM_VERTICES, 4, dtype=dtype, generator=torch.Generator().manual_seed(0))


def streamed(model: nn.Module, topology: Topology, count: int = 3, **settings: Any) -> StreamedModel:
    return StreamedModel(
        model, [topology] * getattr(model, "num_hops", 1), equal_vertices(topology.num_dst, count), **settings
    )


def assert_same(model: nn.Module, topology: Topology, x: Tensor, **settings: Any) -> None:
    """Values and gradients are those in memory."""
    found = []
    for run in (lambda: model([topology] * model.num_hops, x), lambda: streamed(model, topology, **settings)(x)):
        model.zero_grad()
        with using_engine(NaiveEngine()):
            out = run()
            out.square().sum().backward()
        found.append([out, *(parameter.grad for parameter in model.parameters())])
    for ours, theirs in zip(*found[::-1], strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert_close(ours, theirs)


def complex_stages(model: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    early = torch.view_as_complex(model.first(x).view(-1, 4, 2))
    late = torch.view_as_complex(model.second(model.layer(hops[0], x)).view(-1, 4, 2))
    return torch.view_as_real(early * late).flatten(1)


def conjugated(model: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(model.first(x), dim=-1)
    return model.layer(hops[0], (spectrum * spectrum.conj()).real)


def zeros_between(model: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    gathered = model.layer(hops[0], x)
    clamped = torch.where(gathered > 0, gathered, torch.zeros_like(gathered))
    return model.second(model.layer(hops[0], clamped + gathered.new_ones(len(gathered), 1)))


def rows_as_sizes(model: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    token = model.first.bias.expand(len(x), -1)
    both = torch.cat([model.first(x), token], -1).view(len(x), 2, -1)
    return model.layer(hops[0], both.flatten(1))


def degrees_gathered(model: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    degrees = model.layer(hops[0], torch.ones(len(x), 1, dtype=x.dtype))
    return model.second(model.layer(hops[0], x) / degrees.clamp(min=1))


def heads_mapped(model: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    """Batched products, for which rows are repeated, or are no first dimension for a while."""
    gathered = model.layer(hops[0], model.first(x))
    weight = model.second.weight.view(2, 4, 4)
    batched = (gathered.view(-1, 2, 1, 4) @ weight).flatten(1)
    return batched + torch.einsum("nhd,hdf->nhf", gathered.view(-1, 2, 4), weight).flatten(1)


def attention_within(model: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    heads = model.first(x).view(-1, 1, 2, 4)
    return model.layer(hops[0], nn.functional.scaled_dot_product_attention(heads, heads, heads).flatten(1))


UNUSUAL = [
    complex_stages,
    conjugated,
    zeros_between,
    rows_as_sizes,
    degrees_gathered,
    heads_mapped,
    attention_within,
]


@pytest.mark.parametrize("forward", UNUSUAL)
@pytest.mark.parametrize("keeps", [False, True])
def test_unusual_models_have_the_numbers_of_memory(
    forward: Callable[..., Tensor], keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if keeps:
        # Copying costs nothing: stages keep what they made instead of running again in the backward.
        monkeypatch.setattr("sagann.plan.steps.Beside.flops_per_byte", 0.0)
    assert_same(Model(forward).double(), ring(), rows().requires_grad_())


COUNTED: dict[str, Callable[[Model, Sequence[Topology], Tensor], Tensor]] = {
    "a root": lambda m, h, x: m.second(m.layer(h[0], x)) / math.sqrt(x.shape[0]),
    "an inverse": lambda m, h, x: m.second(m.layer(h[0], x)) * (1 / len(x)),
    "a sum of two": lambda m, h, x: m.second(m.layer(h[0], x)) + (h[0].num_dst + h[0].num_src),
    "a tensor": lambda m, h, x: m.second(m.layer(h[0], x)) * torch.tensor(1 / len(x)),
    "filled rows": lambda m, h, x: m.second(m.layer(h[0], x)) * torch.full((len(x), 1), 1 / len(x)),
    "a smaller one": lambda m, h, x: m.second(m.layer(h[0], x)) * min(len(x), 10**9),
}


@pytest.mark.parametrize("name", COUNTED)
def test_the_number_of_vertices_is_a_size_and_nothing_else(name: str) -> None:
    with pytest.raises(LayerError, match=r"operator \w+ .*depends on (the number of vertices|their number)"):
        streamed(Model(COUNTED[name]), ring())(rows(torch.float32))


def hooked(model: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    out = model.first(x)
    if out.requires_grad:
        out.register_hook(torch.neg)
    return model.layer(hops[0], out)


def in_half_precision(model: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model.layer(hops[0], model.first(x))


REFUSED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "a hook": (hooked, r"has it changed by a hook \(test_streamed_models.py:"),
    "autocast": (in_half_precision, r"switches autocast, .*test_streamed_models.py:"),
    "rows of its own": (lambda m, h, x: m.layer(h[0], x + m.first.bias.repeat(60, 1)[:, :4]), "N is the number of rows"),
    "rows elsewhere": (lambda m, h, x: m.layer(h[0], x).T, r"operator \w+ puts them elsewhere"),
    "a sequence of vertices": (lambda m, h, x: m.lstm(m.layer(h[0], x))[0], r"runs lstm over a sequence \(test_streamed_models.py:"),
    "dropout elsewhere": (lambda m, h, x: nn.functional.dropout(m.layer(h[0], x).T, 0.5).T, "operator dropout mixes"),
    "attention to vertices": (lambda m, h, x: nn.functional.scaled_dot_product_attention(*[m.layer(h[0], x)[None, None]] * 3)[0, 0], "mixes them"),
    "a minimum over vertices": (lambda m, h, x: torch.relu(x) - torch.relu(m.layer(h[0], x)).min(0).values, "operator min mixes"),
    "softmax over vertices": (lambda m, h, x: torch.softmax(torch.log(m.layer(h[0], x)), 0), "operator _softmax mixes"),
    "vertices by number": (lambda m, h, x: m.layer(h[0], x)[x[:, 0].long()], "operator index mixes"),
    "rows twice": (lambda m, h, x: m.layer(h[0], x) @ (x.T @ x), "mixes them"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_streamed_is_named(name: str) -> None:
    forward, reason = REFUSED[name]
    model = Model(forward)
    model.lstm = nn.LSTM(4, 4)
    with pytest.raises(LayerError, match=reason):
        streamed(model, ring())(rows(torch.float32))


TURNS = itertools.cycle([True, False])


def test_a_model_that_changes_from_trace_to_trace_is_refused() -> None:
    def forward(model: Model, hops: Sequence[Topology], x: Tensor) -> Tensor:
        out = model.second(model.layer(hops[0], x))
        return out.relu() if next(TURNS) else out

    with pytest.raises(LayerError, match="cannot be captured: it does something else when it is traced again"):
        streamed(Model(forward), ring())(rows(torch.float32))


def test_gradients_of_half_precision_are_summed_as_in_memory() -> None:
    """256 intervals of 5 vertices: in half precision the running sum would lose units."""
    topology, dtype = ring(1280), torch.bfloat16
    model, x = Model().to(dtype), torch.ones(1280, 4, dtype=dtype)
    streamed(model, topology, 256)(x).sum().backward()
    assert model.second.bias.grad.dtype == dtype
    assert model.second.bias.grad.tolist() == [1280] * 8
    loss = streamed(model, topology, 256).loss(x, lambda z, _: torch.ones_like(z[:, 0]).sum() + 0 * z.sum())
    assert loss.dtype == dtype
    assert float(loss.detach()) == 1280


def test_a_mean_in_half_precision_at_a_hub() -> None:
    num_edges = 70_000
    topology = Topology.from_coo(
        src=torch.arange(num_edges) % 50, dst=torch.zeros(num_edges, dtype=torch.int64), num_src=50
    )
    model = Model(lambda m, h, x: m.layer(h[0], x * m.first.bias[:4])).half()
    model.layer.accumulator = "mean"
    nn.init.ones_(model.first.bias)
    streamed(model, topology, 2)(torch.full((50, 4), 8.0).half()).sum().backward()
    torch.testing.assert_close(model.first.bias.grad[:4].float(), torch.full((4,), 8.0), rtol=2e-3, atol=0)


def test_a_softmax_of_large_rows_in_half_precision() -> None:
    """The agreement of gradient and result, 160000 of one head, is beyond what half precision holds."""
    loop = Topology.from_coo(src=torch.tensor([0]), dst=torch.tensor([0]), num_src=1)
    model = Model(lambda m, h, x: m.layer(h[0], x * m.first.bias[:4])).half()
    model.layer = GAT(4, 4).half()
    nn.init.ones_(model.first.bias)
    nn.init.eye_(model.layer.project.weight)
    out = streamed(model, loop, 1)(torch.full((1, 4), 200.0).half())
    out.backward(torch.full_like(out, 200.0))
    assert model.first.bias.grad[:4].tolist() == [40000] * 4
    assert not model.layer.attend_src.grad.any()


class Weighted(SagaLayer):
    """A sum by weights."""

    edge_data = "weight"

    def apply_edge(self, edge: Edge) -> Tensor:
        return edge.src * edge.data[:, None]


@pytest.mark.parametrize("reader_is_late", [False, True])
def test_edge_data_changed_before_the_first_call_is_seen(reader_is_late: bool) -> None:
    topology = ring(weight=torch.ones(NUM_VERTICES, dtype=torch.float64))
    model = Model().double()
    model.layer = SagaLayer() if reader_is_late else Weighted()
    graph = Graph(topology=topology, features=rows())
    chunked = stream(model, graph, budget_bytes=1 << 20, num_intervals=3)
    if reader_is_late:
        chunked(rows())
        model.layer = Weighted()
    topology.edge_data["weight"].mul_(3)
    assert_close(chunked(rows()), model([topology], rows()))


def test_edge_data_that_is_trained_later_is_refused() -> None:
    topology = ring(weight=torch.ones(NUM_VERTICES))
    model = Model()
    model.layer = Weighted()
    chunked = streamed(model, topology)
    chunked(rows(torch.float32))
    topology.edge_data["weight"].requires_grad_()
    with pytest.raises(InputError, match=r"edge data gets no gradient .*'weight' requires one"):
        chunked(rows(torch.float32))


def test_a_forked_child_leaves_the_blocks_of_its_parent(tmp_path: Path) -> None:
    program = """
import gc, os, pathlib, sys
import torch
from tests.forks import fork
from tests.runtime.streaming.test_streamed_models import Model, ring, rows, streamed

torch.set_num_threads(1)
chunked, x = streamed(Model().double(), ring(), spill=pathlib.Path(sys.argv[1]), budget_bytes=1 << 20), rows()
out = chunked(x)
# The thread that loads blocks waits.
if (child := fork(idle=1)) == 0:
    del chunked, out
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert torch.equal(chunked(x), out)
"""
    run_fresh(program, tmp_path)


class Scaled(SagaLayer):
    """Reads a tensor that is no buffer, at the edges or at the vertices."""

    def __init__(self, *, at_edges: bool) -> None:
        super().__init__()
        self.at_edges, self.alpha = at_edges, torch.tensor(1.0, dtype=torch.float64)
        self.tables = {"rows": [torch.ones(4, dtype=torch.float64)]}

    def apply_edge(self, edge: Edge) -> Tensor:
        return torch.tanh(edge.src + edge.dst * self.alpha) if self.at_edges else edge.src

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return (accum if self.at_edges else accum * self.alpha) * self.tables["rows"][0]


@pytest.mark.parametrize("at_edges", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_tensors_among_a_layers_attributes_are_read_as_they_are(at_edges: bool, in_place: bool) -> None:
    model, topology, x = Model().double(), ring(), rows()
    model.layer = Scaled(at_edges=at_edges)
    chunked = streamed(model, topology)
    for value in (1.0, 5.0, 2.0):
        if in_place:
            model.layer.alpha.fill_(value)
            model.layer.tables["rows"][0].mul_(2)
        else:
            model.layer.alpha = torch.tensor(value, dtype=torch.float64)
        found = [chunked(x), model([topology], x)]
        with using_engine(NaiveEngine()):
            expected = model([topology], x)
        for each in found:
            assert_close(each, expected)


class Convolved(nn.Module):
    """Two layers that read the weights of GCN, the second one's divided by two."""

    num_hops = 2

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = GCN(4, 8), Halved(8, 3)

    def forward(self, hops: Sequence[Topology], x: Tensor) -> Tensor:
        return self.second(hops[1], torch.relu(self.first(hops[0], x)))


class Halved(GCN):
    def apply_edge(self, edge: Edge) -> Tensor:
        return super().apply_edge(edge) / (1 + edge.data.sign()).unsqueeze(-1)


def weights_read(model: nn.Module, topology: Topology, x: Tensor, spill: Path | None) -> bool:
    """Whether chunks have the weights of their edges."""
    (size,) = streamed(model, topology, spill=spill).plan(x).schedule.hops.values()
    return any(size.data_bytes.values())


@pytest.mark.parametrize("is_constant", [False, True])
def test_weights_by_degree_are_read_as_factors_of_vertices(is_constant: bool, tmp_path: Path) -> None:
    model, x = Convolved().double(), rows()
    x = declare_constant(x) if is_constant else x
    star = torch.randint(NUM_VERTICES, (2, 500), generator=torch.Generator().manual_seed(0))
    plain = Graph(topology=Topology.from_edge_index(star, NUM_VERTICES), features=x)
    topology = GCN.prepare(plain).topology
    assert not weights_read(model, topology, x, tmp_path)
    # Edges that are read in place have them.
    assert weights_read(model, topology, x, None)
    assert_same(model, topology, x, spill=tmp_path)
    # Changed in place, they are no such product any more.
    chunked = streamed(model, topology, spill=tmp_path)
    chunked(x)
    topology.edge_data["gcn_weight"].mul_(torch.linspace(1, 2, topology.num_edges))
    assert weights_read(model, topology, x, tmp_path)
    assert_close(chunked(x), model([topology] * 2, x))
    assert_same(model, topology, x, spill=tmp_path)


def test_weights_of_given_weights_or_that_are_less_exact_than_rows_stay_with_the_edges(tmp_path: Path) -> None:
    weighted = ring(weight=torch.linspace(1, 2, NUM_VERTICES, dtype=torch.float64))
    prepared = GCN.prepare(Graph(topology=weighted, features=rows())).topology
    assert weights_read(Convolved().double(), prepared, rows(), tmp_path)
    assert_same(Convolved().double(), prepared, rows(), spill=tmp_path)
    half = GCN.prepare(Graph(topology=ring(), features=rows(torch.bfloat16))).topology
    assert weights_read(Convolved().bfloat16(), half, rows(torch.bfloat16), tmp_path)
    single = GCN.prepare(Graph(topology=ring(), features=rows(torch.float32))).topology
    assert not weights_read(Convolved(), single, rows(torch.float32), tmp_path)
    # A product of factors in single precision deviates by more than double precision allows.
    assert weights_read(Convolved().double(), single, rows(), tmp_path)
    assert_same(Convolved().double(), single, rows(), spill=tmp_path)
