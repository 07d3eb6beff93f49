"""The zoo: models by name, or from the user's own file, built for a graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.config import ModelConfig, class_in_file
from sagann.did_you_mean import closest, did_you_mean
from sagann.errors import InputError, shown
from sagann.graph import Graph, for_task
from sagann.graph.task import answers_of, without_others
from sagann.interop.pyg_model import from_pyg_model, is_written_for_pyg
from sagann.nn.attention import GAT, GATv2, TransformerConv
from sagann.nn.graph_model import GraphModel, pooled_by, reads_graphs
from sagann.nn.layers import GCN, GIN, SAGE, CommNet, GatedGCN, MaxPoolGCN, ResidualGCN
from sagann.nn.link_model import LinkModel, decoder_of
from sagann.nn.model_call import own_score
from sagann.nn.neighbourhoods import PNA, EdgeConv
from sagann.nn.propagation import Propagated
from sagann.nn.relations import GGNN, GINE, RGCN
from sagann.nn.stack import GNN, EmbeddingEncoder, LinearEncoder
from sagann.nn.user_model import layer_from_class, load_class, module_from_class
from sagann.options import options_of, refuse
from sagann.saga import SagaLayer

ATTENTION = MappingProxyType({"gat": GAT, "gatv2": GATv2, "transformer": TransformerConv})
"Layers with attention heads, by the names of their models."


def check_names(config: ModelConfig) -> None:
    """Check the names in a ModelConfig, and what its model does not take; options of a model of the zoo become fields."""
    is_own = class_in_file(config.model) is not None
    if not is_own and config.model not in MODELS:
        raise InputError(
            f"unknown model: {shown(config.model)}, expected one of {', '.join(MODELS)} (in ModelConfig.model)",
            hint=f"{did_you_mean(config.model, MODELS)}Choose one of these, or name your own as path/to/file.py:ClassName.",
        )
    # As a run gives them back. Those of a class of one's own are checked with the class.
    given: dict[str, Any] = json.loads(json.dumps(config.model_options))
    for name in () if is_own else (*given,):
        _take_option(config, name, given.pop(name))
    object.__setattr__(config, "model_options", given)
    pooled_by(config.pool, where="ModelConfig.pool")
    if config.batch_norm:
        refuse(config, ["layer_norm"], "batch_norm is set: a layer has one norm", "leave batch_norm out")
    if config.model in ATTENTION and config.hidden % config.heads:
        raise InputError(
            f"the heads do not divide the width: hidden {config.hidden}, heads {config.heads} (in {config.model})",
            hint=f"Use hidden = {config.hidden // config.heads * config.heads or config.heads} or other heads.",
        )


def _take_option(config: ModelConfig, name: str, value: Any) -> None:
    known = {
        each: option for each, option in options_of(ModelConfig).items() if each not in ("model", "model_options")
    }
    where = "ModelConfig.model_options"
    if name not in known:
        raise InputError(
            f"{config.model} has no such option: {shown(name)} (in {where})", hint=closest(name, known)
        )
    before, value = getattr(config, name), known[name].checked(value)
    if before not in (known[name].default, value):
        raise InputError(
            f"an option of the model is given twice: {name} = {shown(before)}, and {shown(value)} in "
            f"model_options (in {where})",
            hint="Leave one of them out.",
        )
    object.__setattr__(config, name, value)


def build_model(config: ModelConfig, graph: Graph) -> nn.Module:
    """Build the model that ``config`` names, with input and output widths from ``graph``.

    Where ``graph`` has answers of whole graphs, the result is a :class:`sagann.nn.GraphModel`, or a model of the user's own whose ``forward``
    takes ``graph_ptr``. Where it has links, the result is a :class:`sagann.nn.LinkModel`, or a model of the user's own that has ``score``.

    Raises:
        InputError: the graph has neither classes, targets nor links, or answers for several tasks, its features do not fit the encoder, the
            user's class cannot be used, or a decoder is named that nothing would use.
    """
    graph = for_task(graph)
    answers = graph.answers
    if answers.unit == "link":
        return _link_model(config, graph)
    refuse(config, ["decoder"], "links are not learned")
    num_outputs = answers.num_outputs
    if num_outputs < 1:
        raise InputError(
            f"the graph has no classes to learn, and no targets: {answers_of(graph)} (in graph '{graph.name}')",
            hint="Give the graph labels and num_classes, or targets.",
        )
    build = MODELS.get(config.model, _build_users)
    if answers.unit != "graph":
        return build(config, graph)
    if config.model not in MODELS and reads_graphs(_users_class(config)):
        return build(config, with_outputs(graph, num_outputs))
    gnn = build(config, with_outputs(graph, config.hidden))
    if reads_graphs(gnn):
        # A model of PyG that shows only when it runs that it pools.
        return build(config, with_outputs(graph, num_outputs))
    return GraphModel(
        gnn,
        config.hidden,
        num_outputs,
        pool=pooled_by(config.pool, where="ModelConfig.pool"),
        dropout=config.dropout,
    )


def _link_model(config: ModelConfig, graph: Graph) -> nn.Module:
    gnn = MODELS.get(config.model, _build_users)(config, with_outputs(graph, config.hidden))
    if config.model not in MODELS and own_score(gnn) is not None:
        refuse(config, ["decoder"], f"{type(gnn).__name__} has a score of its own")
        return gnn
    return LinkModel(
        gnn,
        config.hidden,
        decoder=decoder_of(config.decoder, graph),
        num_edge_types=graph.num_edge_types,
        dropout=config.dropout,
    )


def with_outputs(graph: Graph, num_outputs: int) -> Graph:
    """The graph for a builder of models with ``num_outputs`` outputs per vertex."""
    return replace(
        without_others(graph, "regression"), targets=torch.zeros(1, 1).expand(graph.num_vertices, num_outputs)
    )


def _stack(
    layer: Callable[[ModelConfig, int, int, bool], SagaLayer],
    activation: Callable[[Tensor], Tensor] | None = torch.relu,
) -> Callable[[ModelConfig, Graph], GNN]:
    """A builder of stacks; ``layer(config, in_dim, out_dim, is_last)`` makes one layer."""

    def build(config: ModelConfig, graph: Graph) -> GNN:
        encoder, in_dim = _encoder(config, graph)
        dims = [in_dim, *[config.hidden] * (config.layers - 1), graph.num_outputs]
        pairs = list(pairwise(dims))
        layers = [layer(config, a, b, hop == len(pairs) - 1) for hop, (a, b) in enumerate(pairs)]
        norms = _norms(config, dims[1:-1])
        return GNN(layers, encoder=encoder, dropout=config.dropout, norms=norms, activation=activation)

    return build


def _norms(config: ModelConfig, dims: Sequence[int]) -> list[nn.Module]:
    if config.batch_norm:
        return [nn.BatchNorm1d(dim) for dim in dims]
    return [nn.LayerNorm(dim) for dim in dims] if config.layer_norm else []


def _plain(kind: Callable[[int, int], SagaLayer]) -> Callable[[ModelConfig, Graph], GNN]:
    return _stack(lambda _config, in_dim, out_dim, _is_last: kind(in_dim, out_dim))


def _attention(config: ModelConfig, in_dim: int, out_dim: int, is_last: bool) -> SagaLayer:
    heads = config.out_heads if is_last else config.heads
    # The softmax of a transformer is over products, without a LeakyReLU.
    slope = {} if config.model == "transformer" else {"negative_slope": config.negative_slope}
    return ATTENTION[config.model](
        in_dim,
        out_dim if is_last else out_dim // heads,
        num_heads=heads,
        concat=not is_last,
        attention_dropout=config.attention_dropout,
        **slope,
    )


def _residual_gcn(config: ModelConfig, in_dim: int, out_dim: int, is_last: bool) -> ResidualGCN:
    return ResidualGCN(in_dim, out_dim, activated=not is_last, linear_shortcut=config.linear_shortcut)


def _ggnn(config: ModelConfig, graph: Graph) -> GNN:
    with_encoder = replace(config, encoder="linear") if config.encoder == "auto" and graph.num_features else config
    encoder, in_dim = _encoder(with_encoder, graph)
    return GNN(
        [GGNN(in_dim, max(graph.num_edge_types, 1))],
        encoder=encoder,
        decoder=nn.Linear(in_dim, graph.num_outputs),
        steps=config.layers,
        dropout=config.dropout,
        norms=_norms(config, [in_dim]),
        activation=None,
    )


def _of_graph(layer: Callable[[Graph, int, int], SagaLayer]) -> Callable[[ModelConfig, Graph], GNN]:
    """A builder of stacks of layers that depend on the graph; ``layer(graph, in_dim, out_dim)`` makes one."""

    def build(config: ModelConfig, graph: Graph) -> GNN:
        return _plain(lambda in_dim, out_dim: layer(graph, in_dim, out_dim))(config, graph)

    return build


def _sgc(config: ModelConfig, graph: Graph) -> Propagated:
    dim = graph.num_outputs
    return Propagated(_rows(graph, dim, bias=False), None, hops=config.layers, teleport=0.0, bias_dim=dim)


def _appnp(config: ModelConfig, graph: Graph) -> Propagated:
    return Propagated(
        _rows(graph, config.hidden),
        nn.Linear(config.hidden, graph.num_outputs),
        hops=config.layers,
        teleport=config.teleport,
        dropout=config.dropout,
    )


def _rows(graph: Graph, out_dim: int, *, bias: bool = True) -> nn.Module:
    """A map of the features, or a learned row per vertex where there are none."""
    if graph.num_features:
        return LinearEncoder(graph.num_features, out_dim, bias=bias)
    return EmbeddingEncoder(graph.num_vertices, out_dim)


def _users_class(config: ModelConfig) -> type[nn.Module]:
    named = class_in_file(config.model)
    assert named is not None
    return load_class(*named)


def _build_users(config: ModelConfig, graph: Graph) -> nn.Module:
    cls = _users_class(config)
    if issubclass(cls, SagaLayer):
        return _plain(lambda a, b: layer_from_class(cls, a, b, config.model_options))(config, graph)
    offered = {
        "in_dim": graph.num_features,
        "out_dim": graph.num_outputs,
        "hidden_dim": config.hidden,
        "num_layers": config.layers,
        "dropout": config.dropout,
        "num_vertices": graph.num_vertices,
        "num_edge_types": graph.num_edge_types,
        # The same by PyG's names.
        "in_channels": graph.num_features,
        "hidden_channels": config.hidden,
        "out_channels": graph.num_outputs,
    }
    model = module_from_class(cls, offered, config.model_options)
    return from_pyg_model(model, graph) if is_written_for_pyg(model) else model


def _encoder(config: ModelConfig, graph: Graph) -> tuple[nn.Module | None, int]:
    """The encoder, and the width of the first layer's input."""
    kind = config.encoder
    if kind == "auto":
        kind = "none" if graph.num_features else "embedding"
    if kind != "embedding" and not graph.num_features:
        raise InputError(
            f"vertices have no features: encoder = '{kind}' (in graph '{graph.name}')",
            hint="Use encoder = 'embedding', or give the graph features.",
        )
    if kind == "none":
        return None, graph.num_features
    if kind == "linear":
        return LinearEncoder(graph.num_features, config.hidden), config.hidden
    if graph.num_features:
        raise InputError(
            f"an embedding per vertex leaves the features unused: {graph.num_features} features (in graph "
            f"'{graph.name}')",
            hint="Use encoder = 'linear' or 'none', or drop the features.",
        )
    return EmbeddingEncoder(graph.num_vertices, config.hidden), config.hidden


MODELS = MappingProxyType(
    {
        "commnet": _plain(CommNet),
        "gcn": _plain(GCN),
        "maxpool-gcn": _plain(MaxPoolGCN),
        "gated-gcn": _plain(GatedGCN),
        "ggnn": _ggnn,
        "gin": _plain(GIN),
        "gat": _stack(_attention, F.elu),
        "sage": _plain(SAGE),
        "residual-gcn": _stack(_residual_gcn, None),
        "gatv2": _stack(_attention, F.elu),
        "transformer": _stack(_attention),
        "edgeconv": _plain(EdgeConv),
        "pna": _of_graph(lambda graph, a, b: PNA(a, b, PNA.mean_log_degree_of(graph))),
        "rgcn": _of_graph(lambda graph, a, b: RGCN(a, b, max(graph.num_edge_types, 1))),
        "gine": _of_graph(lambda graph, a, b: GINE(a, b, GINE.edge_dim_of(graph))),
        "sgc": _sgc,
        "appnp": _appnp,
    }
)
"Builders of the zoo's models by name."
