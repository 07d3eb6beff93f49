"""The zoo: models by name, or from the user's own file, built for a graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sagann.constructor_options import require_options
from sagann.did_you_mean import closest, did_you_mean
from sagann.errors import InputError, require_choice, shown
from sagann.graph import Graph, for_task
from sagann.graph.task import answers_of, without_others
from sagann.interop.pyg_model import from_pyg_model, is_written_for_pyg
from sagann.nn.attention import GAT, GATv2, TransformerConv
from sagann.nn.graph_model import GraphModel, pooled_by, reads_graphs
from sagann.nn.layers import GCN, GIN, SAGE, CommNet, GatedGCN, MaxPoolGCN, ResidualGCN
from sagann.nn.link_model import DECODERS, LinkModel, decoder_of
from sagann.nn.model_call import own_score
from sagann.nn.neighbourhoods import PNA, EdgeConv
from sagann.nn.propagation import Propagated
from sagann.nn.relations import GGNN, GINE, RGCN
from sagann.nn.stack import GNN, EmbeddingEncoder, LinearEncoder
from sagann.nn.user_model import class_in_file, layer_from_class, load_class, module_from_class
from sagann.option_names import with_known_names
from sagann.ranges import RANGES
from sagann.saga import SagaLayer
from sagann.storage.json_fields import is_finite

ENCODERS = ("auto", "none", "linear", "embedding")
ATTENTION = MappingProxyType({"gat": GAT, "gatv2": GATv2, "transformer": TransformerConv})
"Layers with attention heads, by the names of their models."


@with_known_names
@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A model by name and size.

    Example:
        >>> ModelConfig(model="gat", heads=4).hidden
        128
    """

    model: str = "gcn"
    """appnp, commnet, edgeconv, gat, gated-gcn, gatv2, gcn, ggnn, gin, gine, maxpool-gcn, pna, residual-gcn, rgcn, sage, sgc or
    transformer; or ``path/to/file.py:ClassName`` for a layer or model of the user's own."""
    layers: int = 2
    "Number of layers; for ggnn, number of steps with shared parameters; for appnp and sgc, number of hops."
    hidden: int = 128
    "Width of the layers between the first and the last; for gat, gatv2 and transformer, width of all heads together."
    dropout: float = 0.5
    "Probability of dropping an input of a layer."
    layer_norm: bool = False
    "Put a LayerNorm after every layer but the last."
    batch_norm: bool = False
    """Put a BatchNorm after every layer but the last. While it is trained its means are over all vertices, or over those of a mini-batch.
    Devices that train together cannot have it."""
    encoder: str = "auto"
    """Module before the first layer: 'none'; 'linear' (dense or sparse features to ``hidden``); 'embedding' (a learned
    row per vertex); 'auto' (embedding where vertices have no features, linear for ggnn, else none). appnp and sgc begin with maps of their
    own, and do not read it, nor ``layer_norm`` and ``batch_norm``."""
    heads: int = 8
    "For gat, gatv2 and transformer: number of heads of all layers but the last."
    out_heads: int = 1
    "For gat, gatv2 and transformer: number of heads of the last layer, which are averaged."
    attention_dropout: float = 0.0
    "For gat, gatv2 and transformer: probability of dropping an attention coefficient."
    negative_slope: float = 0.2
    "For gat and gatv2: slope of the LeakyReLU of the scores below 0."
    teleport: float = 0.1
    "For appnp: share of a vertex's first row in its row after every hop."
    linear_shortcut: bool = False
    "For residual-gcn: learn the shortcut even where the identity would fit."
    pool: str = "mean"
    """Where whole graphs are learned: how the rows of a graph's vertices become one row of the graph: 'mean', 'sum', 'max', 'min', 'var', 'std',
    'mul', or several as 'mean,max', side by side. Two linear maps make the outputs of a graph of it."""
    decoder: str = "auto"
    """Where links are learned: the score of two vertices' rows: 'dot', their product; 'distmult', which weighs its columns by the type of the
    link; 'mlp', two linear maps of it; 'auto' (distmult where edges have types, else dot). A model with a score of its own has no decoder."""
    model_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    "Arguments of the constructor of your own layer or model. For a model of the zoo, any of its options by name."

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or (self.model not in MODELS and class_in_file(self.model) is None):
            raise InputError(
                "unknown model",
                value=f"{shown(self.model)}, expected one of {', '.join(MODELS)}",
                where="ModelConfig.model",
                fix=f"{did_you_mean(self.model, MODELS)}Choose one of these, or name your own as path/to/file.py:ClassName.",
            )
        if named := class_in_file(self.model):
            # A run may be resumed or reopened from another folder.
            object.__setattr__(self, "model", f"{named[0].absolute()}:{named[1]}")
        self._take_options(is_own=named is not None)
        require_choice(self.encoder, ENCODERS, what="unknown encoder", where="ModelConfig.encoder")
        require_choice(self.decoder, ("auto", *DECODERS), what="unknown decoder", where="ModelConfig.decoder")
        for name in ("layers", "hidden", "heads", "out_heads"):
            self._require((name,), RANGES[name].__contains__, str(RANGES[name]))
        self._require(
            ("dropout", "attention_dropout", "teleport"), _is_probability, "a number from 0 to less than 1"
        )
        self._require(("negative_slope",), is_finite, "a finite number")
        switches = ("layer_norm", "batch_norm", "linear_shortcut")
        self._require(switches, lambda value: isinstance(value, bool), "true or false")
        if self.layer_norm and self.batch_norm:
            raise InputError(
                "a layer has one norm",
                value="layer_norm and batch_norm",
                where="ModelConfig",
                fix="Leave one of them out (--layer-norm, --batch-norm).",
            )
        pooled_by(self.pool, where="ModelConfig.pool")
        if self.model in ATTENTION and self.hidden % self.heads:
            raise InputError(
                "the heads do not divide the width",
                value=f"hidden {self.hidden}, heads {self.heads}",
                where=self.model,
                fix=f"Use hidden = {self.hidden // self.heads * self.heads or self.heads} or other heads.",
            )

    def _take_options(self, *, is_own: bool) -> None:
        """Check the options. Those of a model of the zoo become fields; those of a class of one's own are checked with the class."""
        where, what = "ModelConfig.model_options", "model_options"
        require_options(self.model_options, where=where, what=what)
        # As a run gives them back.
        options: dict[str, Any] = json.loads(json.dumps(self.model_options))
        known = {each.name: each.default for each in fields(self) if each.name not in ("model", what)}
        for name in () if is_own else (*options,):
            if name not in known:
                raise InputError(
                    f"{self.model} has no such option", value=shown(name), where=where, fix=closest(name, known)
                )
            given, value = getattr(self, name), options.pop(name)
            if given not in (known[name], value):
                raise InputError(
                    "an option of the model is given twice",
                    value=f"{name} = {shown(given)}, and {shown(value)} in {what}",
                    where=where,
                    fix="Leave one of them out.",
                )
            object.__setattr__(self, name, value)
        object.__setattr__(self, what, options)

    def _require(self, names: Sequence[str], fits: Callable[[object], bool], expected: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not fits(value):
                raise InputError(
                    "model setting out of range",
                    value=f"{name} = {shown(value)}, expected {expected}",
                    where=f"ModelConfig.{name}",
                    fix=f"Set {name} to {expected}.",
                )


def _is_probability(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1


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
    _require_no_decoder(config, "links are not learned")
    num_outputs = answers.num_outputs
    if num_outputs < 1:
        raise InputError(
            "the graph has no classes to learn, and no targets",
            value=answers_of(graph),
            where=f"graph '{graph.name}'",
            fix="Give the graph labels and num_classes, or targets.",
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
        _require_no_decoder(config, f"{type(gnn).__name__} has a score of its own")
        return gnn
    return LinkModel(
        gnn,
        config.hidden,
        decoder=decoder_of(config.decoder, graph),
        num_edge_types=graph.num_edge_types,
        dropout=config.dropout,
    )


def _require_no_decoder(config: ModelConfig, why: str) -> None:
    if config.decoder != "auto":
        raise InputError(
            "a decoder has no effect",
            value=f"decoder = '{config.decoder}', and {why}",
            where="ModelConfig.decoder",
            fix="Leave decoder out.",
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
            "vertices have no features",
            value=f"encoder = '{kind}'",
            where=f"graph '{graph.name}'",
            fix="Use encoder = 'embedding', or give the graph features.",
        )
    if kind == "none":
        return None, graph.num_features
    if kind == "linear":
        return LinearEncoder(graph.num_features, config.hidden), config.hidden
    if graph.num_features:
        raise InputError(
            "an embedding per vertex leaves the features unused",
            value=f"{graph.num_features} features",
            where=f"graph '{graph.name}'",
            fix="Use encoder = 'linear' or 'none', or drop the features.",
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
