"""The made-up vertices on which a model of PyTorch Geometric is read, and compared with what PyG computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from sagann.errors import LayerError
from sagann.graph import Graph, Topology
from sagann.interop.pyg_walk import DEGREE_WEIGHTS

EDGE_ARGUMENTS = {"edge_weight": "weight", "edge_attr": "attr", "edge_type": "type"}
"Arguments of a model's forward, and the edge data that they are."
NUM_ROWS = 13
"Number of made-up vertices."
_TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-4, torch.float16: 0.1, torch.bfloat16: 0.1}
"Difference from PyG's results, and from their gradients, relative to the largest of them."


def example_of(
    graph: Graph,
    arguments: Sequence[str],
    model: nn.Module,
    *,
    of_graphs: bool,
    whole: bool,
    num_rows: int = NUM_ROWS,
) -> tuple[Graph, Tensor]:
    """A graph of made-up vertices and edges with edge data like those of a graph, and its features, 0 and 1 with ``whole``; several graphs in
    one with ``of_graphs``."""
    generator = torch.Generator().manual_seed(0)
    like = next((each for each in model.parameters() if each.is_floating_point()), torch.empty(0))
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
    found = Graph(topology=topology, features=x, num_edge_types=types, graph_ptr=graph_ptr)
    return found.to(like.device), x.to(like.device)


def with_some_weights(topology: Topology, *, like: Tensor) -> Topology:
    """With weights by degree that no edges have, but different ones."""
    weights = torch.linspace(0.5, 1.0, topology.num_edges, dtype=like.dtype, device=like.device)
    return topology.with_edge_data(**{DEGREE_WEIGHTS: weights})


def block_of(topology: Topology, num_src: int) -> Topology:
    """The edges of an example among the first vertices that reach all of these but the last one."""
    src, dst = topology.indices.long(), topology.edge_dst().long()
    inside = dst < num_src - 1
    data = {name: rows[inside] for name, rows in topology.edge_data.items()}
    return Topology.from_coo(src=src[inside], dst=dst[inside], num_src=num_src, num_dst=num_src - 1, edge_data=data)


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

    def is_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
        # Compared this way, no NaN is close.
        largest = max((float(each.abs().max()) for each in expected if each.numel()), default=0.0)
        return all(
            bool(((a - b).abs() <= _TOLERANCES[a.dtype] * largest).all())
            for a, b in zip(found, expected, strict=True)
        )

    return is_close(found[:1], expected[:1]) and is_close(found[1:], expected[1:])


class WithoutDropout(TorchFunctionMode):
    """Inside the ``with`` block dropout returns its input."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "").strip("_").endswith(("dropout", "dropout1d", "dropout2d", "dropout3d")):
            return args[0] if args else kwargs["input"]
        return func(*args, **(kwargs or {}))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Inside the ``with`` block the model is in evaluation mode, and its parameters are others, none of which is zero.

    No gradient is recorded, and no random number is drawn for others.
    """
    modes = {module: module.training for module in model.modules()}
    known = [(each, each.detach().clone()) for each in model.parameters() if not is_lazy(each)]
    generator = torch.Generator().manual_seed(0)
    model.eval()
    try:
        for each, values in known:
            if each.is_floating_point():
                # A parameter that begins as zeros would hide what it is multiplied with.
                noise = torch.randn(each.shape, generator=generator)
                each.data.copy_(values + 0.1 * noise.to(values))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for each, values in known:
            each.data.copy_(values)
        for module, mode in modes.items():
            module.training = mode
