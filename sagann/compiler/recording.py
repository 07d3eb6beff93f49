"""Recording: a model's forward traced once, with every call of a SAGA layer as one node.

While the model runs in the trace, a recorder stands where its engine would: it compiles the layer that is called and leaves
a node in its place. The hops that the model passes on are stand-ins, of which nothing can be read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from sagann.compiler.compile import CallForm, CompilerOptions
from sagann.compiler.layer_graph import LayerGraphs, layer_graphs
from sagann.compiler.model_program import EdgeType
from sagann.compiler.operators import WholeOperators, traced_batch_norms
from sagann.compiler.program import LayerGather
from sagann.compiler.row_check import CHANGES, OTHER_ROWS, check_sizes
from sagann.compiler.trace import ROWS, TraceError, check_trace, said_in_rows, tensors_of, traced
from sagann.errors import InputError, LayerError, in_one_line, line_of_error
from sagann.graph.topology import Topology
from sagann.saga.batch_norms import batch_norms_over_rows
from sagann.saga.engine import EdgeData, Engine, VertexRows, using_engine
from sagann.saga.layer import SagaLayer
from sagann.saga.row_runs import sampled_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedLayer:
    """A layer of the model."""

    twin: SagaLayer
    "A copy, which is what gets compiled: while the model is traced, its parameters are the trace's."
    modules: Mapping[str, str]
    "Names of its modules in the model, by their names in the layer."


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of a layer."""

    layer: RecordedLayer
    graphs: LayerGraphs
    inputs: tuple[str, ...]
    "The layer's names for the vertex rows that it is called with, in the order of the node's arguments."
    factors: Mapping[str, tuple[int, str]]
    "Hop and name of the edge data that are read as a product of rows of vertices, by the layer's names for the data."
    first_gather: int
    "Number of the first of its gathers, of all calls'."


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathering:
    """One of the gathers of a call."""

    gather: LayerGather
    edge_data: Mapping[str, str]
    "Names of the hop's edge data that it reads, by the layer's names for them."
    hop: int
    "Number of the first hop with these edges; the numbers of edges of one type follow those of the hops."
    part: int
    "Number of the part of a call that it belongs to, of all calls': its gathers draw the same random numbers."


class _Hop(Topology):
    """Stands for a topology in a trace: as many vertices as a trace has rows, and nothing else to read."""

    __slots__ = ("number", "on", "real")

    def __init__(self, number: int, topology: Topology, on: torch.device, num_rows: int) -> None:
        self.number = number
        self.on = on
        self.real = topology
        self.num_src = num_rows
        self.remote = None

    @property
    def num_dst(self) -> int:
        return self.num_src

    @property
    def device(self) -> torch.device:
        return self.on

    @property
    def edge_data(self) -> Mapping[str, Any]:
        """The names, and stand-ins."""
        return {name: _EdgeData(name) for name in self.real.edge_data}

    def require_unwritten(self) -> None:
        """A hop has no arrays that could be changed."""

    def __getattr__(self, name: str) -> Any:
        raise TraceError(f"it reads '{name}' of a hop, which it may only pass on to its layers")


class _EdgeData:
    """Stands for edge data of a hop: it is there, and nothing of it can be read."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        next(leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, cls)).read()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Tensor's: a model that asks whether there is edge data goes on as it would with it."""
        return Tensor

    def read(self, *_: object) -> NoReturn:
        """Refuse."""
        raise TraceError(f"it reads '{self.name}', edge data of a hop, which only its layers may")

    __getattr__ = __getitem__ = __len__ = __iter__ = __contains__ = __bool__ = __float__ = __int__ = read
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = read
    __matmul__ = __neg__ = __abs__ = __invert__ = __and__ = __or__ = __lt__ = __le__ = __gt__ = __ge__ = read
    __eq__ = __ne__ = read


class Recorder(Engine):
    """The engine of a trace: compiles each layer that is called, and leaves a node in its place."""

    def __init__(
        self,
        model: nn.Module,
        hops: Sequence[Topology],
        options: CompilerOptions,
        *,
        x_is_constant: bool,
        x_is_sparse: bool,
    ) -> None:
        self.where = f"{type(model).__name__}.forward"
        "For messages."
        self.tensors = tensors_of(model)
        "Parameters and buffers, by name: those of the model, whatever stands in their place in the trace."
        # A module that several layers share has one name in the model.
        names = {id(module): name for name, module in model.named_modules()}
        self.layers = {
            id(layer): RecordedLayer(
                twin=_twin(layer), modules={inner: names[id(module)] for inner, module in layer.named_modules()}
            )
            for layer in model.modules()
            if isinstance(layer, SagaLayer)
        }
        self.norms = batch_norms_over_rows(model)
        "BatchNorms that compute means over vertices or edges, by name."
        self.hops = hops
        self.options = options
        self.x_is_constant, self.x_is_sparse = x_is_constant, x_is_sparse
        self.x: Tensor | None = None
        "The features, as the model gets them in the trace."
        self.calls: list[Call] = []
        self.gathers: list[Gathering] = []
        "Of all calls."
        self.edge_types: list[EdgeType] = []
        "What is gathered over by itself."
        self.num_types: dict[tuple[int, str], int] = {}
        "By hop and edge data: below how many its types must be."

    def run(self, layer: SagaLayer, topology: Topology, x: VertexRows, data: EdgeData) -> Tensor:
        """Record a call."""
        rows = _dense(x)
        if not isinstance(topology, _Hop):
            raise TraceError(f"the layer {type(layer).__name__} is called with a topology that is none of the hops")
        if id(layer) not in self.layers:
            raise TraceError(f"the layer {type(layer).__name__} is no module of the model")
        # In a thread of its own, which no mode of the trace reaches, but which holds the lock of models as this one does.
        with ThreadPoolExecutor(max_workers=1) as thread:
            # Rows as wide as the features may be features under dropout.
            is_sparse = self.x_is_sparse and any(
                self.x is not None and each.shape[1:] == self.x.shape[1:] for each in rows.values()
            )
            constant = self.x_is_constant and all(each is self.x for each in rows.values()) and not is_sparse
            forms = {name: (each.shape[1:], each.dtype) for name, each in rows.items()}
            compile_call = partial(self._compiled, layer, topology, forms, constant, is_sparse)
            call = thread.submit(copy_context().run, compile_call).result()
        self.calls.append(call)
        self._add_gathers(call.graphs, topology.number, layer.edge_data_names())
        return self.leave_node(len(self.calls) - 1, rows)

    def leave_node(self, number: int, rows: Mapping[str, Tensor]) -> Tensor:
        """The node of a call in the place of what the layer returns for these rows."""
        like = self.calls[number].graphs.parts[0].output.meta["val"]
        given = [rows[name] for name in self.calls[number].inputs]
        out: Tensor = torch.ops.sagann.saga_layer(given, number, list(like.shape[1:]), like.dtype)
        return out

    def _compiled(
        self,
        layer: SagaLayer,
        hop: _Hop,
        forms: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
        constant: bool,
        is_sparse: bool,
    ) -> Call:
        known = self.layers[id(layer)]
        like = {
            name: torch.empty(1, *shape, dtype=dtype, device=hop.device) for name, (shape, dtype) in forms.items()
        }
        # A layer is compiled on the device where the model computes, wherever the edge data lie.
        names = layer.edge_data_names()
        data = {key: sampled_rows(hop.real.edge_data[name]).to(hop.device) for key, name in names.items()}
        known.twin.check_functions(like, data, again=True)
        factored, itemsize = factored_data(hop.real), max(each.itemsize for each in like.values())
        # A product of two factors has not the bits of a weight, so it must be as exact as the rows.
        factors = {
            key: (hop.number, name)
            for key, name in names.items()
            if name in factored and data[key].itemsize >= itemsize
        }
        form = CallForm(vertices=like, edges=data, options=self.options, is_constant=constant, is_sparse=is_sparse)
        graphs = layer_graphs(known.twin, replace(form, factored=frozenset(factors)))
        first = len(self.gathers)
        return Call(layer=known, graphs=graphs, inputs=tuple(forms), factors=factors, first_gather=first)

    def _add_gathers(self, graphs: LayerGraphs, hop: int, edge_data: Mapping[str, str]) -> None:
        if graphs.num_types:
            types = edge_data[graphs.types]
            known = self.num_types.get((hop, types), graphs.num_types)
            self.num_types[hop, types] = min(known, graphs.num_types)
        for number, graph in enumerate(graphs.parts):
            edges = hop
            if len(graphs.parts) > 1:
                edge_type = EdgeType(hop=hop, data=edge_data[graphs.types], type=number)
                if edge_type not in self.edge_types:
                    self.edge_types.append(edge_type)
                edges = len(self.hops) + self.edge_types.index(edge_type)
            part = len(self.gathers)
            self.gathers += [
                Gathering(gather=gather, edge_data=edge_data, hop=edges, part=part) for gather in graph.gathers
            ]


class _Again(Engine):
    """The engine of a second trace: the calls of the first one, in their order."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._num_calls = 0

    def run(self, layer: SagaLayer, topology: Topology, x: VertexRows, data: EdgeData) -> Tensor:
        """Leave the next call's node."""
        number, calls = self._num_calls, self._recorder.calls
        if number == len(calls) or calls[number].layer is not self._recorder.layers.get(id(layer)):
            raise TraceError(CHANGES)
        self._num_calls += 1
        rows = _dense(x)
        if set(rows) != set(calls[number].inputs):
            raise TraceError(CHANGES)
        return self._recorder.leave_node(number, rows)


def factored_data(hop: Topology) -> list[str]:
    """Names of a hop's edge data that are computed from degrees. In half precision a product of two would be less exact than a weight."""
    return [name for name, rows in hop.edge_data.items() if rows.itemsize >= 4 and hop.is_by_degree(name)]


def _dense(x: VertexRows) -> dict[str, Tensor]:
    """A call's rows: a trace is of dense ones."""
    return {name: rows for name, rows in x.items() if isinstance(rows, Tensor)}


def _twin(layer: SagaLayer) -> SagaLayer:
    """A copy of a layer that reads the tensors among its attributes where they are."""
    parts = ("_parameters", "_buffers", "_modules")
    attributes = [value for module in layer.modules() for name, value in vars(module).items() if name not in parts]
    found = (leaf for leaf in pytree.tree_leaves(attributes) if isinstance(leaf, Tensor))
    shared = {id(tensor): tensor for tensor in found if not tensor.requires_grad}
    try:
        return copy.deepcopy(layer, shared)
    except (RuntimeError, TypeError) as error:
        # Tensors with a history, locks, open files.
        raise LayerError(
            f"a layer that is streamed must be copyable: {in_one_line(error)} (in "
            f"{', '.join(_uncopyable(layer)) or type(layer).__name__})",
            hint="Make what is computed of parameters where it is used, and keep only parameters, buffers and plain values "
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


def traced_model(model: nn.Module, recorder: Recorder, x: Tensor) -> fx.GraphModule:
    """The model's forward as a graph, in which every call of a layer is a node. The recorder gets the calls; of ``x``, widths, type
    and device are read. A model that does what a trace does not show raises :class:`LayerError`."""
    # Hops over the same edges have one number.
    known = {id(topology): number for number, topology in reversed(list(enumerate(recorder.hops)))}

    def graph(engine: Recorder | _Again, num_rows: int) -> fx.GraphModule:
        hops = [_Hop(known[id(topology)], topology, x.device, num_rows) for topology in recorder.hops]

        def run(rows: Tensor) -> Tensor:
            recorder.x = rows
            with WholeOperators():
                result: Tensor = model(hops, rows)
            return result

        with using_engine(engine), traced_batch_norms(model):
            return traced(model, {"x": x}, run, num_rows=num_rows)[0]

    try:
        module = graph(recorder, ROWS)
        check_sizes(module, graph(_Again(recorder), OTHER_ROWS))
        check_trace(module)
    except TraceError as error:
        raise cannot_be_captured(model, str(error), error) from error
    except InputError as error:
        if (said := said_in_rows(error.message)) == error.message:
            raise
        # Every hop has as many vertices as the trace has rows.
        found = "a layer gets a topology that is none of the hops, or features that are not a row per vertex"
        raise cannot_be_captured(model, f"{found}: {said}", error) from error
    return module


def cannot_be_captured(model: nn.Module, problem: str, error: Exception) -> LayerError:
    """The error about a model that does what a trace does not show; it names the user's line if the model failed there."""
    line = line_of_error(error.__cause__ or error, otherwise="")
    where = f"{type(model).__name__}.forward{line and ', '}{line}"
    return LayerError(
        f"the model cannot be captured: {problem} (in {where})",
        hint="Build it of SAGA layers, which get their hop as it is passed, and of operators on rows.",
    )
