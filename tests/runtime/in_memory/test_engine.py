"""The compiled engine: what it caches, what it falls back from, what it keeps."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from sagann.compiler import CompilerOptions
from sagann.compiler.explain import explain
from sagann.errors import InputError, LayerError, MissingDependencyError
from sagann.graph import Graph, Topology
from sagann.graph.feature_store import declare_constant
from sagann.kernels import dense
from sagann.kernels.edge import dialect_for
from sagann.kernels.memory import POOL
from sagann.nn import GIN, SAGE, ModelConfig, build_model
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.runtime.streaming.streamed import StreamedModel
from sagann.saga import Edge, Engine, NaiveEngine, SagaLayer, current_engine, set_engine, using_engine
from tests.compiler.layers import Layer, assert_compiles_right, program_of, results
from tests.graph.graphs import sparse
from tests.graphs import block_of, odd_topologies, random_topology, rows, skewed
from tests.tolerances import assert_close, largest


def test_an_engine_can_be_set_and_put_back() -> None:
    engine = NaiveEngine()
    set_engine(engine)
    try:
        assert current_engine() is engine
        with using_engine(CompiledEngine()) as inner:
            assert current_engine() is inner
        assert current_engine() is engine
    finally:
        set_engine(None)
    assert isinstance(current_engine(), CompiledEngine)


def test_an_engine_that_is_used_in_one_thread_is_not_that_of_others() -> None:
    both = threading.Barrier(2)
    engines = [NaiveEngine(), CompiledEngine()]

    def use(engine: Engine) -> bool:
        with using_engine(engine):
            both.wait(60)
            return current_engine() is engine

    with ThreadPoolExecutor(max_workers=2) as threads:
        assert list(threads.map(use, engines)) == [True, True]
        with using_engine(engines[0]):
            assert threads.submit(current_engine).result() is not engines[0]
            assert threads.submit(copy_context().run, current_engine).result() is engines[0]


@pytest.mark.parametrize("switched_off", ["hoist", "split_concat", "commute", "invariant", "fuse"])
def test_every_optimisation_can_be_switched_off(switched_off: str) -> None:
    topology = skewed()
    layer = Layer(
        lambda m, e: torch.tanh(F.linear(torch.cat([e.src, e.dst], -1), m.wide)[:, :4]) * e.src,
        lambda m, v, a: F.linear(a, m.w[:1]),
    ).double()
    engine = CompiledEngine(options=CompilerOptions(**{switched_off: False}))
    assert_compiles_right(layer, topology, rows(topology), engine=engine)


def test_a_program_is_made_once_per_form_of_input() -> None:
    engine, topology = CompiledEngine(), skewed()
    layer = Layer()
    with using_engine(engine):
        for x in (rows(topology), rows(topology), rows(topology, dtype=torch.float32), rows(topology, 6)):
            layer(topology, x)
    assert len(engine._programs[layer]) == 3


def test_a_changed_layer_is_checked_again() -> None:
    engine, topology = CompiledEngine(), skewed()
    layer, x = Layer(lambda m, e: e.src - e.src.mean(0) if m.centred else e.src * 1.0), rows(topology)
    layer.centred = False
    with using_engine(engine):
        layer(topology, x)
        layer.centred = True
        with pytest.raises(LayerError, match="must treat rows independently"):
            layer(topology, x)


@pytest.mark.parametrize("name", ["numba", "merge", ""])
def test_an_unknown_dialect_is_refused(name: str) -> None:
    model = nn.Linear(1, 1)
    for make in (lambda: CompiledEngine(dialect=name), lambda: StreamedModel(model, [], (0,), dialect=name)):
        with pytest.raises(InputError, match=rf"no such dialect.*'{name}'.*auto, naive, cpu, gpu"):
            make()


def test_a_devices_kernels_are_refused_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    dialect_for.cache_clear()
    with using_engine(CompiledEngine(dialect="gpu")), pytest.raises(InputError, match=r"dialect 'gpu'.*type 'cpu'"):
        SAGE(4, 3)(skewed(), rows(skewed(), dtype=torch.float32))


def test_what_a_devices_kernels_need_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    dialect_for.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"triton.*dialect 'gpu'.*sagann\[cuda\]"):
        dialect_for("cuda", "gpu")


def test_layers_with_programs_can_be_copied_and_pickled() -> None:
    topology = skewed()
    layer, x = SAGE(4, 3), rows(topology, dtype=torch.float32)
    out = layer(topology, x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(topology, x), out)


def test_a_layer_that_cannot_be_compiled_runs_as_it_is_written() -> None:
    topology = skewed()
    layer, x = Layer(lambda m, e: e.src * m.a.item()).double(), rows(topology)
    engine = assert_compiles_right(layer, topology, x)
    why = engine.why_not(layer, x.requires_grad_(), topology.edge_data["weight"].double())
    assert why.startswith("it cannot be traced")


CONCATENATED: dict[str, Callable[..., Tensor]] = {
    "a gate": lambda m, e: torch.tanh(e.src @ m.w) * e.dst * e.data[:, None],
    "the source": lambda m, e: e.src,
    "a number": lambda m, e: e.data * m.a,
    "a matrix": lambda m, e: (e.src * m.v).view(-1, 2, 2),
    "edge data": lambda m, e: e.data[:, None] * m.v,
    "no features": lambda m, e: e.src[:, :0],
}


@pytest.mark.parametrize("graph", odd_topologies())
@pytest.mark.parametrize("message", CONCATENATED)
@pytest.mark.parametrize("spare", [0, 3])
def test_concat_is_one_pass_that_writes_the_rows(message: str, graph: str, spare: int) -> None:
    topology = odd_topologies()[graph]
    max_degree = max(int(topology.in_degrees().max()), 1) + spare
    layer = Layer(CONCATENATED[message], accumulator="concat", max_degree=max_degree).double()
    engine = assert_compiles_right(layer, topology, rows(topology), engine=CompiledEngine(dialect="cpu"))
    program = program_of(layer, topology, rows(topology), engine)
    if message == "no features":
        return
    assert [output.reduce for output in program.edges.function.outputs] == ["edge"]
    assert any(note.text.endswith("the rows that are concatenated in one pass") for note in program.notes)


def test_concat_of_what_cannot_be_fused_is_materialised() -> None:
    topology = skewed()
    layer = Layer(
        lambda m, e: torch.cumsum(e.src + e.dst, -1),
        accumulator="concat",
        max_degree=int(topology.in_degrees().max()),
    ).double()
    engine = assert_compiles_right(layer, topology, rows(topology))
    program = program_of(layer, topology, rows(topology), engine)
    assert program.edges.function is None
    assert "bytes of tensors for all edges at once" in explain(program)


@pytest.mark.parametrize("fuse", [True, False])
def test_concat_refuses_more_in_edges_than_it_has_room_for(fuse: bool) -> None:
    topology = odd_topologies()["one hub"]
    layer = Layer(lambda m, e: e.src * e.dst, accumulator="concat", max_degree=35)
    engine = CompiledEngine(options=CompilerOptions(fuse=fuse))
    with using_engine(engine), pytest.raises(InputError, match=r"too many in-edges for the concat accumulator.*36"):
        layer(topology, rows(topology, dtype=torch.float32))


@pytest.mark.parametrize("fuse", [True, False])
def test_concat_without_destinations(fuse: bool) -> None:
    topology = Topology(indptr=torch.tensor([0]), indices=torch.empty(0, dtype=torch.int32), num_src=0)
    topology = topology.with_edge_data(weight=torch.empty(0, dtype=torch.float64))
    layer = Layer(lambda m, e: e.src.view(-1, 2, 2), accumulator="concat", max_degree=3).double()
    engine = CompiledEngine(options=CompilerOptions(fuse=fuse))
    assert_compiles_right(layer, topology, torch.empty(0, 4, dtype=torch.float64), engine=engine)
    with using_engine(engine):
        assert layer(topology, torch.empty(0, 4, dtype=torch.float64)).shape == (0, 12)


def both_ends(layer: Layer, edge: Edge) -> Tensor:
    """The same map of either end, then something of the destination's own."""
    return torch.sigmoid(F.linear(edge.src, layer.w)) * torch.tanh(F.linear(edge.dst, layer.w) * layer.v)


@pytest.mark.parametrize("block", [False, True])
def test_what_both_ends_need_is_computed_once(block: bool) -> None:
    topology = block_of(skewed(), 5) if block else skewed()
    layer = Layer(both_ends, lambda m, v, a: a + F.linear(v, m.w)).double()
    program = program_of(layer, topology, rows(topology), CompiledEngine())
    assert [partner for _, partner in program.shared] == ["linear"]
    linear = [
        node
        for stage in (program.src, program.dst, program.vertex)
        for node in stage.module.graph.nodes
        if node.target is dense.linear
    ]
    assert len(linear) == 1
    assert_compiles_right(layer, topology, rows(topology))


VERTICES: dict[str, Callable[..., Tensor]] = {
    "a map of what was gathered twice": lambda m, v, a: F.linear(a + a, m.w[:1]),
    "a map of a parameter by itself": lambda m, v, a: a @ F.linear(m.w, m.w, m.v),
    "biases by name": lambda m, v, a: torch.gru_cell(a, v, m.wide.T.reshape(12, 4), m.wide.reshape(12, 4), b_ih=m.v.repeat(3)),
}  # fmt: skip


@pytest.mark.parametrize("name", VERTICES)
def test_what_vertices_compute(name: str) -> None:
    assert_compiles_right(Layer(None, VERTICES[name]).double(), skewed(), rows(skewed()))


def test_the_extremum_of_a_source_beside_no_features() -> None:
    topology = random_topology(20, 600)
    layer = Layer(lambda m, e: torch.cat([e.src, e.dst[:, 4:]], 1), accumulator="max").double()
    assert_compiles_right(layer, topology, rows(topology))


def test_what_a_softmax_layer_returns_may_be_changed() -> None:
    topology, x = skewed(), rows(skewed()).requires_grad_()
    layer = Layer(lambda m, e: ((e.src * e.dst).sum(-1), e.src), accumulator="softmax").double()
    found = []
    for engine in (NaiveEngine(), CompiledEngine(dialect="cpu")):
        with using_engine(engine):
            out = layer(topology, x)
            out += 1
            torch.relu_(out)
            found.append((out, *torch.autograd.grad(out.square().sum(), x)))
    for ours, theirs in zip(*found[::-1], strict=True):
        assert_close(ours, theirs)


class Named(SagaLayer):
    """Names that only their case, or what Python takes for no name, tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.W, self.w = nn.Parameter(torch.full((4,), 2.0)), nn.Parameter(torch.full((4,), 3.0))
        self.linA, self.lin_a = nn.Linear(4, 4), nn.Linear(4, 4)
        self.maps = nn.ModuleDict({"user->item": nn.Linear(4, 4), "user_item": nn.Linear(4, 4)})

    def apply_edge(self, edge: Edge) -> Tensor:
        return torch.relu(self.maps["user->item"](edge.src)) * self.maps["user_item"](edge.dst)

    def apply_vertex(self, vertex: Tensor, accum: Tensor) -> Tensor:
        return self.linA(vertex) * self.W + self.lin_a(accum) * self.w


def test_parameters_are_told_apart_whatever_their_names() -> None:
    layer = Named().double()
    topology = Topology.from_coo(src=torch.tensor([0, 1, 2, 2]), dst=torch.tensor([1, 2, 0, 1]), num_src=3)
    assert_compiles_right(layer, topology, rows(topology))


def in_place_dropout(m: Layer, e: Any) -> Tensor:
    # All or nothing, so that both engines draw the same.
    return F.dropout(e.src * e.dst, 1.0, True, True) + F.dropout(F.linear(e.src, m.w), 0.0, True, True)


def columns(m: Layer, v: Tensor, a: Tensor) -> Tensor:
    out = F.linear(v, m.w).clone()
    out[:, :2] = a[:, 2:]
    out[:, 3].add_(a[:, 0])
    return out


WRITTEN: dict[str, Callable[[], Layer]] = {
    "dropout in place": lambda: Layer(in_place_dropout),
    "columns set": lambda: Layer(None, columns),
    "LSTM": lambda: Layer(None, lambda m, v, a: sum(torch.lstm_cell(a, (v, v * 2), m.wide.T.repeat(2, 1)[:, :4], m.w.repeat(4, 1)))),
    "complex ends": lambda: Layer(lambda m, e: torch.view_as_real(torch.view_as_complex(e.src.view(-1, 2, 2)) * torch.view_as_complex(e.dst.view(-1, 2, 2))).flatten(1)),
    "inverse": lambda: Layer(None, lambda m, v, a: a @ torch.linalg.inv(m.w)),
    "squeezed": lambda: Layer(lambda m, e: torch.cumsum((e.src * e.dst).view(-1, 1, 4), -1).squeeze()),
    "squeezed numbers": lambda: Layer(lambda m, e: torch.cumsum(e.src * e.dst, -1)[:, 3:].squeeze()),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_layers_as_people_write_them(name: str) -> None:
    # The last tile has one edge.
    topology = random_topology(20, 61)
    engine = CompiledEngine(tile_edges=topology.num_edges - 1)
    assert_compiles_right(WRITTEN[name]().double(), topology, rows(topology), engine=engine)


class Sizes(TorchDispatchMode):
    """Notes the largest tensor that an operator gives."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)]
        self.largest = max([self.largest, *(leaf.numel() for leaf in leaves)])
        return out


@pytest.mark.parametrize("model", ["commnet", "gcn", "sage", "gin", "maxpool-gcn", "gated-gcn", "ggnn", "gat"])
def test_no_tensor_has_a_row_per_edge_and_a_column_per_feature(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few vertices with very many edges, nothing in forward or backward is as large as the edges' rows would be."""
    width, edges = 32, 20_000
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(60, (2, edges), generator=generator)
    graph = Graph(
        topology=Topology.from_coo(src=src, dst=dst, num_src=60),
        features=torch.randn(60, width, generator=generator),
        num_classes=width,
    )
    stack = build_model(ModelConfig(model=model, hidden=width, heads=4, dropout=0.0), graph)
    graph = stack.prepare(graph)
    # Memory of the pool is no operator's.
    monkeypatch.setattr(POOL, "enabled", False)
    sizes = {}
    for engine in (NaiveEngine(), CompiledEngine(dialect="cpu")):
        with using_engine(engine):
            # Tracing works on tensors of very many rows that are none.
            stack(graph.hops(stack.num_hops), graph.features)
            with Sizes() as noted:
                stack(graph.hops(stack.num_hops), graph.features).sum().backward()
        sizes[type(engine)] = noted.largest
    assert sizes[NaiveEngine] >= edges * width
    assert sizes[CompiledEngine] < edges * width / 4


def test_dropout_at_the_edges_is_the_same_in_the_backward() -> None:
    topology = skewed()
    layer = Layer(lambda m, e: F.dropout(e.src * m.v, 0.4) * e.dst + F.dropout(e.dst, 0.3)).double()
    x = rows(topology).requires_grad_()

    def run(x: Tensor, v: Tensor) -> Tensor:
        torch.manual_seed(0)
        return torch.func.functional_call(layer, {"v": v}, (topology, x))

    with using_engine(CompiledEngine(dialect="cpu")):
        assert torch.equal(run(x, layer.v), run(x, layer.v))
        assert not torch.equal(layer(topology, x), layer(topology, x))
        assert torch.autograd.gradcheck(run, (x, layer.v))


@pytest.mark.parametrize("fused", [True, False])
def test_dropout_of_a_parameter_is_drawn_once(fused: bool) -> None:
    """One mask for all rows, as the layer is written: DropConnect, say."""
    topology, x = random_topology(200, 3000), torch.ones(200, 4)
    layer = Layer(lambda m, e: e.src * F.dropout(m.v, 0.5), lambda m, v, a: a * F.dropout(m.v, 0.5))
    with using_engine(CompiledEngine(options=CompilerOptions(fuse=fused))):
        out = layer(topology, x) / topology.in_degrees().clamp(min=1)[:, None]
        reached = out[topology.in_degrees() > 0]
        assert_close(reached, reached[:1].expand_as(reached))
        assert len({tuple(layer(topology, x).ne(0).any(0).tolist()) for _ in range(50)}) > 1


def products(stage: Any) -> list[fx.Node]:
    return [node for node in stage.module.graph.nodes if node.target is dense.linear]


def test_a_parameter_that_scales_constants_needs_no_wide_gradient() -> None:
    topology, layer = skewed(), GIN(12, 4).double()
    x = declare_constant(rows(topology, 12))
    found = []
    for engine in (NaiveEngine(), CompiledEngine()):
        with using_engine(engine):
            out = layer(topology, x)
        upstream = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(0))
        found.append([out, *torch.autograd.grad(out, list(layer.parameters()), upstream)])
    for plain, compiled in zip(*found, strict=True):
        assert_close(compiled, plain)
    (program,) = engine.programs_of(layer)
    # The MLP's first map goes before the gather, where both ends share its product; then there is the second map.
    assert not program.invariant
    assert len(products(program.src)) == 1
    assert len(products(program.vertex)) == 1
    # The sum is as narrow as the map: what is gathered is kept.
    with using_engine(CompiledEngine()) as engine:
        narrow = GIN(12, 12).double()
        narrow(topology, x)
        (program,) = engine.programs_of(narrow)
    assert program.invariant
    assert len(products(program.vertex)) == 2


def test_a_relu_takes_the_memory_of_a_map_that_only_it_reads() -> None:
    alone = Layer(vertex=lambda m, v, a: F.relu(F.linear(a, m.w, m.v))).double()
    shared = Layer(vertex=lambda m, v, a: F.relu(y := F.linear(a, m.w, m.v)) * y).double()
    for layer, in_place in ((alone, True), (shared, False)):
        engine = assert_compiles_right(layer, skewed(), rows(skewed()))
        program = program_of(layer, skewed(), rows(skewed()), engine)
        targets = [node.target for stage in (program.src, program.vertex) for node in stage.module.graph.nodes]
        assert (dense.relu_ in targets) == in_place


def test_a_sum_takes_the_memory_of_a_map_that_only_it_reads() -> None:
    alone = Layer(vertex=lambda m, v, a: F.relu(a + F.linear(v, m.w))).double()
    shared = Layer(vertex=lambda m, v, a: (y := F.linear(v, m.w)) * (a + y)).double()
    wider = Layer(vertex=lambda m, v, a: F.linear(v, m.w[:1]) + torch.tanh(a)).double()
    for layer, in_place in ((alone, True), (shared, False), (wider, False)):
        engine = assert_compiles_right(layer, skewed(), rows(skewed()))
        program = program_of(layer, skewed(), rows(skewed()), engine)
        assert (dense.add_ in [node.target for node in program.vertex.module.graph.nodes]) == in_place


def test_features_with_gaps_in_memory() -> None:
    topology = skewed()
    layer = Layer(lambda m, e: (e.src.view(-1, 2, 2) * e.dst.reshape(-1, 2, 2)).flatten(1)).double()
    x = torch.randn(4, topology.num_src, dtype=torch.float64).T
    expected, _, _ = results(NaiveEngine(), layer, topology, x.contiguous())
    with using_engine(CompiledEngine()):
        assert_close(layer(topology, x), expected)


def test_gradients_of_gradients_are_refused() -> None:
    topology = skewed()
    layer, x = Layer(lambda m, e: e.src * e.dst).double(), rows(topology).requires_grad_()
    with using_engine(CompiledEngine(dialect="naive")):
        (gradient,) = torch.autograd.grad(layer(topology, x).sum(), x, create_graph=True)
    with pytest.raises(InputError, match="a gradient of a gradient was asked for"):
        gradient.sum().backward()


@pytest.mark.parametrize("model", ["commnet", "gcn", "maxpool-gcn", "gated-gcn", "ggnn", "gat", "tiled"])
def test_checkpoints_compute_the_forward_again(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "SMALLEST_BYTES", 1)
    topology = odd_topologies(types=3)["skewed"]
    graph = Graph(topology=topology, features=rows(topology), num_classes=4, num_edge_types=3)
    if model == "tiled":
        layer: nn.Module = Layer(lambda m, e: F.linear(torch.relu(F.linear(e.src - e.dst, m.w)), m.w)).double()
    else:
        stack = build_model(ModelConfig(model=model, hidden=4, heads=2, dropout=0.0, layers=1), graph).double()
        graph, layer = stack.prepare(graph), stack.layers[0]
    data = {
        name: each.double() if each.is_floating_point() else each for name, each in graph.topology.edge_data.items()
    }
    x, topology = rows(topology).requires_grad_(), graph.topology.with_edge_data(**data)
    gradients = []
    for checkpointed in (False, True):
        if checkpointed:
            out = torch.utils.checkpoint.checkpoint(layer, topology, x, use_reentrant=False)
        else:
            out = layer(topology, x)
        leaves = [x, *layer.parameters()]
        gradients.append(torch.autograd.grad(out.square().sum(), leaves, materialize_grads=True))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("accumulator", ["sum", "mean", "max", "min", "softmax", "concat"])
def test_rows_without_features(accumulator: str) -> None:
    def edge(m: Layer, e: Any) -> Any:
        return (e.data, e.src) if accumulator == "softmax" else e.src

    layer = Layer(edge, accumulator=accumulator, max_degree=99).double()
    assert_compiles_right(layer, skewed(), rows(skewed(), dim=0))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("num_vertices", [300, 60_000])
def test_a_backward_under_autocast_is_that_of_the_forward(num_vertices: int, fused: bool) -> None:
    """The backward of what ran outside of it, or where it was switched off."""
    topology = random_topology(num_vertices, 500)
    torch.manual_seed(0)
    layer, x = SAGE(8, 16), torch.randn(num_vertices, 8, requires_grad=True)
    leaves = [x, *layer.parameters()]
    with using_engine(CompiledEngine(options=CompilerOptions(fuse=fused))):
        expected = torch.autograd.grad(layer(topology, x).square().sum(), leaves)
        out = layer(topology, x).square().sum()
        with torch.autocast("cpu", torch.bfloat16):
            found = torch.autograd.grad(out, leaves)
    for mine, other in zip(found, expected, strict=True):
        assert_close(mine, other, scale=largest(mine, other))


def test_torch_func_may_be_the_first_to_call_a_layer() -> None:
    topology, layer = skewed(), SAGE(4, 3).double()

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        out: Tensor = torch.func.functional_call(layer, parameters, (topology, rows(topology)))
        return (out * out).sum()

    found = torch.func.grad(loss)({name: value.detach() for name, value in layer.named_parameters()})
    loss(dict(layer.named_parameters())).backward()
    for name, parameter in layer.named_parameters():
        assert_close(found[name], parameter.grad)


@pytest.mark.parametrize(
    "product",
    [
        torch.matmul,
        torch.mm,
        lambda x, weight: x @ weight,
        lambda x, weight: (x @ weight).view(-1, 2, 2).flatten(1),
        lambda x, weight: (x @ weight).unflatten(-1, (2, 2)).flatten(1),
    ],
)
def test_sparse_features_stay_sparse_under_a_product_with_a_parameter(product: Callable[..., Tensor]) -> None:
    def edge(layer: Layer, edge: Edge) -> Tensor:
        return product(edge.src, layer.w) * edge.data[:, None]

    layer = Layer(edge, lambda m, v, a: product(v, m.w) + a)
    topology = skewed()
    topology = topology.with_edge_data(weight=torch.rand(topology.num_edges))
    features = rows(topology, dtype=torch.float32).relu()
    stored = sparse(features)
    assert layer.maps_features(topology, stored)
    assert layer.maps_features(topology, stored.to("meta")), "features of another device"
    found = [layer(topology, x) for x in (stored, features)]
    assert_close(*found)
    assert_close(*(torch.autograd.grad(out.square().sum(), layer.w)[0] for out in found))
