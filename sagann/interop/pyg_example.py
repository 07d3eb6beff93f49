"""The made-up vertices on which a model of PyTorch Geometric runs first, to be read and to be compared with what PyG computes."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from sagann.errors import LayerError, SagannError, in_one_line, line_of_error
from sagann.graph import Graph, Topology
from sagann.nn.model_call import EDGE_ARGUMENTS, called, convs_of, parameters_of, takes_data
from sagann.saga.side_effects import taken_back

NUM_ROWS = 13
"Number of made-up vertices."
ROW_CACHES = ("_cached_x", "_cached_h")
"Attributes in which layers of PyG keep the rows that they have propagated."
_CACHES = ("_cached_edge_index", "_cached_adj_t", *ROW_CACHES)
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 0.1, torch.bfloat16: 0.1}
"Difference from PyG's results, and from their gradients, relative to the largest of them."
IN_PYG = (
    f"a model of PyTorch Geometric does not run with it on {NUM_ROWS} made-up vertices",
    "Let it run with PyTorch Geometric first, on any number of vertices with floating numbers as features. For a learned row per vertex, write it with "
    "sagann's layers and sagann.nn.EmbeddingEncoder.",
)
WITHOUT_EDGES = (
    f"a model of PyTorch Geometric does not run without its edges on {NUM_ROWS} made-up vertices",
    "Let it pass edge_index on to its layers alone, and compute nothing with it; or write the layer as sagann.SagaLayer.",
)
"How a model fails there, and what to do about it."


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstRun:
    """How a model runs in PyG: the first of several ways in which it does."""

    arguments: tuple[str, ...]
    "The arguments of the model that get edge data."
    example: Callable[..., Graph]
    "Makes the vertices; ``num_rows`` is their number, if another than :data:`NUM_ROWS`."
    twin: nn.Module
    "The copy of the model that has run."
    out: Any = None
    "What it returned; None where it has failed."
    error: Exception | None = None
    "Why it has failed."


def first_run(model: nn.Module, graph: Graph, *, of_graphs: bool) -> FirstRun:
    """Run a copy of a model in PyG on made-up vertices, in evaluation.

    It gets all that the graph has edge data for; where it does not run with them, those that it needs. A model that looks features up runs with
    whole numbers alone. Of a model that runs in none of these ways, the first failure is given.
    """
    offered, known = arguments_for(model, graph), parameters_of(model)
    needed = tuple(each for each in offered if each in known and known[each].default is Parameter.empty)
    like = next((each for each in model.parameters() if each.is_floating_point()), torch.empty(0))
    failed: FirstRun | None = None
    for whole, arguments in itertools.product((False, True), dict.fromkeys([offered, needed])):
        example = partial(example_of, graph, arguments, of_graphs=of_graphs, whole=whole, like=like)
        twin = model
        try:
            twin = copy.deepcopy(model).eval()
            forget_edges(twin)
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                made = example()
                out = run_in_pyg(twin, arguments, made, rows_of(made))
            return FirstRun(arguments=arguments, example=example, twin=twin, out=out)
        except Exception as error:  # noqa: BLE001  (of any kind: it is raised where the model is read)
            failed = failed or FirstRun(arguments=arguments, example=example, twin=twin, error=error)
    assert failed is not None
    return failed


def arguments_for(model: nn.Module, graph: Graph) -> tuple[str, ...]:
    """The arguments of a model that get edge data: those that the graph has, and those that the model needs."""
    known, takes_all = parameters_of(model), takes_data(model)
    return tuple(
        name
        for name, stored in EDGE_ARGUMENTS.items()
        if (name in known and known[name].default is Parameter.empty)
        or (stored in graph.topology.edge_data and (name in known or takes_all))
    )


def example_of(
    graph: Graph,
    arguments: Sequence[str],
    *,
    of_graphs: bool,
    whole: bool,
    like: Tensor,
    num_rows: int = NUM_ROWS,
) -> Graph:
    """Made-up vertices, with features of the dtype and on the device of ``like``, and edges with edge data like those of a graph; features are
    0 and 1 with ``whole``; several graphs in one with ``of_graphs``."""
    generator = torch.Generator().manual_seed(0)
    # Every vertex but the last one has in-edges, some of them twice, and some a self-loop. Sources are numbered up to their destination and one
    # more, so that the first vertices but the last of these have all in-edges among them.
    others = torch.arange(num_rows - 1)
    dst = others.repeat(4)
    src = (torch.rand(len(dst), generator=generator) * (dst + 2)).long()
    kept, loops = src != dst, others[::3]
    src, dst = torch.cat([others + 1, src[kept], loops]), torch.cat([others, dst[kept], loops])
    data = {}
    for name in arguments:
        stored = EDGE_ARGUMENTS[name]
        known = graph.topology.edge_data.get(stored)
        shape = (len(src), *(() if known is None else known.shape[1:]))
        if stored == "type":
            data[stored] = torch.randint(max(graph.num_edge_types, 1), shape, generator=generator)
        else:
            dtype = like.dtype if known is None else known.dtype
            data[stored] = (torch.rand(shape, generator=generator) + 0.1).to(dtype)
    topology = Topology.from_coo(src=src, dst=dst, num_src=num_rows, edge_data=data)
    x = torch.randn(num_rows, graph.num_features, generator=generator).to(like.dtype)
    x = (x > 0).to(x.dtype) if whole else x
    types = graph.num_edge_types if "type" in data else 0
    graph_ptr = torch.tensor([0, num_rows // 2, num_rows]) if of_graphs else None
    return Graph(topology=topology, features=x, num_edge_types=types, graph_ptr=graph_ptr).to(like.device)


def block_of(topology: Topology, num_src: int) -> Topology:
    """The edges of an example among the first vertices that reach all of these but the last one."""
    src, dst = topology.indices.long(), topology.edge_dst().long()
    inside = dst < num_src - 1
    data = {name: rows[inside] for name, rows in topology.edge_data.items()}
    return Topology.from_coo(src=src[inside], dst=dst[inside], num_src=num_src, num_dst=num_src - 1, edge_data=data)


def forget_edges(model: nn.Module) -> None:
    """Have the layers of PyG prepare their edges anew."""
    for conv in convs_of(model):
        conv.__dict__.update((name, None) for name in _CACHES if name in conv.__dict__)


def rows_of(example: Graph) -> Tensor:
    """The features of an example."""
    assert isinstance(example.features, Tensor)
    return example.features


def run_in_pyg(model: nn.Module, arguments: Sequence[str], example: Graph, x: Tensor) -> Any:
    """What a model returns in PyG for the edges of an example, and rows of its vertices."""
    topology = example.topology
    edges = torch.stack([topology.indices.long(), topology.edge_dst().long()])
    given: Mapping[str, Any] = {name: topology.edge_data[EDGE_ARGUMENTS[name]] for name in arguments}
    return called(model, x, edges, given, example.graph_ptr)


def values_and_gradients(run: Callable[[Tensor], Any], model: nn.Module, x: Tensor) -> list[Tensor]:
    """What a model returns, and the gradients of it with respect to its input and its parameters; zeros where there is none."""
    inputs = [x.clone().requires_grad_(), *(each for each in model.parameters() if each.requires_grad)]
    with torch.enable_grad():
        out = run(inputs[0])
        if not isinstance(out, Tensor):
            raise LayerError(
                f"a model must return a tensor: a {type(out).__name__} (in model {type(model).__name__})",
                hint="Return one row for each vertex.",
            )
        if not out.requires_grad:
            return [out]
        weights = torch.linspace(1.0, 2.0, out.numel(), dtype=out.dtype, device=out.device).reshape(out.shape)
        for each in inputs:
            each.grad = None
        # Some checkpoints do not run in torch.autograd.grad.
        (out * weights).sum().backward()
    return [out.detach(), *(torch.zeros_like(each) if each.grad is None else each.grad for each in inputs)]


def are_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether values are equal, and gradients, but for rounding."""
    if len(found) != len(expected) or any(a.shape != b.shape for a, b in zip(found, expected, strict=True)):
        return False

    for part in (slice(0, 1), slice(1, None)):
        # Compared this way, no NaN is close.
        largest = max((float(each.abs().max()) for each in expected[part] if each.numel()), default=0.0)
        pairs = zip(found[part], expected[part], strict=True)
        if not all(bool(((a - b).abs() <= _TOLERANCES[a.dtype] * largest).all()) for a, b in pairs):
            return False
    return True


class WithoutDropout(TorchFunctionMode):
    """Inside the ``with`` block dropout returns its input."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "").strip("_").endswith(("dropout", "dropout1d", "dropout2d", "dropout3d")):
            return args[0] if args else kwargs["input"]
        return func(*args, **(kwargs or {}))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block the model is in evaluation mode, and its parameters are others, none of which is zero. It may be run in any way:
    afterwards it is as it was.

    No gradient is recorded, and no random number is drawn for others.
    """
    parameters = [each for each in model.parameters() if not is_lazy(each)]
    kept = [(each, each.detach().clone()) for each in (*parameters, *model.buffers())]
    gradients = [(each, each.grad) for each in parameters]
    generator = torch.Generator().manual_seed(0)
    with taken_back(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        model.eval()
        forget_edges(model)
        try:
            for each in parameters:
                if each.is_floating_point():
                    # A parameter that begins as zeros would hide what it is multiplied with.
                    noise = torch.randn(each.shape, generator=generator)
                    each.data.add_(0.1 * noise.to(each))
            yield
        finally:
            for tensor, values in kept:
                tensor.data.copy_(values)
            for each, gradient in gradients:
                each.grad = gradient


@contextmanager
def layer_errors(model: nn.Module, how: str, hint: str) -> Iterator[None]:
    """Inside the ``with`` block, an exception of any kind becomes a :class:`LayerError` that begins with it, and names its line."""
    try:
        yield
    except LayerError:
        raise
    except Exception as error:
        where = f"model {type(model).__name__}, {line_of_error(error)}"
        if isinstance(error, SagannError):
            raise LayerError(f"{error.message}; {how} (in {where})", hint=error.hint) from error
        raise LayerError(f"{in_one_line(error).rstrip('.')}: {how} (in {where})", hint=hint) from error
