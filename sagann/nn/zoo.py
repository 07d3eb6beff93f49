"""The zoo: models by name, or from the user's own file, built for a graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann import interop, nn as layers
from sagann.config import ATTENTION, ModelConfig, class_in_file
from sagann.constructor_options import check_options
from sagann.errors import InputError, did_you_mean, require_type, shown
from sagann.graph import Graph, for_task
from sagann.graph.graph import answers_of, without_others
from sagann.nn.layers import GCN, GIN, PNA, SAGE, CommNet, EdgeConv, GatedGCN, MaxPoolGCN, ResidualGCN
from sagann.nn.model_call import is_written_for_pyg, own_score
from sagann.nn.on_vertices import GraphModel, LinkModel, decoder_of, pooled_by, reads_graphs
from sagann.nn.stack import GNN, EmbeddingEncoder, LinearEncoder, Propagated
from sagann.nn.user_model import layer_from_class, load_class, module_from_class
from sagann.options import options_of, refuse
from sagann.saga import SagaLayer

Activation: TypeAlias = Callable[[Tensor], Tensor]


def check_names(config: ModelConfig) -> None:
    """Check the names in a ModelConfig, and what its model does not take. Options of a class of one's own are checked with the class."""
    # As a run gives them back.
    object.__setattr__(config, "model_options", json.loads(json.dumps(config.model_options)))
    if class_in_file(config.model) is None:
        if config.model not in MODELS:
            raise InputError(
                f"unknown model: {shown(config.model)}, expected one of {', '.join(MODELS)} (in ModelConfig.model)",
                hint=f"{did_you_mean(config.model, MODELS)}Choose one of these, or name your own as path/to/file.py:ClassName.",
            )
        check_options(
            MODELS[config.model],
            config.model_options,
            taken=["config", "graph", *options_of(ModelConfig)],
            where="ModelConfig.model_options",
            what="model_options",
            name=config.model,
        )
    pooled_by(config.pool, where="ModelConfig.pool")
    if config.model in ATTENTION and config.hidden % config.heads:
        raise InputError(
            f"the heads do not divide the width: hidden {config.hidden}, heads {config.heads} (in {config.model})",
            hint=f"Use hidden = {config.hidden // config.heads * config.heads or config.heads} or other heads.",
        )


def build_model(config: ModelConfig, graph: Graph) -> nn.Module:
    """Build the model that ``config`` names, with input and output widths from ``graph``.

    Where ``graph`` has answers of whole graphs, the result is a :class:`sagann.nn.GraphModel`, or a model of the user's own whose ``forward``
    takes ``graph_ptr``. Where it has links, the result is a :class:`sagann.nn.LinkModel`, or a model of the user's own that has ``score``.

    Raises:
        InputError: the graph has neither classes, targets nor links, or answers for several tasks, its features do not fit the encoder, the
            user's class cannot be used, or a decoder is named that nothing would use.
    """
    require_type(config, ModelConfig, where="build_model, config", hint="Pass ModelConfig(model='gcn').")
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
    if answers.unit != "graph":
        return _build(config, graph)
    if config.model not in MODELS and reads_graphs(_users_class(config)):
        return _build(config, with_outputs(graph, num_outputs))
    gnn = _build(config, with_outputs(graph, config.hidden))
    if reads_graphs(gnn):
        # A model of PyG that shows only when it runs that it pools.
        return _build(config, with_outputs(graph, num_outputs))
    return GraphModel(
        gnn,
        config.hidden,
        num_outputs,
        pool=pooled_by(config.pool, where="ModelConfig.pool"),
        dropout=config.dropout,
    )


def _build(config: ModelConfig, graph: Graph) -> nn.Module:
    if config.model not in MODELS:
        return _build_users(config, graph)
    return MODELS[config.model](config, graph, **config.model_options)


def _link_model(config: ModelConfig, graph: Graph) -> nn.Module:
    gnn = _build(config, with_outputs(graph, config.hidden))
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
    config: ModelConfig,
    graph: Graph,
    layer: Callable[[int, int, bool], SagaLayer],
    activation: Activation | None = torch.relu,
) -> GNN:
    """A stack; ``layer(in_dim, out_dim, is_last)`` makes one layer."""
    encoder, in_dim = _encoder(config, graph)
    dims = [in_dim, *[config.hidden] * (config.layers - 1), graph.num_outputs]
    pairs = list(pairwise(dims))
    layers = [layer(a, b, hop == len(pairs) - 1) for hop, (a, b) in enumerate(pairs)]
    norms = _norms(config, dims[1:-1])
    return GNN(layers, encoder=encoder, dropout=config.dropout, norms=norms, activation=activation)


def _norms(config: ModelConfig, dims: Sequence[int]) -> list[nn.Module]:
    kinds = {None: None, "batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
    kind = kinds[config.norm]
    return [kind(dim) for dim in dims if kind is not None]


def _plain(kind: Callable[[int, int], SagaLayer]) -> Callable[[ModelConfig, Graph], GNN]:
    return lambda config, graph: _stack(config, graph, lambda in_dim, out_dim, _: kind(in_dim, out_dim))


def _attention(
    config: ModelConfig, graph: Graph, kind: Callable[..., SagaLayer], out_heads: int, activation: Activation
) -> GNN:
    def layer(in_dim: int, out_dim: int, is_last: bool) -> SagaLayer:
        heads = out_heads if is_last else config.heads
        head_dim = out_dim if is_last else out_dim // heads
        return kind(in_dim, head_dim, num_heads=heads, concat=not is_last)

    return _stack(config, graph, layer, activation)


def _leaky(kind: Callable[[], type[layers.GAT]]) -> Callable[..., GNN]:
    def build(
        config: ModelConfig,
        graph: Graph,
        *,
        out_heads: int = 1,
        attention_dropout: float = 0.0,
        negative_slope: float = 0.2,
    ) -> GNN:
        dropped = partial(kind(), attention_dropout=attention_dropout, negative_slope=negative_slope)
        return _attention(config, graph, dropped, out_heads, F.elu)

    return build


def _transformer(config: ModelConfig, graph: Graph, *, out_heads: int = 1, attention_dropout: float = 0.0) -> GNN:
    dropped = partial(layers.TransformerConv, attention_dropout=attention_dropout)
    return _attention(config, graph, dropped, out_heads, torch.relu)


def _residual_gcn(config: ModelConfig, graph: Graph, *, linear_shortcut: bool = False) -> GNN:
    def layer(in_dim: int, out_dim: int, is_last: bool) -> SagaLayer:
        return ResidualGCN(in_dim, out_dim, activated=not is_last, linear_shortcut=linear_shortcut)

    return _stack(config, graph, layer, None)


def _ggnn(config: ModelConfig, graph: Graph) -> GNN:
    with_encoder = replace(config, encoder="linear") if config.encoder == "auto" and graph.num_features else config
    encoder, in_dim = _encoder(with_encoder, graph)
    return GNN(
        [layers.GGNN(in_dim, max(graph.num_edge_types, 1))],
        encoder=encoder,
        decoder=nn.Linear(in_dim, graph.num_outputs),
        steps=config.layers,
        dropout=config.dropout,
        norms=_norms(config, [in_dim]),
        activation=None,
    )


def _of_graph(layer: Callable[[Graph, int, int], SagaLayer]) -> Callable[[ModelConfig, Graph], GNN]:
    """A builder of stacks of layers that depend on the graph; ``layer(graph, in_dim, out_dim)`` makes one."""
    return lambda config, graph: _plain(partial(layer, graph))(config, graph)


def _sgc(config: ModelConfig, graph: Graph) -> Propagated:
    dim = graph.num_outputs
    return Propagated(_rows(graph, dim, bias=False), None, hops=config.layers, teleport=0.0, bias_dim=dim)


def _appnp(config: ModelConfig, graph: Graph, *, teleport: float = 0.1) -> Propagated:
    return Propagated(
        _rows(graph, config.hidden),
        nn.Linear(config.hidden, graph.num_outputs),
        hops=config.layers,
        teleport=teleport,
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
    return interop.from_pyg_model(model, graph) if is_written_for_pyg(model) else model


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
            f"an embedding per vertex leaves the features unused: {graph.num_features} features (in graph '{graph.name}')",
            hint="Use encoder = 'linear' or 'none', or drop the features.",
        )
    return EmbeddingEncoder(graph.num_vertices, config.hidden), config.hidden


MODELS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {
        "commnet": _plain(CommNet),
        "gcn": _plain(GCN),
        "maxpool-gcn": _plain(MaxPoolGCN),
        "gated-gcn": _plain(GatedGCN),
        "ggnn": _ggnn,
        "gin": _plain(GIN),
        "gat": _leaky(lambda: layers.GAT),
        "sage": _plain(SAGE),
        "residual-gcn": _residual_gcn,
        "gatv2": _leaky(lambda: layers.GATv2),
        "transformer": _transformer,
        "edgeconv": _plain(EdgeConv),
        "pna": _of_graph(lambda graph, a, b: PNA(a, b, PNA.mean_log_degree_of(graph))),
        "rgcn": _of_graph(lambda graph, a, b: layers.RGCN(a, b, max(graph.num_edge_types, 1))),
        "gine": _of_graph(lambda graph, a, b: layers.GINE(a, b, layers.GINE.edge_dim_of(graph))),
        "sgc": _sgc,
        "appnp": _appnp,
    }
)
"Builders of the zoo's models by name: of a ModelConfig, a graph, and the model's own options."
