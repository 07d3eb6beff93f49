"""Capture: a model of SAGA layers and row-wise operators becomes stages of vertices and the gathers between them.

The model's forward is traced once with every layer as one node; the layers' compiled graphs are then put in the
nodes' places. What is left is one graph of row-wise operators in which gathers, and the means of BatchNorms, alone reach from vertex to
vertex. So it falls into stages: stage k reads what link k - 1 gave, and computes what link k reads. A value that later stages need
as well is stored where it is made. A stage runs on any rows, a gather on any part of the edges.

References:
    Ma et al., NGra, 2018, Sec. 3.1, and NeuGraph, USENIX ATC 2019, Sec. 3.2: the dataflow of chunks. We differ in
    tracing whole models, so that what stands between layers is part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from sagann.compiler.compile import CompilerOptions
from sagann.compiler.model_program import ModelProgram
from sagann.compiler.model_stages import ModelCut
from sagann.compiler.operators import BATCH_MEANS, EDGE_MEANS, GATHER, GATHERED, SAGA_LAYER
from sagann.compiler.recording import Call, Recorder, cannot_be_captured, traced_model
from sagann.compiler.trace import TraceError, drop_unread, merge_equal
from sagann.graph.topology import Topology
from sagann.saga.shared_lock import MODELS


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
        raise cannot_be_captured(model, error) from error


def _inline(module: fx.GraphModule, node: fx.Node, call: Call) -> None:
    """Put the layer's graph in its node's place."""
    arguments: Any = node.args[0]
    rows = dict(zip(call.inputs, arguments, strict=True))
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


def _own_output(module: fx.GraphModule) -> None:
    """Have the last stage give the result, also where that is what was gathered, or the features."""
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    result = end.args[0]
    if isinstance(result, fx.Node) and (result.target is GATHERED or result.op == "placeholder"):
        with module.graph.inserting_before(end):
            own = module.graph.call_function(torch.ops.aten.clone.default, (result,))
        own.meta = dict(result.meta)
        end.args = (own,)
