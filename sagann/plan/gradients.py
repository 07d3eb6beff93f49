"""Gradients: which values of a captured model get one, and by which passes over the edges."""

from __future__ import annotations

from torch import fx

from sagann.compiler.model_program import Gather, ModelProgram
from sagann.compiler.program import Stage
from sagann.compiler.vjp import BackwardPass


class Gradients:
    """What the backward of a captured model computes.

    Args:
        program: the model.
        wanted_x: whether the features get a gradient.
        trained: names of the program's parameters that get one; None for all.
    """

    def __init__(
        self, program: ModelProgram, *, wanted_x: bool = False, trained: frozenset[str] | None = None
    ) -> None:
        derived = set(program.param.outputs)
        self.shared = {name for name, _ in program.parameters} | derived
        "Names of what all vertices share: parameters, and what depends on them alone."
        self.wanted_x = wanted_x
        self._trained = self.shared if trained is None else trained | derived
        self._forms = program.forms
        self._constants = {"x": not wanted_x} | {each.result: each.constant for each in program.gathers}

    def has(self, name: str) -> bool:
        """Whether a value of vertices gets a gradient."""
        return self._forms[name].dtype.is_floating_point and not self._constants.get(name, False)

    def nodes(self, stage: Stage) -> set[fx.Node]:
        """The nodes of a stage that a gradient goes through."""
        found: set[fx.Node] = set()
        for node in stage.module.graph.nodes:
            if node.op == "placeholder":
                name = str(node.target)
                is_wanted = name in self.shared or (name in stage.inputs and self.has(name))
            else:
                is_wanted = not found.isdisjoint(node.all_input_nodes)
            if is_wanted:
                found.add(node)
        return found

    def passes(self, gather: Gather) -> tuple[BackwardPass, ...]:
        """The passes of a gather's backward."""
        if gather.edges.backward is None:
            return ()
        wanted = tuple(
            name
            for name, side, value in zip(gather.edges.stage.inputs, gather.edges.sides, gather.inputs, strict=True)
            if (side == "param" and value in self._trained) or (side in ("src", "dst") and self.has(value))
        )
        return gather.edges.backward.passes(wanted)
