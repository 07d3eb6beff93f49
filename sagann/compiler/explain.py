"""Explain: a layer program in words."""

from __future__ import annotations

from sagann.compiler.nodes import has_tensor, name_of
from sagann.compiler.program import LayerProgram, Stage
from sagann.kernels.edge.function import EdgeFunction, Op

_TITLES = {"typed": "maps by edge type", "hoisted": "moved off the edges", "not fused": "NOT fused"}


def explain(program: LayerProgram) -> str:
    """Describe a program in one line for each stage, decision and operation on the edges."""
    edges = program.edges
    lines = [f"{program.layer}: {edges.gathering.name} over the edges"]
    lines += [f"  {_bytes(program)}"]
    for note in program.notes:
        line = f"  [{note.line}]" if note.line else ""
        lines.append(f"  {_TITLES.get(note.kind, note.kind)}: {note.text}{line}")
    if program.maps_last is not None:
        lines += _either_order(program, program.maps_last)
    if program.invariant:
        lines.append("  cached: gathers only constant features, so it runs once")
    for title, stage in (("per source", program.src), ("per destination", program.dst)):
        if stage:
            lines.append(f"  once {title}: {_operators(stage)}")
    lines += _pass(edges.function) if edges.function is not None else [f"  per edge: {_operators(edges.stage)}"]
    vertex = _operators(program.vertex)
    lines.append(f"  then per destination: {vertex or 'nothing'}")
    return "\n".join(lines)


def _bytes(program: LayerProgram) -> str:
    now, before = program.bytes_per_edge, program.naive_bytes_per_edge
    if program.edges.function is None:
        held = "in its tile" if program.edges.gathering.is_reduced else "for all edges at once"
        return f"{now} bytes read per edge, and {program.edges.tensor_bytes} bytes of tensors {held}"
    saved = f", {before / now:.1f} times fewer" if 0 < now < before else ""
    return f"{now} bytes per edge; {before} as written{saved}"


def _either_order(first: LayerProgram, last: LayerProgram) -> list[str]:
    """The costs of both orders of a map by edge type. The number of pairs in a graph decides between the orders."""
    lines = ["  or after the gather, once per pair of destination and type, if that moves fewer bytes in a graph:"]
    for title, end, program in (("before", "source", first), ("after", "destination", last)):
        assert program.typed is not None
        edge = f"{program.bytes_per_edge} bytes per edge" + (
            ", in the first epoch only," if program.invariant else ""
        )
        lines.append(f"    {title}: {edge} and {program.typed.bytes_per_pair} per pair of {end} and type")
    function = last.edges.function
    lines += [f"  {line}" for line in _pass(function)] if function is not None else []
    return lines


def _operators(stage: Stage) -> str:
    # Nodes without a tensor are numbers of rows.
    nodes = [node for node in stage.module.graph.nodes if node.op == "call_function" and has_tensor(node)]
    return ", ".join(name_of(node) for node in nodes)


def _pass(function: EdgeFunction) -> list[str]:
    return [
        "  per edge, in one pass:",
        *(f"    {given.name}: {given.side} {list(given.shape)}" for given in function.inputs),
        *(f"    {op.name} = {_call(op)}" for op in function.ops),
        *(f"    {output.reduce}({', '.join(output.values)})" for output in function.outputs),
    ]


def _call(op: Op) -> str:
    attrs = ", ".join(f"{key}={value}" for key, value in op.attrs.items())
    return f"{op.op}({', '.join([*map(str, op.args), *([attrs] if attrs else [])])}) {list(op.shape)}"
