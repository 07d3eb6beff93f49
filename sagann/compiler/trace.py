"""Trace: a layer's two functions become one graph of operators, for any number of rows.

Both functions run once on fake tensors. Rows of sources, rows of destinations and edge data are distinct inputs with the same
number of rows: a large prime (:data:`ROWS`), so that whatever size or argument in the graph is a multiple of it is known to
mean rows. (A symbolic size would do the same, but not survive ``len(edge.src)``.) Parameters and buffers are inputs
of their own, and one ``sagann::gather`` node stands between the functions. Every node has ``meta["val"]`` (a fake tensor),
``meta["line"]`` (the user's line) and ``meta["phase"]`` ("edge" before the gather, "vertex" after it). The vertex of ApplyVertex
is the input of destinations: it is the same row.

A function that branches on values cannot be traced. Whether rows are mixed a trace does not say: layers have passed the
independence check before, and models are checked stage by stage afterwards.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeGuard

import torch
from torch import Tensor, fx, nn
from torch._decomp import get_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils import _pytree as pytree

from sagann.compiler.operators import DROPOUT, GATHER, MEANS, NotShown, WholeOperators, traced_batch_norms
from sagann.compiler.program import LayerInput
from sagann.errors import LayerError, SagannError, in_one_line
from sagann.kernels.accumulators import gathering
from sagann.saga.edge import Edge, accum_of, named, unnamed, values_of
from sagann.saga.side_effects import taken_back, without_hooks

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer

ROWS = 1_234_567_891
"The number of rows in a trace: a prime that no feature dimension has, and no constant is a multiple of."
_aten = torch.ops.aten


class TraceError(Exception):
    """The functions cannot be traced; the message says why. The layer then runs as it is written."""


def trace_layer(
    layer: SagaLayer, x: Tensor | Mapping[str, Tensor], data: Tensor | Mapping[str, Tensor] | None
) -> fx.GraphModule:
    """Trace both functions for rows like those of ``x`` and ``data``.

    Placeholders of the layer's inputs have a :class:`LayerInput` as ``meta["input"]``; those of parameters and buffers have their
    name in the layer as ``meta["parameter"]``. A function that a trace does not show raises :class:`TraceError`.
    """
    vertices, edges = named(x), named(data)
    inputs = _layer_inputs(list(vertices), list(edges))

    def run(*rows: Tensor) -> Tensor:
        with without_hooks(layer, _refused):
            return _run(layer, dict(zip(inputs, rows, strict=True)))

    like = {each.name: (edges if each.end == "edge" else vertices)[each.key] for each in inputs}
    module, others = traced(layer, like, run)
    for node, given in zip(others, inputs, strict=True):
        node.meta["input"] = given
    check_trace(module)
    _finish(module, layer)
    return module


def traced(
    root: nn.Module, like: Mapping[str, Tensor], run: Callable[..., Tensor], *, num_rows: int = ROWS
) -> tuple[fx.GraphModule, list[fx.Node]]:
    """The graph of ``run`` on rows like these, and their placeholders, which have their names.

    Parameters and buffers of ``root``, which must not have side effects, are inputs before them.
    """
    fake, tensors = FakeTensorMode(allow_non_fake_inputs=True), tensors_of(root)
    parameters = [fake.from_tensor(tensor.detach()) for tensor in tensors.values()]

    def whole(*args: Tensor) -> Tensor:
        given = dict(zip(tensors, args, strict=False))
        with _reparametrize_module(root, given):
            result = run(*args[len(tensors) :])
            _check_not_set(root, given)
        return result

    with _without_side_effects(root):
        module = make_graph(fake, whole, *parameters, *(fake_rows(fake, each, num_rows) for each in like.values()))
    return module, _name_placeholders(module, tensors, list(like))


def _refused(*_: object, **__: object) -> NoReturn:
    raise NotShown("a module inside it has hooks")


def _layer_inputs(vertices: list[str], edges: list[str]) -> list[LayerInput]:
    """The inputs of a layer that is given these vertex rows and reads these edge data."""
    kinds: list[tuple[Literal["src", "dst", "edge"], str, list[str]]] = [
        ("src", "src", vertices),
        ("dst", "dst", vertices),
        ("edge", "data", edges),
    ]
    return [
        LayerInput(name=name, end=end, key=key)
        for end, prefix, keys in kinds
        for name, key in zip([prefix] if keys == [""] else distinct_names(prefix, keys), keys, strict=True)
    ]


def distinct_names(prefix: str, names_given: Iterable[str]) -> list[str]:
    """Names for a trace, by whatever names: 'a.b' and 'a_b' are two, and so are 'W' and 'w', which a graph would take for one."""
    names: list[str] = []
    for given in names_given:
        plain = name = f"{prefix}_" + re.sub(r"\W", "_", given, flags=re.ASCII).lower()
        for number in itertools.count(2):
            if name not in names:
                break
            name = f"{plain}_{number}"
        names.append(name)
    return names


def _name_placeholders(module: fx.GraphModule, parameters: Iterable[str], others: list[str]) -> list[fx.Node]:
    """Name what a trace is given, parameters and buffers first. Gives the placeholders of the others."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    known = [
        *zip(distinct_names("parameter", parameters), parameters, strict=True),
        *((name, None) for name in others),
    ]
    for node, (name, parameter) in zip(placeholders, known, strict=True):
        node.meta["parameter"] = parameter
        node.name = node.target = name
    return placeholders[len(placeholders) - len(others) :]


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name. A tensor with two names stands under both, for they may be parted later; of a
    module with two names, the first is taken."""
    owners = [(f"{prefix}." if prefix else "", owner) for prefix, owner in module.named_modules()]
    return {
        prefix + name: tensor
        for kind in ("_parameters", "_buffers")
        for prefix, owner in owners
        for name, tensor in getattr(owner, kind).items()
        if tensor is not None
    }


def _check_not_set(module: nn.Module, given: Mapping[str, Tensor]) -> None:
    """Refuse a function that puts other tensors in the place of parameters or buffers: ``given`` is what the module had before."""
    for name, tensor in tensors_of(module).items():
        if given.get(name) is not tensor:
            raise TraceError(f"it sets '{name}', a buffer or parameter")


@contextmanager
def _without_side_effects(root: nn.Module) -> Iterator[None]:
    """Refuse functions with side effects: the trace would leave fake tensors behind, and the program nothing."""
    with taken_back(root) as changed:
        yield
    if changed:
        raise TraceError(changed[0])


def fake_rows(fake: FakeTensorMode, like: Tensor, num_rows: int = ROWS) -> Tensor:
    """A fake tensor with the features of ``like`` and as many rows as a trace has."""
    with fake:
        return torch.empty(num_rows, *like.shape[1:], dtype=like.dtype, device=like.device)


def is_of_rows(value: object) -> TypeGuard[Tensor]:
    """Whether a value of a trace is a tensor whose first dimension is the rows."""
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape[0] == ROWS


def is_rows(size: object) -> bool:
    """Whether a size, or a number among an operator's arguments, is the number of rows or a multiple of it."""
    return type(size) is int and size > 0 and size % ROWS == 0


def make_graph(fake: FakeTensorMode, function: Callable[..., Any], *args: Any) -> fx.GraphModule:
    """Trace ``function`` on fake tensors: no gradients, no mutation, the lines kept. A :class:`SagannError` passes as it is."""
    functional = torch.func.functionalize(function, remove="mutations")
    try:
        with fake, torch.no_grad(), preserve_node_meta(), without_log(), _use_lazy_graph_module(True):
            return make_fx(functional, decomposition_table=PLAINER)(*args)
    except NotShown as error:
        raise TraceError(str(error)) from error
    except (TraceError, SagannError):
        raise
    except Exception as error:
        said = in_one_line(error)
        if "autograd.Function" in said or "custom_function_call" in said:
            said = "of a torch.autograd.Function a trace shows no backward; torch.library.custom_op with register_autograd is seen"
        if (in_rows := said_in_rows(said)) != said:
            said = in_rows + ": a row for each vertex must come in as a feature, which may be trained"
        raise TraceError(f"it cannot be traced: {said}") from error


def said_in_rows(text: str) -> str:
    """A message with N for a trace's number of rows, and multiples of N; as it is where there are none."""

    def said(digits: re.Match[str]) -> str:
        factor, rest = divmod(int(digits[0]), ROWS)
        return digits[0] if rest or not factor else "N" if factor == 1 else f"{factor} * N"

    found = re.sub(r"[0-9]+", said, text)
    return text if found == text else f"{found}; N is the number of rows"


@contextmanager
def without_log() -> Iterator[None]:
    """What PyTorch logs of an operator that fails on fake tensors is in the error."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = disabled


def _run(layer: SagaLayer, given: Mapping[LayerInput, Tensor]) -> Tensor:
    where = f"layer {type(layer).__name__}"
    rows: dict[str, dict[str, Tensor]] = {"src": {}, "dst": {}, "edge": {}}
    for each, tensor in given.items():
        rows[each.end][each.key] = tensor
    edge = Edge(src=rows["src"], dst=rows["dst"], data=rows["edge"], reader=where)
    with WholeOperators(), traced_batch_norms(layer, over_edges=True):
        output = layer.apply_edge(edge)
    try:
        values = values_of(layer.accumulator, output, ROWS, where)
    except LayerError as error:
        # Said again, with the real number of rows, where the layer runs as it is written.
        raise TraceError(error.message) from error
    form = gathering(layer.accumulator, layer.max_degree or 0)
    if len({values[each.values.stop - 1].dtype for each in form.reduced}) > 1:
        raise TraceError("its messages are of several types")
    accum = torch.ops.sagann.gather(values, form.name, form.max_degree)
    with WholeOperators(), traced_batch_norms(layer):
        out = layer.apply_vertex(unnamed(rows["dst"]), accum_of(layer.accumulator, form, accum, values))
    if not isinstance(out, Tensor):
        raise TraceError("apply_vertex does not return a tensor")
    return out


def check_trace(module: fx.GraphModule) -> None:
    """Refuse a function that reads foreign tensors, writes in place, or returns a constant."""
    for node in module.graph.nodes:
        if node.op == "get_attr" and getattr(module, node.target).requires_grad:
            raise TraceError("it reads a tensor that requires gradients and is no parameter of the layer")
        if node.op == "call_function" and node.meta.get("val") is None:
            raise TraceError(f"operator {node.target} gives no tensor")
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise TraceError(f"operator {node.target} writes in place")
        if node.op == "output" and not isinstance(node.args[0], fx.Node):
            several = isinstance(node.args[0], (tuple, list, dict))
            raise TraceError("it returns several values" if several else "what it returns is a constant")


def drop_unread(module: fx.GraphModule, root: nn.Module) -> None:
    """Remove the nodes that the result does not depend on. A BatchNorm of ``root`` among them is refused if a call moves its running means."""
    norms = {node: str(node.args[1]) for node in module.graph.nodes if node.target in MEANS}
    module.graph.eliminate_dead_code()
    left = set(module.graph.nodes)
    for name in [name for node, name in norms.items() if node not in left]:
        norm = root.get_submodule(name)
        if norm.running_mean is not None:
            raise TraceError(
                f"nothing reads the result of the {type(norm).__name__} '{name}', which is trained: its running means would stay as they "
                "are; leave the call out"
            )


def _finish(module: fx.GraphModule, layer: SagaLayer) -> None:
    drop_unread(module, layer)
    merge_equal(module)
    phase = "edge"
    for node in module.graph.nodes:
        if node.target is GATHER:
            phase = "vertex"
        node.meta["phase"] = phase
        node.meta["line"] = node.meta.get("stack_trace") or ""
        node.meta.setdefault("parameter", None)


def merge_equal(module: fx.GraphModule) -> None:
    """Compute equal things once: an endpoint viewed twice is one array to load, not two."""
    known: dict[tuple[object, ...], fx.Node] = {}
    for node in list(module.graph.nodes):
        schema = getattr(node.target, "_schema", None)
        random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) or node.target is DROPOUT
        if node.op != "call_function" or schema is None or random or node.target in MEANS:
            continue
        leaves = [(type(leaf), repr(leaf)) for leaf in pytree.tree_leaves((node.args, node.kwargs))]
        key = (node.target, repr((node.args, node.kwargs)), tuple(leaves))
        if key in known:
            node.replace_all_uses_with(known[key])
            module.graph.erase_node(node)
        else:
            known[key] = node


def _full_like(x: Tensor, value: float, *, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
    return torch.full(tuple(x.shape), value, dtype=dtype or x.dtype, device=device or x.device)


def _squeeze(x: Tensor, dims: Any = None) -> Tensor:
    # Dimension by dimension: where a stage runs on a single row, that dimension has one entry as well.
    ones = [dim % x.ndim for dim in (range(x.ndim) if dims is None else dims) if x.shape[dim] == 1]
    for dim in sorted(ones, reverse=True):
        x = _aten.squeeze.dim(x, dim)
    return x


def _squeeze_dim(x: Tensor, dim: int) -> Tensor:
    return NotImplemented if not x.ndim or x.shape[dim] == 1 else x


def _copy(into: Tensor, x: Tensor, non_blocking: bool = False) -> Tensor:
    return x.to(into.device, into.dtype).expand(into.shape)


# PyTorch's decompositions into constants.
_FILLS = (
    _aten.new_full,
    _aten.new_ones,
    _aten.new_zeros,
    _aten.ones,
    _aten.ones_like,
    _aten.zeros,
    _aten.zeros_like,
)
PLAINER: dict[Any, Callable[..., Any]] = {
    # PyTorch has no derivative of it, for it stands in traces only: where something was written in place.
    _aten.copy.default: _copy,
    _aten.squeeze.default: _squeeze,
    _aten.squeeze.dims: _squeeze,
    _aten.squeeze.dim: _squeeze_dim,
    # What takes a tensor for its shape alone becomes a constant, so that it depends on nothing.
    **get_decompositions(_FILLS),
    _aten.full_like.default: _full_like,
    _aten.empty_like.default: partial(_full_like, value=0),
    _aten.new_empty.default: torch.Tensor.new_zeros,
}
