"""A plugin of pytest that compares each layer that a test of PyTorch Geometric calls with the adapter of sagann.

``pytest -p tests.interop.pyg_peers`` runs the tests of PyG as they are. Where one of them calls a layer with dense rows and ``edge_index``, a copy
of the layer is called once more by PyG, without dropout, and other copies by sagann, with both engines: rows and gradients. What was found is
written to the file that the environment variable SAGANN_PEERS_OUT names: a table of JSON by layer, with the numbers of its calls and the reasons.
No patch is undone: the process is for this alone.
"""

from __future__ import annotations

import copy
import inspect
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import torch_geometric.nn.conv
from torch import Tensor, nn
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing

from sagann.errors import SagannError
from sagann.graph import Graph, Topology
from sagann.runtime.in_memory.engine import CompiledEngine
from sagann.saga.engine import NaiveEngine, using_engine
from tests.interop.pyg_models import DATA, prepared
from tests.tolerances import assert_close, largest

MAX_CALLS = 4
"Number of calls of a layer that are compared in one test function, with any parameters."

_table: dict[str, Counter[str]] = {}
_num_calls: Counter[tuple[str, str]] = Counter()
_is_inside: ContextVar[bool] = ContextVar("is_inside", default=False)

# Reads one argument of a layer, of the vertex rows, the edges and the edge data by name.
Reader = Callable[[Tensor, Any, Mapping[str, Any]], Any]


class NotComparedError(Exception):
    """A call that is not of the kind that is compared."""


class OneLayer(nn.Module):
    """A model that calls one layer as a test of PyG did."""

    def __init__(self, conv: nn.Module, readers: Mapping[str, Reader]) -> None:
        super().__init__()
        self.conv, self.readers = conv, readers

    def forward(
        self, x: Tensor, edge_index: Any, edge_weight: Any = None, edge_attr: Any = None, edge_type: Any = None
    ) -> Tensor:
        stored = {"edge_weight": edge_weight, "edge_attr": edge_attr, "edge_type": edge_type}
        return self.conv(**{name: read(x, edge_index, stored) for name, read in self.readers.items()})


class Call:
    """The arguments of a call, as readers of a graph's features and edge data."""

    def __init__(self, conv: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = inspect.signature(type(conv).forward).bind(conv, *args, **kwargs).arguments
        given.pop("self", None) or given.pop(next(iter(given)))
        self.edges = given.get("edge_index")
        is_plain = isinstance(self.edges, Tensor) and not isinstance(self.edges, EdgeIndex)
        if not is_plain or self.edges.layout != torch.strided:
            raise NotComparedError("edges that are no tensor [2, E]")
        first = next(iter(given.values()))
        first = first[0] if isinstance(first, tuple) else first
        if not isinstance(first, Tensor) or first.layout != torch.strided or not first.is_floating_point():
            raise NotComparedError("vertices that have no dense rows")
        self.node_dim = getattr(conv, "node_dim", -2) % first.ndim
        if self.node_dim != 0:
            raise NotComparedError("rows of several graphs at once")
        self.num_rows = len(first)
        if not self.num_rows:
            raise NotComparedError("no vertices")
        self.columns: list[Tensor] = []
        self.edge_data: dict[str, Tensor] = {}
        self.readers = {name: self._reader(name, value) for name, value in given.items()}

    def graph(self) -> Graph:
        src, dst = self.edges
        topology = Topology.from_coo(src=src, dst=dst, num_src=self.num_rows, edge_data=self.edge_data)
        types = int(self.edge_data["type"].max()) + 1 if "type" in self.edge_data else 0
        return Graph(topology=topology, features=torch.cat(self.columns, dim=1), num_edge_types=types)

    def _reader(self, name: str, value: Any) -> Reader:
        if name == "edge_index":
            return lambda x, edges, stored: edges
        if name in DATA and isinstance(value, Tensor) and len(value) == self.edges.shape[1]:
            self.edge_data[DATA[name]] = value.detach()
            return lambda x, edges, stored: stored[name]
        if name in ("size", "num_nodes"):
            if value not in (None, self.num_rows, (self.num_rows, self.num_rows)):
                raise NotComparedError("sources and destinations that are not the same")
            return lambda x, edges, stored: None
        if isinstance(value, tuple) and any(isinstance(each, Tensor) for each in value):
            parts = [self._reader(name, each) for each in value]
            return lambda x, edges, stored: tuple(read(x, edges, stored) for read in parts)
        if not isinstance(value, Tensor):
            return lambda x, edges, stored: value
        if name.startswith("edge_") or len(value) != self.num_rows or not value.is_floating_point():
            raise NotComparedError(f"argument {name} {tuple(value.shape)}, for {self.num_rows} vertices")
        start = sum(each.shape[1] for each in self.columns)
        self.columns.append(value.detach().reshape(self.num_rows, -1))
        stop, shape = start + self.columns[-1].shape[1], value.shape[1:]
        return lambda x, edges, stored: x[:, start:stop].reshape(len(x), *shape)


def compared(conv: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """'equal', or what else came of the call, and why."""
    try:
        if conv._forward_pre_hooks or conv._forward_hooks:
            raise NotComparedError("hooks of PyTorch")
        call = Call(conv, args, kwargs)
        graph = call.graph()
        try:
            twin = _twin(conv)
            expected = _with_gradients(twin, twin, *args, **kwargs)
        except Exception as error:
            raise NotComparedError("a layer whose copy does not run") from error
        if not isinstance(expected[0], Tensor):
            raise NotComparedError("a result that is no tensor")
        for engine in (NaiveEngine(), CompiledEngine()):
            with using_engine(engine):
                model, *given = prepared(OneLayer(_twin(conv), call.readers), graph)
                found = _with_gradients(model, model.model.conv, *given)
            assert_close(found[0], expected[0])
            for actual, wanted in zip(found[1:], expected[1:], strict=True):
                # Where a gradient is zero, only rounding is left of it.
                assert_close(actual, wanted, scale=largest(*expected[1:]))
    except NotComparedError as error:
        return f"not compared: {error}"
    except SagannError as error:
        return f"refused: {str(error).splitlines()[0]}"
    except AssertionError as error:
        return f"different: {' '.join(str(error).split())}"
    except Exception as error:  # noqa: BLE001  (of any kind: the table names it)
        return f"broken: {type(error).__name__}: {' '.join(str(error).split())}"
    return "equal"


def _with_gradients(model: nn.Module, conv: nn.Module, *args: Any, **kwargs: Any) -> list[Any]:
    """What a model returns, and its gradients with respect to the layer's parameters; zeros where there are none."""
    with torch.enable_grad():
        out = model(*args, **kwargs)
        parameters = [each for each in conv.parameters() if each.requires_grad]
        if not isinstance(out, Tensor) or not parameters or not out.requires_grad:
            return [out]
        weights = torch.linspace(1.0, 2.0, out.numel()).reshape(out.shape)
        gradients = torch.autograd.grad((out * weights).sum(), parameters, materialize_grads=True)
    return [out.detach(), *gradients]


def _twin(conv: nn.Module) -> nn.Module:
    """A copy of a layer, without dropout."""
    # Some layers keep the attention of a training step, which cannot be copied.
    memo = {id(value): None for value in vars(conv).values() if isinstance(value, Tensor) and not value.is_leaf}
    return copy.deepcopy(conv, memo).eval()


def _called(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a layer, and compare it where no other layer has called it."""
    if _is_inside.get():
        return nn.Module.__call__(self, *args, **kwargs)
    token = _is_inside.set(True)
    state = torch.get_rng_state()
    try:
        out = nn.Module.__call__(self, *args, **kwargs)
        state = torch.get_rng_state()
        name, test = _name_of(type(self)), os.environ["PYTEST_CURRENT_TEST"].split("[")[0]
        if _num_calls[name, test] < MAX_CALLS and not torch.jit.is_tracing():
            with torch.no_grad():
                found = compared(self, args, kwargs)
            _table.setdefault(name, Counter())[found] += 1
            _num_calls[name, test] += not found.startswith("not compared")
        return out
    finally:
        torch.set_rng_state(state)
        _is_inside.reset(token)


def _name_of(kind: type) -> str:
    return kind.__name__ if kind.__module__.startswith("torch_geometric.") else f"{kind.__module__}.{kind.__name__}"


def pytest_configure() -> None:
    """Have all layers of PyG compare their calls."""
    layers = {getattr(torch_geometric.nn.conv, name) for name in torch_geometric.nn.conv.__all__}
    for layer in {MessagePassing} | {each for each in layers if not issubclass(each, MessagePassing)}:
        layer.__call__ = _called


def pytest_runtest_setup() -> None:
    """Have each test draw the same numbers in every run."""
    torch.manual_seed(0)


def pytest_sessionfinish() -> None:
    """Write the table."""
    found = {name: dict(calls) for name, calls in sorted(_table.items())}
    Path(os.environ["SAGANN_PEERS_OUT"]).write_text(json.dumps(found, indent=1))
