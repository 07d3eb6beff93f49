"""Capture: a model of SAGA layers and row-wise operators becomes stages of vertices and the gathers between them.

The model's forward is traced once with every layer as one node; the layers' compiled graphs are then put in the
nodes' places. What is left is one graph of row-wise operators in which gathers, and the means of BatchNorms, alone reach from vertex to
vertex. So it falls into stages: stage k reads what link k - 1 gave, and computes what link k reads. A value that later stages need
as well is stored where it is made. A stage runs on any rows, a gather on any part of the edges.

A link is a gather, or the means that a BatchNorm computes of all rows of vertices or edges. A node belongs to the stage after the last link that
the node depends on, or to a later one that alone reads it, if fewer bytes lie between the stages then: the maps of a GRU's state are computed
where the gates are.

References:
    Ma et al., NGra, 2018, Sec. 3.1, and NeuGraph, USENIX ATC 2019, Sec. 3.2: the dataflow of chunks. We differ in
    tracing whole models, so that what stands between layers is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from sagann.compiler.compile import CompilerOptions, factor_name
from sagann.compiler.hoist import min_cut
from sagann.compiler.lower import fuse_rows
from sagann.compiler.model_program import BatchMeans, Form, Gather, ModelProgram
from sagann.compiler.nodes import gathered, has_rows, is_random, name_of, reached, row_bytes
from sagann.compiler.operators import (
    BATCH_MEANS,
    BATCH_SCALES,
    DROPOUT,
    EDGE_MEANS,
    GATHER,
    GATHERED,
    LINEAR,
    LINKS,
    MEANS,
    SAGA_LAYER,
)
from sagann.compiler.program import Stage
from sagann.compiler.recording import Call, Recorder, cannot_be_captured, traced_model
from sagann.compiler.row_check import check_stage, draws, is_integral, line_of
from sagann.compiler.stages import cut
from sagann.compiler.trace import TraceError, drop_unread, is_of_rows, merge_equal
from sagann.errors import LayerError
from sagann.graph.topology import Topology
from sagann.kernels.row_dropout import dropout
from sagann.saga.shared_lock import MODELS


class ModelCut:
    """Places every node of a model's graph in a stage, then cuts the stages out."""

    def __init__(self, module: fx.GraphModule, recorder: Recorder, *, fuses_rows: bool) -> None:
        self.module = module
        self.recorder = recorder
        self.fuses_rows = fuses_rows
        self.nodes = list(module.graph.nodes)
        self.links = [node for node in self.nodes if node.target in LINKS]
        self.stage_of: dict[fx.Node, int] = {}
        self.made_anywhere: set[fx.Node] = set()
        "Nodes with rows that depend on no vertex: every stage computes them itself."
        self.integers: dict[str, Tensor] = {}
        "Integer tensors of the model, by name."
        self.seeds: dict[fx.Node | int, int] = {}
        "Number of the seed of each dropout, and of each part of a layer's call whose edges draw, in the order in which the model in memory draws seeds."
        for node in self.nodes:
            self._place(node)
            self._number(node)
        for stage in range(len(self.links), 0, -1):
            self._sink_into(stage)

    def _number(self, node: fx.Node) -> None:
        if node.target is DROPOUT:
            number = self.seeds[node] = len(self.seeds)
            node.args = (*node.args[:2], number)
        elif node.target is GATHERED:
            gathering = self.recorder.gathers[_gathered_parts(node)[1]]
            if gathering.gather.edges.random:
                self.seeds.setdefault(gathering.part, len(self.seeds))

    def _place(self, node: fx.Node) -> None:
        """Set the node's place, ``param`` or ``vertex``, and the first stage that can compute it."""
        read = node.all_input_nodes
        self.stage_of[node] = max((self._first_reader(each) for each in read), default=0)
        if node.op == "placeholder":
            node.meta["place"] = "param" if node.meta["parameter"] is not None else "vertex"
            return
        of_parameters = all(each.meta["place"] == "param" for each in read) and not has_rows(node)
        node.meta["place"] = "param" if of_parameters and node.op != "output" else "vertex"
        if has_rows(node) and not is_random(node) and all(self._is_everywhere(each) for each in read):
            self.made_anywhere.add(node)

    def _is_everywhere(self, node: fx.Node) -> bool:
        return node.meta["place"] == "param" or node in self.made_anywhere

    def _sink_into(self, stage: int) -> None:
        """Move nodes that no earlier stage needs into a stage, where that leaves fewer bytes to carry there: a minimum cut."""
        late = set[fx.Node]()
        for node in reversed(self.nodes):
            if self._may_sink(node, stage) and all(
                user in late or self._read_in(user) >= stage for user in node.users
            ):
                late.add(node)
        readers = [node for node in self.nodes if self._is_carried_into(node, stage)]

        def read(node: fx.Node) -> list[fx.Node]:
            return [each for each in node.all_input_nodes if self._is_carried(each)] if node in late else []

        operands = {node: read(node) for node in reached(readers, read)}
        # What must be carried anyway costs nothing. What is stored anyway is loaded once more, and other values are stored as well.
        anyway = set(readers) - late
        costs = {
            node: 0 if node in anyway else row_bytes(node) * (1 if self._is_stored_anyway(node, stage) else 2)
            for node in operands
        }
        cheapest = min_cut(costs, operands, readers)
        computed = reached(readers, lambda node: () if node in cheapest else operands[node]).keys() - cheapest
        self.stage_of |= dict.fromkeys(computed, stage)

    def _may_sink(self, node: fx.Node, stage: int) -> bool:
        """Whether a node could be computed in a later stage as well, from tensors."""
        return (
            self._is_carried(node)
            and node.op == "call_function"
            and node.target not in LINKS
            and self.stage_of[node] < stage
            and not is_random(node)
            and all(isinstance(each.meta.get("val"), Tensor) for each in node.all_input_nodes)
            # Features are wide, and may be sparse.
            and not any(each.op == "placeholder" and self._is_carried(each) for each in node.all_input_nodes)
        )

    def _is_carried(self, node: fx.Node) -> bool:
        """Whether a stage that reads a node, and does not compute it, reads a block of rows."""
        is_value = node.meta["place"] == "vertex" and isinstance(node.meta.get("val"), Tensor) and has_rows(node)
        return is_value and node not in self.made_anywhere

    def _is_carried_into(self, node: fx.Node, stage: int) -> bool:
        is_earlier = (self._first_reader(node) if node.target in LINKS else self.stage_of[node]) < stage
        readers = [user for user in node.users if user.target not in LINKS]
        return is_earlier and self._is_carried(node) and any(self.stage_of[user] == stage for user in readers)

    def _is_stored_anyway(self, node: fx.Node, stage: int) -> bool:
        """Whether a node lies in a block although no stage from this one on reads it."""
        made = self.stage_of[node]
        return node.target in LINKS or any(
            user.target in LINKS or made < self.stage_of[user] < stage for user in node.users
        )

    def _read_in(self, user: fx.Node) -> int:
        """The last stage that may compute what a node reads."""
        return self.links.index(user) if user.target in LINKS else self.stage_of[user]

    def _first_reader(self, node: fx.Node) -> int:
        """The first stage that can read a node."""
        return self.links.index(node) + 1 if node.target in LINKS else self.stage_of[node]

    def run(self) -> ModelProgram:
        """Cut the stages out; raises :class:`LayerError` where one mixes vertices, or the model returns no row per vertex."""
        (output,) = (node.args[0] for node in self.nodes if node.op == "output")
        assert isinstance(output, fx.Node)
        if output.meta["place"] != "vertex":
            form = output.meta["val"]
            raise LayerError(
                f"the model must return one tensor with a row per vertex: {list(form.shape)} of {form.dtype}, "
                f"which depends on no vertex (in {self.recorder.where})",
                hint="Return the rows of the vertices, and nothing else.",
            )
        placeholders = [node for node in self.nodes if node.op == "placeholder"]
        parameters = [node for node in placeholders if node.meta["parameter"] is not None and self._is_given(node)]
        derived = [
            node
            for node in self.nodes
            if node.op != "placeholder"
            and node.meta["place"] == "param"
            and isinstance(node.meta.get("val"), Tensor)
            and any(user.meta["place"] == "vertex" for user in node.users)
        ]
        x, *factors = (node for node in placeholders if node.meta["parameter"] is None)
        self.integers = self._integers([*parameters, *derived], parameters)
        scales = [node for node in self.nodes if node.target is BATCH_SCALES]
        known = [*parameters, *derived, x, *factors, *self.links, *scales]
        stages = []
        stored: list[fx.Node] = []
        for number in range(len(self.links) + 1):
            wanted = [node for node in self.nodes if self._is_stored(node, number, output)]
            stages.append(self._stage(wanted, [*known, *stored]))
            stored += wanted
        param, links = cut(self.module, derived, parameters), tuple(map(self._link, self.links))
        if self.recorder.x_is_sparse:
            self._require_maps(x, stages)
        computed = [node for stage in stages for node in stage.module.graph.nodes]
        of_parameters = any(map(draws, param.module.graph.nodes))
        return ModelProgram(
            parameters=tuple((node.name, node.meta["parameter"]) for node in parameters),
            param=param,
            stages=tuple(stages),
            links=links,
            num_seeds=len(self.seeds),
            draws_more=of_parameters or any(draws(node) and node.target is not dropout for node in computed),
            x_is_sparse=self.recorder.x_is_sparse,
            x_is_constant=self.recorder.x_is_constant,
            edge_types=tuple(self.recorder.edge_types),
            num_types=self.recorder.num_types,
            factors={node.name: node.meta["factor"] for node in factors},
            output=output.name,
            forms={
                node.name: _form(node) for node in [x, *factors, *self.links, *stored] if node.target not in MEANS
            },
        )

    def _is_given(self, node: fx.Node) -> bool:
        """Whether a program is given a tensor of the model: the running means of a BatchNorm that is trained are moved, not read."""
        return bool(node.users) or isinstance(self.recorder.tensors[node.meta["parameter"]], nn.Parameter)

    def _integers(self, shared: list[fx.Node], parameters: list[fx.Node]) -> dict[str, Tensor]:
        """Values of the integer nodes among those that all vertices share, by name."""
        stage = cut(self.module, list(filter(is_integral, shared)), parameters)
        tensors = {node.name: self.recorder.tensors[node.meta["parameter"]] for node in parameters}
        with torch.no_grad():
            values = stage.module.forward(*map(tensors.__getitem__, stage.inputs))
        return dict(zip(stage.outputs, values, strict=True))

    def _stage(self, wanted: list[fx.Node], given: list[fx.Node]) -> Stage:
        for node in wanted:
            # The check of the stage refuses nodes that have lost their rows.
            if has_rows(node) and not is_of_rows(node.meta["val"]):
                raise LayerError(
                    "what layers and later operators read must have a row per vertex as its first dimension: "
                    f"operator {name_of(node)} puts them elsewhere (in {line_of(node, self.recorder.where)})",
                    hint="Move that dimension back to the front before the next layer.",
                )
        stage = cut(self.module, wanted, given, in_place=True)
        check_stage(stage.module, self.integers, self.recorder.where)
        return fuse_rows(stage)[0] if self.fuses_rows else stage

    def _require_maps(self, x: fx.Node, stages: Sequence[Stage]) -> None:
        """Refuse a model in which other operators than dropout and linear maps read sparse features."""
        if all(stage.maps({x.name}) for stage in stages) and not any(
            x in node.all_input_nodes for node in self.links
        ):
            return
        reader = next((user for user in x.users if user.target not in (LINEAR, DROPOUT)), x)
        found = f"operator {name_of(reader)} reads them" if reader is not x else "edges read them"
        raise LayerError(
            f"a model that is streamed reads sparse features by linear maps alone: {found} (in "
            f"{line_of(reader, self.recorder.where)})",
            hint="Put a linear encoder before the first layer (encoder = 'linear'), or make the features dense.",
        )

    def _is_stored(self, node: fx.Node, stage: int, output: fx.Node) -> bool:
        """Whether the stage computes the node, and a gather, a later stage or the caller reads it."""
        if node.op != "call_function" or node.meta["place"] != "vertex" or self.stage_of[node] != stage:
            return False
        if node.target in (*LINKS, BATCH_SCALES) or not isinstance(node.meta.get("val"), Tensor):
            return False
        readers = [user for user in node.users if user.op != "output"]
        if node is output or any(user.target in LINKS for user in readers):
            return True
        return node not in self.made_anywhere and any(self.stage_of[user] > stage for user in readers)

    def _link(self, node: fx.Node) -> Gather | BatchMeans:
        return self._gather(node) if node.target is GATHERED else self._means(node)

    def _means(self, node: fx.Node) -> BatchMeans:
        name, read = str(node.args[1]), node.all_input_nodes
        (scales,) = (user for user in node.users if user.target is BATCH_SCALES)
        edge_shape = None
        if node.target is EDGE_MEANS:
            gathering = self.recorder.gathers[_gathered_parts(read[0])[1]]
            rows, _ = gathered(gathering.gather.node)
            edge_shape = tuple(rows.meta["val"].shape[1:])
        return BatchMeans(
            values=tuple(each.name for each in read),
            edge_shape=edge_shape,
            result=node.name,
            scales=scales.name,
            norm=name,
            eps=self.recorder.norms[name].eps,
        )

    def _gather(self, node: fx.Node) -> Gather:
        read, number = _gathered_parts(node)
        gathering, rows = self.recorder.gathers[number], iter(read)
        gather = gathering.gather
        names = {
            each.name: gathering.edge_data[each.meta["input"].key]
            if each.meta["place"] == "edge"
            else next(rows).name
            for each in gather.frontier
        }
        return Gather(
            edges=gather.edges,
            inputs=tuple(str(names[name]) for name in gather.edges.stage.inputs),
            result=node.name,
            hop=gathering.hop,
            constant=gather.constant,
            seed=self.seeds[gathering.part] if gather.edges.random else -1,
        )


def _gathered_parts(node: fx.Node) -> Any:
    """The nodes that a gather reads, and the gather's number."""
    return node.args


def _form(node: fx.Node) -> Form:
    value = node.meta["val"]
    return Form(shape=tuple(value.shape[1:]), dtype=value.dtype)


def capture(
    model: nn.Module,
    hops: Sequence[Topology],
    x: Tensor,
    *,
    options: CompilerOptions | None = None,
    x_is_constant: bool = False,
) -> ModelProgram:
    """Capture ``model(hops, x)``; raises :class:`LayerError` where it mixes vertices between its layers, or a trace does not show it.

    Rows of ``x`` and edges of ``hops`` are not read. ``x_is_constant``: x and edge data need no gradient, so that what is gathered from them
    may be kept.
    """
    with MODELS.changing():
        recorder = Recorder(
            model,
            hops,
            options or CompilerOptions(),
            x_is_constant=x_is_constant,
            x_is_sparse=x.layout == torch.sparse_csr,
        )
        module = traced_model(model, recorder, x)
    for node in [node for node in module.graph.nodes if node.target is SAGA_LAYER]:
        _inline(module, node, recorder.calls[int(node.args[1])])
    _own_output(module)
    # On other devices pointwise work runs operator by operator, and takes the memory of each of them.
    fuses_rows = recorder.options.fuse and x.device.type == "cpu"
    try:
        drop_unread(module, model)
        merge_equal(module)
        return ModelCut(module, recorder, fuses_rows=fuses_rows).run()
    except TraceError as error:
        raise cannot_be_captured(model, str(error), error) from error


def _inline(module: fx.GraphModule, node: fx.Node, call: Call) -> None:
    """Put the layer's graph in its node's place."""
    arguments: Any = node.args[0]
    rows = dict(zip(call.inputs, arguments, strict=True))
    rows |= {factor_name(data): _factor(module, call, data) for data in call.factors}
    parameters = {each.meta["parameter"]: each for each in module.graph.nodes if each.op == "placeholder"}
    copies: dict[fx.Node, fx.Node] = {}

    def in_model(name: str) -> str:
        module, _, tensor = name.rpartition(".")
        return f"{call.layer.modules[module]}.{tensor}".removeprefix(".")

    def copied(original: fx.Node) -> fx.Node:
        if original not in copies:
            copies[original] = made(original)
        return copies[original]

    def gathered(gather: int, like: fx.Node) -> list[fx.Node]:
        """What each part of the edges gathers."""
        found = []
        for part, graph in enumerate(call.graphs.parts):
            read = [copied(each) for each in graph.gathers[gather].frontier if each.meta["place"] != "edge"]
            number = call.first_gather + part * len(graph.gathers) + gather % len(graph.gathers)
            new = module.graph.call_function(GATHERED, (read, number))
            new.meta = dict(like.meta)
            found.append(new)
        return found

    def means(original: fx.Node) -> fx.Node:
        """Means over edges, which are of all parts."""
        number = next(graph.means.index(original) for graph in call.graphs.parts if original in graph.means)
        if (first := call.graphs.parts[0].means[number]) is not original:
            return copied(first)
        norm = call.layer.modules[str(original.args[1])]
        return module.graph.call_function(
            EDGE_MEANS, (gathered(number, call.graphs.parts[0].gathers[number].node), norm)
        )

    def made(original: fx.Node) -> fx.Node:
        if original.op == "placeholder":
            name = original.meta["parameter"]
            return rows[original.meta["input"].key] if name is None else parameters[in_model(name)]
        if original.target is GATHER:
            new, *others = gathered(-1, original)
            for other in others:
                new = module.graph.call_function(torch.ops.aten.add.Tensor, (new, other))
                new.meta = dict(original.meta)
        elif original.target is EDGE_MEANS:
            new = means(original)
        elif original.op == "get_attr":
            name = f"constant_{sum(each.op == 'get_attr' for each in module.graph.nodes)}"
            module.register_buffer(name, getattr(original.graph.owning_module, str(original.target)))
            new = module.graph.get_attr(name)
        else:
            for argument in original.all_input_nodes:
                copied(argument)
            new = module.graph.node_copy(original, copies.__getitem__)
            if original.target is BATCH_MEANS:
                new.args = (new.args[0], call.layer.modules[str(original.args[1])])
        new.meta = dict(original.meta)
        return new

    with module.graph.inserting_before(node):
        node.replace_all_uses_with(copied(call.graphs.parts[0].output))
    module.graph.erase_node(node)


def _factor(module: fx.GraphModule, call: Call, data: str) -> fx.Node:
    """The vertex rows whose product edge data are; all calls over the same edges read the same rows."""
    given = [node for node in module.graph.nodes if node.op == "placeholder"]
    found = next((node for node in given if node.meta.get("factor") == call.factors[data]), None)
    if found is None:
        inputs = [node for node in call.graphs.parts[0].module.graph.nodes if "input" in node.meta]
        like = next(node for node in inputs if node.meta["input"].key == factor_name(data))
        with module.graph.inserting_after(given[-1]):
            found = module.graph.placeholder(f"factor_{len(given)}")
        found.meta = {**like.meta, "factor": call.factors[data]}
    return found


def _own_output(module: fx.GraphModule) -> None:
    """Have the last stage give the result, also where that is what was gathered, or the features."""
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    result = end.args[0]
    if isinstance(result, fx.Node) and (result.target is GATHERED or result.op == "placeholder"):
        with module.graph.inserting_before(end):
            own = module.graph.call_function(torch.ops.aten.clone.default, (result,))
        own.meta = dict(result.meta)
        end.args = (own,)
