"""Capturing: the program of a model, and the parameters and edge data that the program reads.

A run asks for the same program several times: to choose a budget, to cut the graph, to train, to evaluate. The model is traced
once for each of its modes, and programs are kept as long as the model lives. A trace reads no edges, so another graph with edge
data of the same form, such as a new graph or a part of the first one, has the same program.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from sagann.compiler.capture import capture
from sagann.compiler.compile import CompilerOptions
from sagann.compiler.model_program import ModelProgram
from sagann.compiler.recording import factored_data
from sagann.compiler.trace import tensors_of
from sagann.errors import InputError, LayerError, require_type
from sagann.graph.feature_store import Features, FeatureStore, is_constant, version_of
from sagann.graph.rows import is_sparse
from sagann.graph.topology import Topology
from sagann.runtime.in_memory.configuration import Key, configuration
from sagann.runtime.in_memory.typed_maps import check_types
from sagann.runtime.places import require_on_host

MOST_PROGRAMS = 8
"Programs kept per model; the oldest goes first."
_PROGRAMS: WeakKeyDictionary[nn.Module, dict[Key, ModelProgram]] = WeakKeyDictionary()


def captured(
    model: nn.Module,
    hops: Sequence[Topology],
    x: Tensor,
    *,
    x_is_constant: bool,
    factored: bool = True,
) -> ModelProgram:
    """The captured model; arguments as of :func:`sagann.compiler.capture.capture`.

    With ``factored``, edge data that are computed from degrees are read as factors of both ends, so that chunks are smaller.

    Raises:
        LayerError: the model cannot be streamed; the message says why.
        InputError: edge data requires a gradient, or a type of edges is out of range.
    """
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise LayerError(
                f"a model that is streamed must have its parameters: '{name}' gets its shape when the model "
                f"first runs (in {type(model).__name__})",
                hint="Run the model once on a small graph with the same features, or state the widths.",
            )
    for topology in hops:
        for name, data in topology.edge_data.items():
            if data.requires_grad:
                raise InputError(
                    f"edge data gets no gradient in a streamed model: '{name}' requires one (in stream)",
                    hint="Detach it, or run the model in memory.",
                )
    if not factored:
        # Copies have no marks.
        unmarked = {id(hop): hop.with_edge_data() for hop in hops}
        hops = [unmarked[id(hop)] for hop in hops]
    program = _traced(model, hops, x, x_is_constant)
    require_types(program, hops)
    for number, gather in enumerate(program.gathers, 1):
        is_concat = not gather.edges.gathering.is_reduced
        if gather.edges.function is None or is_concat:
            why = (
                "its accumulator is concat" if is_concat else f"its edges are no fused pass: {gather.edges.why_not}"
            )
            raise LayerError(
                f"a layer cannot be streamed: {why} (in gather {number} of {type(model).__name__})",
                hint="Use operators that fuse, and another accumulator than concat.",
            )
    return program


def _traced(model: nn.Module, hops: Sequence[Topology], x: Tensor, x_is_constant: bool) -> ModelProgram:
    programs = _PROGRAMS.setdefault(model, {})
    form = x.shape[1:], x.layout, x.dtype, x.device, x_is_constant
    key: Key = (configuration(model, tensors_of(model)), form, _forms_of(hops))
    program = programs.get(key)
    if program is None:
        program = capture(model, hops, x, options=CompilerOptions(), x_is_constant=x_is_constant)
        if len(programs) == MOST_PROGRAMS:
            del programs[next(iter(programs))]
        programs[key] = program
    return program


def _forms_of(hops: Sequence[Topology]) -> Key:
    """All that a trace reads of hops: the number of the first hop with the same edges, and the form of the edge data."""
    first = {id(hop): number for number, hop in reversed(list(enumerate(hops)))}
    return tuple(
        (
            first[id(hop)],
            *((name, rows.shape[1:], rows.dtype) for name, rows in hop.edge_data.items()),
            *factored_data(hop),
        )
        for hop in hops
    )


def trained_in(program: ModelProgram, model: nn.Module) -> frozenset[str]:
    """The names, in the program, of the model's parameters that get a gradient."""
    named = tensors_of(model)
    return frozenset(name for name, known in program.parameters if named[known].requires_grad)


def edge_data_of(program: ModelProgram, hops: Sequence[Topology]) -> list[Tensor]:
    """The edge data that a program reads, each once."""
    typed = [(hops[each.hop], each.data) for each in program.edge_types]
    walked = [*hops, *(topology for topology, _ in typed)]
    read = [
        (walked[gather.hop], name)
        for gather in program.gathers
        for name, side in zip(gather.inputs, gather.edges.sides, strict=True)
        if side == "edge"
    ]
    found = [topology.edge_data[name] for topology, name in (*typed, *read)]
    return list({id(data): data for data in found}.values())


def require_types(program: ModelProgram, hops: Sequence[Topology]) -> None:
    """Refuse edge types for which a program has no matrix."""
    for (hop, data), num_types in program.num_types.items():
        check_types(hops[hop], hops[hop].edge_data[data], num_types)


_HINT = "Pass features with a row for every vertex of the graph that the model is streamed over."


def check_features(x: Features, num_vertices: int, device: torch.device) -> None:
    """Refuse features with another number of rows, a layout that is not streamed, or on a device."""
    require_type(x, (Tensor, FeatureStore), where="StreamedModel.x", hint=_HINT)
    if isinstance(x, Tensor):
        require_on_host(x.device, "features")
        is_read = x.layout == torch.strided or (is_sparse(x) and device.type == "cpu" and not x.requires_grad)
        if is_read and x.dim() > 0 and len(x) == num_vertices:
            return
        value = f"{list(x.shape)} of layout {x.layout}"
    else:
        if x.num_rows == num_vertices:
            return
        value = f"{[x.num_rows, *x.row_shape]} of a {type(x).__name__}"
    raise InputError(
        f"vertex features do not fit the graph: {value}, expected rows of {num_vertices} vertices, dense or "
        "(on the CPU, without a gradient) torch.sparse_csr (in StreamedModel.x)",
        hint=_HINT,
    )


def needs_gradient(x: Features | None) -> bool:
    """Whether the features get a gradient; the rows of a feature store never do."""
    return isinstance(x, Tensor) and x.requires_grad


def are_constant(x: Features) -> bool:
    """Whether results that depend on the features may be kept: their owner has declared them constant, and changes are counted."""
    return is_constant(x) and feature_version(x) >= 0


def feature_version(x: Features) -> int:
    """:func:`version_of` the features; 0 for a feature store."""
    return version_of(x) if isinstance(x, Tensor) else 0


def like_on(x: Features, device: torch.device) -> Tensor:
    """A tensor of the form of the features, to capture a model with on the device that computes."""
    if isinstance(x, Tensor):
        return x if x.device == device else x.new_empty((1, *x.shape[1:]), device=device)
    return torch.empty((1, *x.row_shape), dtype=x.dtype, device=device)
