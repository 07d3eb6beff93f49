"""Sides: which rows a pass over the edges reads at random, and may keep whole in memory.

A pass goes over its edges by the rows of one end, and reads those of the other end here and there. On a grid of P x P chunks it loads the other
end's rows once for each interval of its own. Where these rows fit memory undivided, its chunks need no cut at that end: M chunks instead of
P x P, whose own rows may be as few as the room beside them wants. On the CPU, sums then have the order of a run in memory.

References:
    Ma et al., NGra, 2018, Sec. 3.1, and NeuGraph, USENIX ATC 2019, Sec. 3.1, cut both ends alike.
"""

from __future__ import annotations

from sagann.compiler.model_program import ModelProgram
from sagann.plan.gradients import Gradients


def undivided_of(program: ModelProgram, gradients: Gradients) -> frozenset[tuple[str, str]]:
    """Kinds and names of the rows that an epoch's passes read at random; empty where some pass needs chunks that are cut at both ends.

    A backward pass that asks for the ids of edges does: edges have ids by destination, and lie by source in its chunks. So does one over
    rows that are the same in every epoch, because these are stored by interval.
    """
    gradients = gradients.recomputing()
    found: set[tuple[str, str]] = set()
    for gather in program.gathers:
        if gather.constant:
            continue
        functions = [gradients.function(gather), *(step.function for step in gradients.passes(gather))]
        for function in functions:
            other = "src" if function.at == "dst" else "dst"
            if other == "dst":
                if function.asks_for_ids:
                    return frozenset()
                found.add(("grad_inputs", gather.result))
                found |= {("gather_saved", gather.result)} if gather.edges.gathering.passes_kept else set()
            read = {given.name for given in function.inputs}
            inputs = zip(gather.edges.stage.inputs, gather.edges.sides, gather.inputs, strict=True)
            found |= {("value", value) for name, side, value in inputs if side == other and name in read}
    constant = {("value", gather.result) for gather in program.gathers if gather.constant}
    return frozenset(found) if found.isdisjoint(constant) else frozenset()
