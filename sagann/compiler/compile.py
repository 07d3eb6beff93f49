"""The pipeline: from a layer and the form of its input to a layer program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor, fx

from sagann.compiler.classify import classify, has_rows, has_tensor, is_random, row_bytes
from sagann.compiler.commute import commute, scale_last
from sagann.compiler.fuse_rows import fuse_rows
from sagann.compiler.hoist import hoist, transpose_matrices
from sagann.compiler.lower import NotFusedError, lower
from sagann.compiler.operators import GATHER, TYPED_LINEAR
from sagann.compiler.options import CompilerOptions
from sagann.compiler.program import EdgeWork, LayerProgram, Note, Stage, Typed
from sagann.compiler.rewrite import gather_of, gathered, gathering_of, leading_to, name_of
from sagann.compiler.share import shared_rows
from sagann.compiler.spec import verify
from sagann.compiler.split_concat import split_concat
from sagann.compiler.stages import cut
from sagann.compiler.trace import trace_layer
from sagann.compiler.typed import (
    map_first,
    map_last,
    map_single_types,
    with_bytes,
)
from sagann.compiler.vjp import Backward
from sagann.kernels.edge.function import EdgeFunction, Side

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CallForm:
    """What a layer is compiled for: the form of a call. No values of tensors are read."""

    vertices: Mapping[str, Tensor]
    "Rows of vertices, by name; a single tensor has the empty name."
    edges: Mapping[str, Tensor]
    "Edge data that the layer reads, by name; a single tensor has the empty name."
    options: CompilerOptions
    "Optimisations that are allowed."
    is_constant: bool = False
    "Whether vertex rows and edge data are constant."
    is_sparse: bool = False
    "Whether linear maps read the rows where they lie, so that maps come first wherever they can."
    many_sources: bool = False
    "Whether there are many more sources than destinations, as in a sampled block."

    @property
    def keeps(self) -> bool:
        """Whether what is gathered from constant rows is kept."""
        return self.is_constant and self.options.invariant


def compile_layer(layer: SagaLayer, form: CallForm) -> LayerProgram:
    """Compile ``layer``, which has passed its checks, for calls of a form.

    Raises:
        TraceError: the layer cannot be compiled, and why.
    """
    options = form.options
    notes: list[Note] = []
    module, typed, naive_bytes = rewritten(layer, form, notes)
    maps_last = None
    if options.hoist and typed is None:
        typed, done = map_first(module)
        if typed is not None and options.commute and options.typed_maps != "first":
            maps_last = _maps_last(layer, form, module, typed, naive_bytes, notes)
        notes += done
    if maps_last is not None and options.typed_maps == "last":
        return maps_last
    program = _program(layer, form, module, typed, naive_bytes, notes)
    return replace(program, maps_last=maps_last)


def rewritten(
    layer: SagaLayer, form: CallForm, notes: list[Note], *, edge_type: int | None = None
) -> tuple[fx.GraphModule, Typed | None, int]:
    """The classified graph after the passes on linear maps, a map of the only edge type, and the bytes as written.

    Args:
        layer: passed its checks.
        form: of its calls.
        notes: gets what was done.
        edge_type: of all edges; by default they are of any.
    Raises:
        TraceError: the layer cannot be compiled, and why.
    """
    options = form.options
    module = trace_layer(layer, form.vertices, form.edges)
    # Fails where nothing is read of what the edges give: such a layer runs as it is written.
    gather_of(module)
    classify(module)
    naive_bytes = _naive_bytes(module)
    typed = None
    if options.hoist:
        typed, done = map_single_types(module, edge_type)
        notes += done
    if options.split_concat:
        notes += split_concat(module)
    if options.commute:
        may_map_first = form.is_sparse or not form.many_sources
        notes += commute(module, keep_constant=form.keeps, map_first=may_map_first, at_any_width=form.is_sparse)
        notes += scale_last(module, at_any_width=form.is_sparse)
    if options.fuse:
        transpose_matrices(module)
    verify(module)
    return module, typed, naive_bytes


def _maps_last(
    layer: SagaLayer, form: CallForm, module: fx.GraphModule, first: Typed, naive_bytes: int, notes: list[Note]
) -> LayerProgram | None:
    last = map_last(module, first)
    if last is None:
        return None
    changed, typed, note = last
    verify(changed)
    return _program(layer, form, changed, typed, naive_bytes, [*notes, note])


def _program(
    layer: SagaLayer,
    form: CallForm,
    module: fx.GraphModule,
    typed: Typed | None,
    naive_bytes: int,
    notes: list[Note],
) -> LayerProgram:
    """What follows from a graph that is in its final order."""
    options, notes = form.options, list(notes)
    frontier = hoist(module, enabled=options.hoist)
    notes += _hoisting_notes(module, frontier) if options.hoist else []
    edges = edge_work(module, frontier, options, notes)
    if typed is not None and typed.order != "none":
        typed = with_bytes(typed, module, frontier)
    program = _assemble(layer, form, module, frontier, edges, typed, naive_bytes, notes)
    return _with_fused_rows(program) if options.fuse else program


def _with_fused_rows(program: LayerProgram) -> LayerProgram:
    (src, of_src), (dst, of_dst), (vertex, of_vertex) = map(fuse_rows, (program.src, program.dst, program.vertex))
    return replace(program, src=src, dst=dst, vertex=vertex, notes=(*program.notes, *of_src, *of_dst, *of_vertex))


def edge_work(
    module: fx.GraphModule, frontier: list[fx.Node], options: CompilerOptions, notes: list[Note]
) -> EdgeWork:
    """What is computed on the edges, fused where that can be done.

    Args:
        module: a graph in its final order.
        frontier: what the edges read.
        options: what the compiler may do.
        notes: gets whether they are fused, or why not.
    """
    gather = gather_of(module)
    form = gathering_of(gather)
    stage = cut(module, gathered(module), frontier)
    by_name = {node.name: node for node in frontier}
    sides = tuple(side_of(by_name[name]) for name in stage.inputs)
    function, reason = None, "fusing is switched off"
    if not gather.meta["val"].is_floating_point():
        reason = "the message is not of a floating type"
    elif options.fuse:
        examples = {name: (side, by_name[name].meta["val"]) for name, side in zip(stage.inputs, sides, strict=True)}
        try:
            function = lower(stage.module, examples, form)
        except NotFusedError as error:
            reason = str(error)
    if function is None:
        notes.append(Note(kind="not fused", text=reason))
    else:
        reason = ""
        result = f"the {form.name}" if form.is_reduced else "the rows that are concatenated"
        notes.append(Note(kind="fused", text=f"{len(function.ops)} operations and {result} in one pass"))
    return EdgeWork(
        stage=stage,
        sides=sides,
        gathering=form,
        dtype=gather.meta["val"].dtype,
        function=function,
        why_not=reason,
        backward=None if function is None else Backward(function),
        tensor_bytes=_stage_bytes(stage),
        random=any(is_random(node) for node in module.graph.nodes if node.meta["place"] == "edge"),
        extremum_of_source=form.is_one and form.names_edges and function is not None and _is_source(function),
    )


def _assemble(
    layer: SagaLayer,
    form: CallForm,
    module: fx.GraphModule,
    frontier: list[fx.Node],
    edges: EdgeWork,
    typed: Typed | None,
    naive_bytes: int,
    notes: list[Note],
) -> LayerProgram:
    nodes = list(module.graph.nodes)
    (output,) = (node.args[0] for node in nodes if node.op == "output")
    placeholders = [node for node in nodes if node.op == "placeholder"]
    parameters = [node for node in placeholders if node.meta["parameter"] is not None]
    derived = [node for node in nodes if _is_derived_parameter(node, frontier)]
    given = [node for node in placeholders if node.meta["parameter"] is None]
    inputs = [node.meta["input"] for node in given]
    ends = {end: [node for node in given if node.meta["input"].end == end] for end in ("src", "dst")}
    by_name = {node.name: node for node in nodes}
    if typed is not None and typed.order != "none":
        derived += [node for node in [by_name[typed.weight]] if node not in [*derived, *parameters]]
    wanted: dict[str, list[fx.Node]] = {}
    for end in ("src", "dst"):
        wanted[end] = [node for node in frontier if node.meta["place"] == end and node.op != "placeholder"]
        if typed is not None and by_name.get(typed.name) in wanted[end]:
            wanted[end] = [node for node in wanted[end] if node.name != typed.name]
            x = by_name[typed.x]
            wanted[end] += [x] if x.op != "placeholder" and x not in wanted[end] else []
    at_src, at_dst = wanted["src"], wanted["dst"]
    known = [*parameters, *derived]
    after = by_name[typed.name] if typed is not None and typed.order == "last" else gather_of(module)
    assert isinstance(output, fx.Node)
    needed = [*at_dst, output]
    shared = shared_rows(module, _between(at_src, [*known, *ends["src"]]), needed, [*known, after])
    at_src += [node for node in dict.fromkeys(shared.values()) if node not in at_src]
    at_dst = [node for node in at_dst if node not in shared]
    known_at_last = [*known, *at_dst, *shared, *ends["dst"], after]
    return LayerProgram(
        layer=type(layer).__name__,
        inputs=tuple(inputs),
        parameters=tuple((node.name, node.meta["parameter"]) for node in parameters),
        param=cut(module, derived, parameters),
        src=cut(module, at_src, [*known, *ends["src"]], in_place=True),
        shared=tuple((node.name, partner.name) for node, partner in shared.items()),
        dst=cut(module, at_dst, [*known, *shared, *ends["dst"]], in_place=True),
        edges=edges,
        typed=typed,
        accum=gather_of(module).name,
        vertex=cut(module, [output], known_at_last, in_place=True),
        invariant=form.keeps and is_raw(frontier) and not edges.random,
        bytes_per_edge=sum(row_bytes(node) for node in frontier if node.meta["place"] != "param")
        + 3 * _concat_row_bytes(module),
        naive_bytes_per_edge=naive_bytes,
        notes=(*notes, *(_shared_note(node) for node in shared)),
    )


def is_raw(frontier: list[fx.Node]) -> bool:
    """Whether the edges read features and edge data as they are, and nothing else."""
    return all(node.op == "placeholder" and node.meta["parameter"] is None for node in frontier)


def _between(wanted: list[fx.Node], given: list[fx.Node]) -> list[fx.Node]:
    """What is computed on the way from ``given`` to ``wanted``."""
    return [node for node in leading_to(wanted, given) if node not in given]


def _shared_note(node: fx.Node) -> Note:
    text = f"{name_of(node)}, of destinations as of sources: computed once"
    return Note(kind="shared", text=text, line=node.meta["line"])


def side_of(node: fx.Node) -> Side:
    """Whose row the edges read when they read the node."""
    place = node.meta["place"]
    assert place in ("param", "src", "dst", "edge")
    return place


def _is_derived_parameter(node: fx.Node, frontier: list[fx.Node]) -> bool:
    if node.op == "placeholder" or node.meta["place"] != "param" or not has_tensor(node):
        return False
    read_elsewhere = node.op == "call_function" and any(user.meta["place"] != "param" for user in node.users)
    return node in frontier or (read_elsewhere and isinstance(node.meta["val"], Tensor))


def _stage_bytes(stage: Stage) -> int:
    """Bytes of an edge's tensors; parameters are there once for all edges."""
    nodes = stage.module.graph.nodes
    return sum(row_bytes(node) for node in nodes if isinstance(node.meta.get("val"), Tensor) and has_rows(node))


def _is_source(function: EdgeFunction) -> bool:
    (output,) = function.outputs
    value = function.value(output.values[0])
    return value in function.inputs and getattr(value, "side", "") == "src"


def _naive_bytes(module: fx.GraphModule) -> int:
    """Bytes that materialised edges would move: the scattered rows written, every operator's reads and writes."""
    total = 0
    for node in module.graph.nodes:
        if node.meta["phase"] != "edge" or node.meta["place"] == "param" or node.op == "get_attr":
            continue
        if not isinstance(node.meta.get("val"), Tensor) or not node.users:
            continue
        readers = len([user for user in node.users if user.meta["phase"] == "edge" or user.target is GATHER])
        total += row_bytes(node) * (1 + readers) if readers else 0
    return total + _concat_row_bytes(module)


def _concat_row_bytes(module: fx.GraphModule) -> int:
    """Bytes of an edge's row in concat's result: written by its pass, then read and written between the padding."""
    if gathering_of(gather_of(module)).is_reduced:
        return 0
    (message,) = gathered(module)
    return row_bytes(message)


def _hoisting_notes(module: fx.GraphModule, frontier: list[fx.Node]) -> list[Note]:
    notes = []
    above = leading_to(frontier)
    for node in module.graph.nodes:
        if (
            node in above
            and node.op == "call_function"
            # Maps picked by type have notes of their own.
            and node.target is not TYPED_LINEAR
            and node.meta["place"] in ("src", "dst")
            and has_tensor(node)
        ):
            end = "source" if node.meta["place"] == "src" else "destination"
            notes.append(Note(kind="hoisted", text=f"{name_of(node)}, once per {end}", line=node.meta["line"]))
    return notes
