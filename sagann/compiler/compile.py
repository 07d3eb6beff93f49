"""The pipeline: from a layer and the form of its input to a layer program. Every optimisation can be switched off, to measure its gain."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from sagann.compiler.commute import commute, scale_last, split_concat
from sagann.compiler.hoist import hoist, transpose_matrices
from sagann.compiler.lower import fuse_rows, lower
from sagann.compiler.lowering import NotFusedError
from sagann.compiler.nodes import (
    classify,
    gather_of,
    gathered,
    gathering_of,
    has_row_each,
    has_rows,
    has_tensor,
    is_random,
    leading_to,
    name_of,
    reached,
    row_bytes,
)
from sagann.compiler.operators import GATHER, MEANS, TYPED_LINEAR
from sagann.compiler.program import EdgeWork, LayerGather, LayerInput, LayerProgram, Note, Typed
from sagann.compiler.stages import cut
from sagann.compiler.trace import TraceError, trace_layer
from sagann.compiler.typed import map_first, map_last, map_single_types, with_bytes
from sagann.kernels.accumulators import Gathering
from sagann.kernels.edge.builder import Builder
from sagann.kernels.edge.function import EdgeFunction, Input, Side

if TYPE_CHECKING:
    from sagann.saga.layer import SagaLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class CompilerOptions:
    """Optimisations that the compiler may use; by default all."""

    hoist: bool = True
    "Compute values that depend on one end of an edge once per vertex."
    split_concat: bool = True
    "Split a linear map of a concatenation into maps of its parts, so that they can be hoisted."
    commute: bool = True
    "Swap linear maps and linear accumulators where that moves fewer bytes."
    invariant: bool = True
    fuse: bool = True
    "Run the edges as one pass without edge tensors; otherwise every edge tensor is materialised."


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CallForm:
    """What a layer is compiled for: the form of a call. No values of tensors are read."""

    vertices: Mapping[str, Tensor]
    "Rows of vertices, by name; a single tensor has the empty name."
    edges: Mapping[str, Tensor]
    "Edge data that the layer reads, by name; a single tensor has the empty name."
    options: CompilerOptions
    is_constant: bool = False
    is_sparse: bool = False
    "Whether linear maps read the rows where they lie, so that maps come first wherever they can."
    factored: frozenset[str] = frozenset()
    "Names of edge data that are the product of one number per vertex, at source and destination: those numbers are read instead."
    many_sources: bool = False
    "Whether there are many more sources than destinations, as in a sampled block."

    @property
    def keeps(self) -> bool:
        """Whether what is gathered from constant rows is kept."""
        return self.is_constant and self.options.invariant


def compile_layer(layer: SagaLayer, form: CallForm) -> LayerProgram:
    """Compile ``layer``, which has passed its checks, for calls of a form; raises :class:`TraceError` where it cannot be compiled."""
    options = form.options
    notes: list[Note] = []
    module, typed, naive_bytes = rewritten(layer, form, notes)
    if any(node.target in MEANS for node in module.graph.nodes):
        raise TraceError("a BatchNorm that is trained computes means over all rows")
    maps_last = None
    if options.hoist and typed is None:
        typed, done = map_first(module)
        if typed is not None and options.commute:
            last = map_last(module, typed)
            if last is not None:
                changed, typed_last, note = last
                maps_last = _program(layer, form, changed, typed_last, naive_bytes, [*notes, note])
        notes += done
    return replace(_program(layer, form, module, typed, naive_bytes, notes), maps_last=maps_last)


def rewritten(
    layer: SagaLayer, form: CallForm, notes: list[Note], *, edge_type: int | None = None
) -> tuple[fx.GraphModule, Typed | None, int]:
    """The classified graph after the passes on linear maps, a map of the only edge type, and the bytes as written.

    ``notes`` gets what was done. All edges are of ``edge_type``; by default they are of any.
    """
    options = form.options
    module = trace_layer(layer, form.vertices, form.edges)
    # Fails where nothing is read of what the edges give: such a layer runs as it is written.
    gather_of(module)
    _read_factors(module, form.factored)
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
    return module, typed, naive_bytes


def factor_name(data: str) -> str:
    """Name of the vertex rows whose product edge data of this name are. No rows of a user have such a name."""
    return f"factor of {data}"


def _read_factors(module: fx.GraphModule, factored: Collection[str]) -> None:
    """Replace edge data of a traced graph by the product of the numbers of both ends, in place."""
    given = [node for node in module.graph.nodes if node.op == "placeholder"]
    for data in [node for node in given if "input" in node.meta and node.meta["input"].end == "edge"]:
        known: LayerInput = data.meta["input"]
        if known.key not in factored:
            continue
        with module.graph.inserting_after(given[-1]):
            product = module.graph.call_function(torch.ops.aten.mul.Tensor)
        data.replace_all_uses_with(product)
        for end in ("dst", "src"):
            with module.graph.inserting_before(data):
                factor = module.graph.placeholder(f"{known.name}_{end}")
            factor.meta = {**data.meta, "input": LayerInput(name=factor.name, end=end, key=factor_name(known.key))}
            product.args = (factor, *product.args)
        product.meta = {name: value for name, value in data.meta.items() if name != "input"}
        module.graph.erase_node(data)
    module.graph.lint()


def _program(
    layer: SagaLayer,
    form: CallForm,
    module: fx.GraphModule,
    typed: Typed | None,
    naive_bytes: int,
    notes: list[Note],
) -> LayerProgram:
    """What follows from a graph that is in its final order."""
    notes = list(notes)
    gather = layer_gather(module, gather_of(module), form, notes)
    if typed is not None and typed.order != "none":
        typed = with_bytes(typed, module, gather.frontier)
    program = _assemble(layer, module, gather, typed, naive_bytes, notes)
    if not form.options.fuse:
        return program
    (src, of_src), (dst, of_dst), (vertex, of_vertex) = map(fuse_rows, (program.src, program.dst, program.vertex))
    return replace(program, src=src, dst=dst, vertex=vertex, notes=(*program.notes, *of_src, *of_dst, *of_vertex))


def layer_gather(module: fx.GraphModule, gather: fx.Node, form: CallForm, notes: list[Note]) -> LayerGather:
    """What is computed on the edges of a graph in its final order for a gather. ``notes`` gets what was done."""
    frontier = hoist(gather, enabled=form.options.hoist)
    notes += _hoisting_notes(module, frontier) if form.options.hoist else []
    edges = _edge_work(module, gather, frontier, form.options, notes)
    # The edges read features and edge data as they are, and nothing else.
    is_raw = all(node.op == "placeholder" and node.meta["parameter"] is None for node in frontier)
    constant = form.keeps and is_raw and not edges.random
    return LayerGather(node=gather, frontier=frontier, edges=edges, constant=constant)


def _edge_work(
    module: fx.GraphModule, gather: fx.Node, frontier: list[fx.Node], options: CompilerOptions, notes: list[Note]
) -> EdgeWork:
    """The work on the edges, fused where that can be done. ``notes`` gets why not."""
    form = gathering_of(gather)
    stage = cut(module, gathered(gather), frontier)
    by_name = {node.name: node for node in frontier}
    sides: tuple[Side, ...] = tuple(by_name[name].meta["place"] for name in stage.inputs)
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
    is_tiled = function is None and options.fuse and form.is_reduced
    # Parameters are there once for all edges.
    of_edges = [
        node for node in stage.module.graph.nodes if isinstance(node.meta.get("val"), Tensor) and has_rows(node)
    ]
    return EdgeWork(
        stage=stage,
        sides=sides,
        gathering=form,
        dtype=gather.meta["val"].dtype,
        function=function,
        of_messages=_gather_of(form, [node.meta["val"] for node in gathered(gather)]) if is_tiled else None,
        why_not=reason,
        tensor_bytes=sum(map(row_bytes, of_edges)),
        random=any(map(is_random, leading_to(gathered(gather), frontier))),
    )


def _gather_of(form: Gathering, values: Sequence[Tensor]) -> EdgeFunction:
    """The gather of messages with such values, each of which is an input, in one type."""
    dtype = reduce(torch.promote_types, (value.dtype for value in values))
    inputs = [
        Input(name=f"value{number}", side="edge", shape=tuple(value.shape[1:]), dtype=dtype)
        for number, value in enumerate(values)
    ]
    return Builder(inputs).build(form.outputs([each.name for each in inputs]), "dst")


def _assemble(
    layer: SagaLayer,
    module: fx.GraphModule,
    gather: LayerGather,
    typed: Typed | None,
    naive_bytes: int,
    notes: list[Note],
) -> LayerProgram:
    nodes, frontier = list(module.graph.nodes), gather.frontier
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
    after = by_name[typed.name] if typed is not None and typed.order == "last" else gather.node
    assert isinstance(output, fx.Node)
    needed = [*at_dst, output]
    given_at_src = [*known, *ends["src"]]
    computed = [node for node in leading_to(at_src, given_at_src) if node not in given_at_src]
    shared = _shared_rows(module, computed, needed, [*known, after])
    at_src += [node for node in dict.fromkeys(shared.values()) if node not in at_src]
    at_dst = [node for node in at_dst if node not in shared]
    known_at_last = [*known, *at_dst, *shared, *ends["dst"], after]
    for node in shared:
        text = f"{name_of(node)}, of destinations as of sources: computed once"
        notes.append(Note(kind="shared", text=text, line=node.meta["line"]))
    return LayerProgram(
        layer=layer._get_name(),  # type: ignore[no-untyped-call]
        inputs=tuple(inputs),
        parameters=tuple((node.name, node.meta["parameter"]) for node in parameters),
        param=cut(module, derived, parameters),
        src=cut(module, at_src, given_at_src, in_place=True),
        shared=tuple((node.name, partner.name) for node, partner in shared.items()),
        dst=cut(module, at_dst, [*known, *shared, *ends["dst"]], in_place=True),
        edges=gather.edges,
        typed=typed,
        accum=gather.node.name,
        vertex=cut(module, [output], known_at_last, in_place=True),
        invariant=gather.constant,
        bytes_per_edge=sum(row_bytes(node) for node in frontier if node.meta["place"] != "param")
        + 3 * _concat_row_bytes(module),
        naive_bytes_per_edge=naive_bytes,
        notes=tuple(notes),
    )


def _is_derived_parameter(node: fx.Node, frontier: list[fx.Node]) -> bool:
    if node.op == "placeholder" or node.meta["place"] != "param" or not has_tensor(node):
        return False
    read_elsewhere = node.op == "call_function" and any(user.meta["place"] != "param" for user in node.users)
    return node in frontier or (read_elsewhere and isinstance(node.meta["val"], Tensor))


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
    gather = gather_of(module)
    if gathering_of(gather).is_reduced:
        return 0
    (message,) = gathered(gather)
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


def _shared_rows(
    module: fx.GraphModule, computed: Iterable[fx.Node], wanted: Iterable[fx.Node], given: Collection[fx.Node]
) -> dict[fx.Node, fx.Node]:
    """By node of the destinations that ``wanted`` depends on, the node with the same rows among those ``computed`` for the sources.

    Destinations are the first of the sources. If a layer does the same to both ends of an edge (attention that projects both), the
    destinations' rows are the first rows of the sources' result. The search stops at ``given``.
    """
    numbers: dict[Hashable, int] = {}
    forms: dict[fx.Node, int] = {}
    for node in module.graph.nodes:
        form = _form(node, forms)
        forms[node] = numbers.setdefault(form, len(numbers))
    partners = {forms[node]: node for node in computed if node.op == "call_function"}

    def partner(node: fx.Node) -> fx.Node | None:
        may_share = node.meta["place"] == "dst" and isinstance(node.meta["val"], Tensor) and has_row_each(node)
        return partners.get(forms[node]) if may_share and node not in given else None

    needed = reached(wanted, lambda node: () if node in given or partner(node) else node.all_input_nodes)
    return {node: other for node in needed if (other := partner(node))}


def _form(node: fx.Node, forms: dict[fx.Node, int]) -> Hashable:
    """A key that is equal for nodes that do the same to sources and to destinations."""
    given = node.meta.get("input")
    if node.op == "placeholder" and given is not None and given.end != "edge":
        return "rows of vertices", given.key
    # Every node draws its own random numbers.
    if node.op != "call_function" or is_random(node):
        return node

    def known(argument: Any) -> Any:
        return ("of node", forms[argument]) if isinstance(argument, fx.Node) else argument

    arguments = fx.node.map_aggregate((node.args, node.kwargs), known)
    return node.target, repr(arguments), str(node.meta["val"].dtype if hasattr(node.meta["val"], "dtype") else "")
