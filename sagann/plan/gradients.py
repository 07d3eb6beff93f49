"""Gradients: which values of a captured model get one, by which passes over the edges, and which rows these read at random."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from torch import fx

from sagann.compiler.model_program import BatchMeans, Gather, ModelProgram
from sagann.compiler.program import Stage
from sagann.compiler.vjp import BackwardPass
from sagann.kernels.edge.function import EdgeFunction


class Gradients:
    """Values of a captured model that get a gradient, and the backward passes that give it.

    The features get one where it is wanted. ``trained`` names the parameters that get one; None means all.
    """

    def __init__(
        self, program: ModelProgram, *, wanted_x: bool = False, trained: frozenset[str] | None = None
    ) -> None:
        parameters = frozenset(name for name, _ in program.parameters)
        self._means = {name: link.result for link in program.means for name in (link.result, link.scales)}
        "Names of the means of the links, by the names of means and of scales."
        self.shared = parameters | {*program.param.outputs, *self._means}
        "Names of values that all vertices share: parameters, values that depend on parameters alone, and means over all rows with their scales."
        self.wanted_x, self._trained = wanted_x, trained
        self._hands_on = True
        self._forms = program.forms
        self._leading = set(parameters if trained is None else trained) | ({"x"} if wanted_x else set())
        "Names of values that depend on a trained parameter, or on features that get a gradient."
        self._leading |= self._made_of_leading(program.param)
        for number, stage in enumerate(program.stages):
            self._leading |= self._made_of_leading(stage)
            link = program.links[number] if number < len(program.links) else None
            if link is not None and _read_by(link) & self._leading:
                self._leading |= {link.result, link.scales} if isinstance(link, BatchMeans) else {link.result}

    def of(self, program: ModelProgram) -> Gradients:
        """The same of another form of the program."""
        return Gradients(program, wanted_x=self.wanted_x, trained=self._trained)

    def recomputing(self) -> Gradients:
        """The same, where no backward pass leaves gradients of edges for another, because they go over other chunks."""
        found = copy(self)
        found._hands_on = False
        return found

    def _made_of_leading(self, stage: Stage) -> set[str]:
        """The outputs of a stage that depend on a trained value."""
        through = self.nodes(stage)
        (output,) = (node for node in stage.module.graph.nodes if node.op == "output")
        return {name for name, node in zip(stage.outputs, output.args[0], strict=True) if node in through}

    def of_means(self, names: Iterable[str]) -> set[str]:
        """Names of the means of which these values are means or scales, and that get a gradient."""
        return {self._means[name] for name in names if name in self._means and name in self._leading}

    def has(self, name: str) -> bool:
        """Whether a value of vertices gets a gradient."""
        dtype = self._forms[name].dtype
        return name in self._leading and (dtype.is_floating_point or dtype.is_complex)

    def leads_from(self, stage: Stage) -> bool:
        """Whether an output of a stage gets a gradient."""
        return any(self.has(name) for name in stage.outputs)

    def nodes(self, stage: Stage) -> set[fx.Node]:
        """The nodes of a stage that a gradient goes through."""
        found: set[fx.Node] = set()
        for node in stage.module.graph.nodes:
            if node.op == "placeholder":
                name = str(node.target)
                is_wanted = name in self._leading and (name in self.shared or self.has(name))
            else:
                is_wanted = not found.isdisjoint(node.all_input_nodes)
            if is_wanted:
                found.add(node)
        return found

    def function(self, gather: Gather, backward_pass: int = 0) -> EdgeFunction:
        """The edge function of a gather's forward, or of a backward pass, counted from 1."""
        if backward_pass:
            return self.passes(gather)[backward_pass - 1].function
        assert gather.edges.function is not None
        return gather.edges.function

    def passes(self, gather: Gather) -> tuple[BackwardPass, ...]:
        """The passes of a gather's backward."""
        wanted = tuple(
            name
            for name, side, value in zip(gather.edges.stage.inputs, gather.edges.sides, gather.inputs, strict=True)
            if (side == "param" and value in self._leading) or (side in ("src", "dst") and self.has(value))
        )
        return gather.edges.backward(wanted, hands_on=self._hands_on) if wanted else ()


def _read_by(link: Gather | BatchMeans) -> set[str]:
    """The values that a link reads, without edge data."""
    if isinstance(link, BatchMeans):
        return set(link.values)
    return {name for name, side in zip(link.inputs, link.edges.sides, strict=True) if side != "edge"}


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
