"""Capture: a model of SAGA layers and row-wise operators becomes stages of vertices and the gathers between them.

The model's forward is traced once with every layer as one node; the layers' compiled graphs are then put in the
nodes' places. What is left is one graph of row-wise operators in which gathers alone reach from vertex to vertex, so it
falls into stages: stage k reads what gather k - 1 gave, and computes what gather k reads. A value that later stages need
as well is stored where it is made. A stage runs on any rows, a gather on any part of the edges.

References:
    Ma et al., NGra, 2018, Sec. 3.1, and NeuGraph, USENIX ATC 2019, Sec. 3.2: the dataflow of chunks. We differ in
    tracing whole models, so that what stands between layers is part of it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.stateless import _reparametrize_module

from sagann.compiler.compile import LayerGraph, layer_graph
from sagann.compiler.fuse_rows import fuse_rows
from sagann.compiler.model_program import Form, Gather, ModelProgram
from sagann.compiler.operators import GATHER, WholeOperators
from sagann.compiler.options import CompilerOptions
from sagann.compiler.program import Stage
from sagann.compiler.rewrite import name_of
from sagann.compiler.row_check import draws, mixing_node
from sagann.compiler.stages import cut
from sagann.compiler.trace import (
    ROWS,
    TraceError,
    attributes_restored,
    check_trace,
    fake_rows,
    make_graph,
    merge_equal,
    tensors_of,
)
from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.saga.engine import current_engine, using_engine
from sagann.saga.independence import NUM_ROWS
from sagann.saga.layer import SagaLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class _Layer:
    """A layer of the model."""

    twin: SagaLayer
    "A copy, which is what gets compiled: while the model is traced, its parameters are the trace's."
    modules: Mapping[str, str]
    "Names of its modules in the model, by their names in the layer."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """One call of a layer."""

    layer: _Layer
    graph: LayerGraph
    edge_data: str | None
    hop: int


@torch.library.custom_op("sagann::saga_layer", mutates_args=())
def _saga_layer(x: Tensor, call: int, shape: Sequence[int]) -> Tensor:
    raise AssertionError("stands in traces only")


@_saga_layer.register_fake
def _(x: Tensor, call: int, shape: Sequence[int]) -> Tensor:
    return x.new_empty(x.shape[0], *shape)


@torch.library.custom_op("sagann::gathered", mutates_args=())
def _gathered(values: Sequence[Tensor], call: int) -> Tensor:
    raise AssertionError("stands in traces only")


CAPTURING = threading.RLock()
"""Held while a model is traced. Its parameters are the trace's for so long, and its layers run by the trace's engine: no
other thread may read or run them."""

_LAYER = torch.ops.sagann.saga_layer.default
_GATHERED = torch.ops.sagann.gathered.default


def capture(
    model: nn.Module,
    hops: Sequence[Topology],
    x: Tensor,
    *,
    options: CompilerOptions | None = None,
    x_is_constant: bool = False,
) -> ModelProgram:
    """Capture ``model(hops, x)``.

    Args:
        model: an ordinary module; its SAGA layers are called with the hops.
        hops: the topologies it walks, all over the same vertices; their edges are not read.
        x: vertex features, whose values are not read.
        options: what the compiler may do to a layer.
        x_is_constant: x and edge data need no gradient, so that what is gathered from them may be kept.
    Raises:
        LayerError: an operator between the layers mixes vertices, or the model does what a trace does not show; the
            message names it.
    """
    with CAPTURING:
        recorder = _Recorder(model, hops, options or CompilerOptions(), x_is_constant)
        module = _traced(model, recorder, x)
    for node in [node for node in module.graph.nodes if node.target is _LAYER]:
        _inline(module, node, recorder.calls[int(node.args[1])], int(node.args[1]))
    _own_output(module)
    module.graph.eliminate_dead_code()
    merge_equal(module)
    return _Assembly(module, recorder.calls, recorder.options.fuse).run()


class _Hop(Topology):
    """Stands for a topology in a trace: as many vertices as a trace has rows, and nothing else to read."""

    __slots__ = ("number", "real")

    def __init__(self, number: int, topology: Topology) -> None:
        self.number = number
        self.real = topology
        self.num_src = ROWS

    @property
    def num_dst(self) -> int:
        return ROWS

    @property
    def device(self) -> torch.device:
        return self.real.device

    @property
    def edge_data(self) -> Mapping[str, Any]:
        """The names alone."""
        return dict.fromkeys(self.real.edge_data)

    def __getattr__(self, name: str) -> Any:
        raise TraceError(f"it reads '{name}' of a hop, which it may only pass on to its layers")


class _Recorder:
    """The engine of a trace: compiles each layer that is called, and leaves a node in its place."""

    def __init__(
        self, model: nn.Module, hops: Sequence[Topology], options: CompilerOptions, x_is_constant: bool
    ) -> None:
        # A module that several layers share has one name in the model.
        names = {id(module): name for name, module in model.named_modules()}
        self.layers = {
            id(layer): _Layer(
                twin=_twin(layer),
                modules={inner: names[id(module)] for inner, module in layer.named_modules()},
            )
            for layer in model.modules()
            if isinstance(layer, SagaLayer)
        }
        self.hops = hops
        self.options = options
        self.x_is_constant = x_is_constant
        self.x: Tensor | None = None
        "The features, as the model gets them in the trace."
        self.calls: list[_Call] = []
        self._thread = threading.get_ident()
        self._engine_of_others = current_engine()

    def run(self, layer: SagaLayer, topology: Topology, x: Tensor, data: Tensor | None) -> Tensor:
        """Record a call."""
        if threading.get_ident() != self._thread:
            return self._engine_of_others.run(layer, topology, x, data)
        if not isinstance(topology, _Hop):
            raise TraceError(f"the layer {type(layer).__name__} is called with a topology that is none of the hops")
        if id(layer) not in self.layers:
            raise TraceError(f"the layer {type(layer).__name__} is no module of the model")
        # In a thread of its own, which no mode of the trace reaches.
        with ThreadPoolExecutor(max_workers=1) as thread:
            constant = self.x_is_constant and x is self.x
            call = thread.submit(self._compiled, layer, topology, x.shape[1:], x.dtype, constant).result()
        self.calls.append(call)
        shape = list(call.graph.output.meta["val"].shape[1:])
        out: Tensor = torch.ops.sagann.saga_layer(x, len(self.calls) - 1, shape)
        return out

    def _compiled(
        self, layer: SagaLayer, hop: _Hop, shape: tuple[int, ...], dtype: torch.dtype, constant: bool
    ) -> _Call:
        known = self.layers[id(layer)]
        like = torch.empty(1, *shape, dtype=dtype, device=hop.device)
        data = None if layer.edge_data is None else hop.real.edge_data[layer.edge_data]
        known.twin.check_functions(like, data)
        graph = layer_graph(known.twin, like, data, options=self.options, x_is_constant=constant)
        return _Call(layer=known, graph=graph, edge_data=layer.edge_data, hop=hop.number)


def _twin(layer: SagaLayer) -> SagaLayer:
    """A copy of a layer."""
    try:
        return copy.deepcopy(layer)
    except (RuntimeError, TypeError) as error:
        # Tensors with a history, locks, open files.
        raise LayerError(
            "a layer that is streamed must be copyable",
            value=str(error).splitlines()[0],
            where=", ".join(_uncopyable(layer)) or type(layer).__name__,
            fix="Make what is computed of parameters where it is used, and keep only parameters, buffers and plain values "
            "as attributes.",
        ) from error


def _uncopyable(layer: nn.Module) -> Iterator[str]:
    """The attributes that stand in the way of a copy."""
    for module in layer.modules():
        for name, value in vars(module).items():
            try:
                copy.deepcopy(value)
            except (RuntimeError, TypeError):
                if name != "_modules":
                    yield f"{type(module).__name__}.{name}"


def _traced(model: nn.Module, recorder: _Recorder, x: Tensor) -> fx.GraphModule:
    tensors = tensors_of(model)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    parameters = [fake.from_tensor(tensor.detach()) for tensor in tensors.values()]
    # Hops over the same edges have one number.
    known = {id(topology): number for number, topology in reversed(list(enumerate(recorder.hops)))}
    hops = [_Hop(known[id(topology)], topology) for topology in recorder.hops]

    def whole(*args: Tensor) -> Tensor:
        with _reparametrize_module(model, dict(zip(tensors, args, strict=False))), WholeOperators():
            recorder.x = args[-1]
            result: Tensor = model(hops, args[-1])
        return result

    try:
        with using_engine(recorder), attributes_restored(model):
            module = make_graph(fake, whole, *parameters, fake_rows(fake, x))
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        for node, name in zip(placeholders, [*tensors, None], strict=True):
            node.meta["parameter"] = name
            node.name = node.target = "x" if name is None else f"parameter_{name.replace('.', '_')}"
        check_trace(module)
    except TraceError as error:
        raise LayerError(
            "the model cannot be captured",
            value=str(error),
            where=f"{type(model).__name__}.forward",
            fix="Build it of SAGA layers, which get their hop as it is passed, and of operators on rows.",
        ) from error
    return module


def _inline(module: fx.GraphModule, node: fx.Node, call: _Call, number: int) -> None:
    """Put the layer's graph in its node's place."""
    layer = call.graph
    x = node.args[0]
    assert isinstance(x, fx.Node)
    parameters = {each.meta["parameter"]: each for each in module.graph.nodes if each.op == "placeholder"}
    copies: dict[fx.Node, fx.Node] = {}

    def in_model(name: str) -> str:
        module, _, tensor = name.rpartition(".")
        return f"{call.layer.modules[module]}.{tensor}".removeprefix(".")

    def copied(original: fx.Node) -> fx.Node:
        if original not in copies:
            copies[original] = made(original)
        return copies[original]

    def made(original: fx.Node) -> fx.Node:
        if original.op == "placeholder":
            name = original.meta["parameter"]
            return x if name is None else parameters[in_model(name)]
        if original.target is GATHER:
            read = [copied(each) for each in layer.frontier if each.meta["place"] != "edge"]
            new = module.graph.call_function(_GATHERED, (read, number))
        elif original.op == "get_attr":
            name = f"constant_{number}_{original.target}"
            setattr(module, name, getattr(layer.module, str(original.target)))
            new = module.graph.get_attr(name)
        else:
            for argument in original.all_input_nodes:
                copied(argument)
            new = module.graph.node_copy(original, copies.__getitem__)
        new.meta = dict(original.meta)
        return new

    with module.graph.inserting_before(node):
        node.replace_all_uses_with(copied(layer.output))
    module.graph.erase_node(node)


def _own_output(module: fx.GraphModule) -> None:
    """Have the last stage give the result, also where that is what was gathered, or the features."""
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    result = end.args[0]
    if isinstance(result, fx.Node) and (result.target is _GATHERED or result.op == "placeholder"):
        with module.graph.inserting_before(end):
            own = module.graph.call_function(torch.ops.aten.clone.default, (result,))
        own.meta = dict(result.meta)
        end.args = (own,)


class _Assembly:
    """Cuts the whole graph into stages."""

    def __init__(self, module: fx.GraphModule, calls: Sequence[_Call], fuse: bool) -> None:
        self.module = module
        self.fuse = fuse
        self.calls = calls
        self.nodes = list(module.graph.nodes)
        self.gathers = [node for node in self.nodes if node.target is _GATHERED]
        self.stage_of: dict[fx.Node, int] = {}
        for node in self.nodes:
            self._place(node)

    def _place(self, node: fx.Node) -> None:
        """Whether the node is a parameter's or the vertices', and the first stage that can compute it."""
        read = node.all_input_nodes
        self.stage_of[node] = max((self._available(each) for each in read), default=0)
        if node.op == "placeholder":
            node.meta["place"] = "param" if node.meta["parameter"] is not None else "vertex"
            return
        value = node.meta.get("val")
        has_rows = isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == ROWS
        of_parameters = all(each.meta["place"] == "param" for each in read) and not has_rows
        node.meta["place"] = "param" if of_parameters and node.op != "output" else "vertex"

    def _available(self, node: fx.Node) -> int:
        """The first stage that can read a node."""
        return self.gathers.index(node) + 1 if node.target is _GATHERED else self.stage_of[node]

    def run(self) -> ModelProgram:
        """Cut."""
        (output,) = (node.args[0] for node in self.nodes if node.op == "output")
        if not isinstance(output, fx.Node) or output.meta["place"] != "vertex":
            raise LayerError(
                "the model must return one tensor with a row per vertex",
                value="forward returns something else",
                where="the model",
                fix="Return the rows of the vertices, and nothing else.",
            )
        placeholders = [node for node in self.nodes if node.op == "placeholder"]
        parameters = [node for node in placeholders if node.meta["parameter"] is not None]
        derived = [
            node
            for node in self.nodes
            if node.op != "placeholder"
            and node.meta["place"] == "param"
            and isinstance(node.meta.get("val"), Tensor)
            and any(user.meta["place"] == "vertex" for user in node.users)
        ]
        (x,) = (node for node in placeholders if node.meta["parameter"] is None)
        known = [*parameters, *derived, x, *self.gathers]
        stages = []
        stored: list[fx.Node] = []
        for number in range(len(self.gathers) + 1):
            wanted = [node for node in self.nodes if self._is_stored(node, number, output)]
            stages.append(self._stage(wanted, [*known, *stored]))
            stored += wanted
        param, gathers = cut(self.module, derived, parameters), tuple(map(self._gather, self.gathers))
        computed = [node for stage in (param, *stages) for node in stage.module.graph.nodes]
        return ModelProgram(
            parameters=tuple((node.name, node.meta["parameter"]) for node in parameters),
            param=param,
            stages=tuple(stages),
            gathers=gathers,
            random=any(map(draws, computed)) or any(gather.edges.random for gather in gathers),
            output=output.name,
            forms={node.name: _form(node) for node in [x, *self.gathers, *stored]},
        )

    def _stage(self, wanted: list[fx.Node], given: list[fx.Node]) -> Stage:
        stage = cut(self.module, wanted, given, in_place=True)
        inputs = [node for node in stage.module.graph.nodes if node.op == "placeholder"]
        mixing = mixing_node(stage.module, [_made_up(node.meta["val"]) for node in inputs])
        if mixing is not None:
            raise LayerError(
                "a model that is streamed must treat vertices independently between its layers",
                value=f"operator {name_of(mixing)} mixes them, or depends on their number",
                where=mixing.meta.get("line") or mixing.meta.get("stack_trace") or "the model's forward",
                fix="Reduce over feature dimensions only; to normalise, use LayerNorm instead of BatchNorm.",
            )
        return fuse_rows(stage)[0] if self.fuse else stage

    def _is_stored(self, node: fx.Node, stage: int, output: fx.Node) -> bool:
        """Whether the stage computes the node for somebody else: a gather, a later stage, the caller."""
        if node.op != "call_function" or node.meta["place"] != "vertex" or self.stage_of[node] != stage:
            return False
        if node.target is _GATHERED or not isinstance(node.meta.get("val"), Tensor):
            return False
        return node is output or any(
            user.target is _GATHERED or self.stage_of[user] > stage for user in node.users if user.op != "output"
        )

    def _gather(self, node: fx.Node) -> Gather:
        read, number = _gathered_parts(node)
        call, rows = self.calls[number], iter(read)
        names = {
            each.name: call.edge_data if each.meta["place"] == "edge" else next(rows).name
            for each in call.graph.frontier
        }
        return Gather(
            edges=call.graph.edges,
            inputs=tuple(str(names[name]) for name in call.graph.edges.stage.inputs),
            result=node.name,
            hop=call.hop,
            constant=call.graph.constant,
        )


def _gathered_parts(node: fx.Node) -> tuple[Sequence[fx.Node], int]:
    """What a gather reads, and the number of its call."""
    arguments: Any = node.args
    read, number = arguments
    return read, number


def _form(node: fx.Node) -> Form:
    value = node.meta["val"]
    return Form(shape=tuple(value.shape[1:]), dtype=value.dtype)


def _made_up(like: Tensor) -> Tensor:
    """Values for a check: random ones, with few rows where the trace has very many."""
    shape = [NUM_ROWS if size == ROWS else size for size in like.shape]
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2
    return values.to(like.dtype)
