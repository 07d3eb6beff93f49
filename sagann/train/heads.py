"""Heads: what a model's rows are, for vertices, whole graphs and links. Nothing else in training knows the unit that is learned."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from sagann.errors import InputError, LayerError, require_type
from sagann.graph import Graph
from sagann.graph.answers import answers_in
from sagann.graph.checks import CHECKED_AT_ONCE, Unit, check_types, form_of, numbered, require_ids
from sagann.graph.topology import Topology
from sagann.graph.validate import FEATURE_DTYPES
from sagann.kernels.feature_rows import FeatureRows
from sagann.nn.model_call import GRAPHS, VERTICES, check_call, check_score, class_of, own_score
from sagann.nn.on_vertices import product, reads_graphs
from sagann.saga.engine import EdgeData, Engine, VertexRows, current_engine, using_engine
from sagann.saga.layer import SagaLayer, count_hops
from sagann.train.contract import Contract
from sagann.train.losses import Loss
from sagann.train.metrics import predict_classes

if TYPE_CHECKING:
    from sagann.runtime.loading import GraphBatch, MiniBatch


Batch: TypeAlias = "MiniBatch | GraphBatch"
"What a step of several in an epoch trains on."

_TRIED_LINKS = 8
"Links on which it is tried whether a score depends on others."
_DIVERGED = "Look for features far larger than in training; a model that diverged wants a lower lr."
_LINKS_HINT = "Pass links=(src, dst), or with edge types (src, dst, types)."


class Call(NamedTuple):
    """How a model is called for a batch."""

    arguments: tuple[Any, ...]
    "Arguments of the model."
    ids: Tensor
    "Ids of the vertices whose rows the model reads."
    num_rows: int
    "Number of rows that the model gives."
    device: torch.device
    "Device of the rows."


class Head:
    """What a model of vertices gives: a row of outputs for each."""

    unit: Unit = "vertex"
    arguments: tuple[str, ...] = VERTICES
    "Names of the arguments that the model's ``forward`` is called with, in their order."
    folds = True
    "Whether the loss is a sum over vertices, which a streamed model computes interval by interval."

    def __init__(self, model: nn.Module, contract: Contract, loss: Loss, device: torch.device) -> None:
        self.model, self.contract, self.mean_loss, self.device = model, contract, loss, device
        self.num_hops = count_hops(model)
        self.name = class_of(model).__name__
        check_call(model, self.arguments, where=f"model {self.name}")
        self.embedder: nn.Module = LastInput(model, self.num_hops)
        "Gives embeddings; kept, because what it is traced to is kept with it."

    def call(self, batch: Any) -> Call:
        """How the model is called for a batch."""
        return Call((batch.blocks, batch.features), batch.src_ids, len(batch.seeds), batch.blocks[-1].device)

    def check(self, rows: object, count: int, device: torch.device) -> Tensor:
        """The model's rows, if they have the right form; else a LayerError."""
        width: Any = self.contract.num_outputs
        column = "target" if self.contract.kind == "regression" else "class"
        said = f"row per {self.unit}, with a column per {column}"
        if self.unit == "link":
            said, width = "row per vertex, of any width, to score pairs of rows", "F"
        if _is_floats(rows, device) and rows.ndim == 2 and len(rows) == count and width in (rows.shape[1], "F"):
            return rows
        elsewhere = f" on {rows.device}" if isinstance(rows, Tensor) and rows.device != device else ""
        raise LayerError(
            f"the model must return one {said}: {form_of(rows)}{elsewhere}, expected a dense tensor "
            f"of 16- to 64-bit floats [{count}, {width}] on {device} (in model {self.name})",
            hint="Let the last layer return such a tensor.",
        )

    def try_rows(self, rows: Tensor) -> None:
        """Find errors of what is made of the rows, before anything is trained."""

    def loss(self, rows: Tensor, batch: Any) -> Tensor:
        """The mean loss of a batch's rows."""
        return self.mean_loss(rows, answers_in(batch.labels, batch.targets))

    def num_edges(self, batch: Any) -> int:
        """Number of edges that a forward pass of a batch walks."""
        return batch.num_edges

    def outputs(self, rows: Tensor, graph: Graph, splits: Collection[str]) -> Tensor:
        """What is measured on splits of a graph, from the rows of all vertices."""
        return rows

    def require_finite(self, outputs: Tensor, graph: Graph) -> Tensor:
        """The outputs for a graph, if they are finite."""
        step = max(1, CHECKED_AT_ONCE // max(1, outputs.shape[1]))
        wrong = torch.cat([~rows.isfinite().all(dim=1) for rows in outputs.split(step)])
        if wrong.any():
            raise InputError(
                f"the model's output is not finite: {self.unit} {int(wrong.nonzero()[0])} and "
                f"{int(wrong.sum()) - 1} more (in graph '{graph.name}')",
                hint=_DIVERGED,
            )
        return outputs

    def check_request(self, graph: Graph, *, probabilities: bool, links: Any) -> tuple[Tensor, ...]:
        """The links of a prediction, checked; none but where links are learned."""
        if links is not None:
            raise InputError(
                "only a model of links scores pairs of vertices: links are passed, the task is "
                f"{self.contract.task} (in predict)",
                hint="Leave links out.",
            )
        if probabilities and self.contract.kind == "regression":
            raise InputError(
                "a regression has no probabilities: probabilities=True (in predict)",
                hint="Leave it out: the predictions are values.",
            )
        return ()

    def predict(self, rows: Tensor, graph: Graph, *, probabilities: bool, links: tuple[Tensor, ...]) -> Tensor:
        """Predictions from the rows of all vertices, on the CPU."""
        outputs, kind = self.require_finite(rows, graph), self.contract.kind
        if kind == "regression":
            # A copy, because the outputs of a streamed model lie in a file.
            return (outputs[:, 0] if self.contract.num_outputs == 1 else outputs).to("cpu", copy=True)
        multi_label = kind == "multi-label"
        if probabilities:
            return (outputs.sigmoid() if multi_label else outputs.softmax(dim=1)).cpu()
        return predict_classes(outputs, multi_label=multi_label).cpu()


class GraphHead(Head):
    """What a model of whole graphs gives: a row of outputs for each graph of a batch."""

    unit: Unit = "graph"
    arguments = GRAPHS

    def __init__(self, model: nn.Module, contract: Contract, loss: Loss, device: torch.device) -> None:
        if not reads_graphs(model):
            raise InputError(
                "the model gives vertices rows, and graphs none: its forward does not take graph_ptr (in model "
                f"{class_of(model).__name__})",
                hint=f"Pass sagann.nn.GraphModel(model, width, {contract.num_outputs}), or let forward take (hops, x, graph_ptr) and pool with "
                "sagann.nn.pool.",
            )
        super().__init__(model, contract, loss, device)

    def call(self, batch: Any) -> Call:
        arguments = (batch.hops(self.num_hops), batch.features, batch.graph_ptr)
        return Call(arguments, batch.vertices, batch.num_graphs, batch.topology.device)

    def loss(self, rows: Tensor, batch: Any) -> Tensor:
        return self.mean_loss(rows, answers_in(batch.graph_labels, batch.graph_targets))

    def num_edges(self, batch: Any) -> int:
        return batch.num_edges * self.num_hops


class LinkHead(Head):
    """What a model of links gives: a row for each vertex. The product of two rows scores a link, or the model's own ``score``.

    ``model.score(src, dst, types)`` gets the rows [n, F] of sources and of destinations, and the types of the links, int64 [n] or None; it gives
    logits [n].
    """

    unit: Unit = "link"
    folds = False

    def __init__(self, model: nn.Module, contract: Contract, loss: Loss, device: torch.device) -> None:
        super().__init__(model, contract, loss, device)
        check_score(model, where=f"model {self.name}")
        # The rows that links are scored by.
        self.embedder = model

    def try_rows(self, rows: Tensor) -> None:
        """Refuse a score of a link that depends on the links beside it."""
        ids = torch.arange(min(_TRIED_LINKS, len(rows)), device=rows.device)
        if len(ids) < 2:
            return
        types = torch.zeros_like(ids) if self.contract.num_edge_types else None
        together = self.scores(rows, ids, ids.flip(0), types)[0]
        alone = self.scores(rows, ids[:1], ids.flip(0)[:1], None if types is None else types[:1])[0]
        if not torch.allclose(together, alone, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise LayerError(
                f"score must treat links independently: the score of a link is {float(together):g} beside "
                f"{len(ids) - 1} others, and {float(alone):g} alone (in {self.name}.score)",
                hint="Reduce over feature dimensions only (dim=-1).",
            )

    def loss(self, rows: Tensor, batch: Any) -> Tensor:
        src, dst = batch.links.side_by_side()
        return self.loss_of_links(rows, src, dst, batch.links.types)

    def outputs(self, rows: Tensor, graph: Graph, splits: Collection[str]) -> Tensor:
        """The scores of the links to measure, each before those of its negative links: [num_links, 1 + num_negatives]; 0 for links of other splits."""
        links = graph.links
        assert links is not None
        masks = [mask for name, mask in links.splits.items() if name in splits]
        chosen = torch.stack(masks).any(dim=0).nonzero().squeeze(1) if masks else links.src[:0]
        found = list[Tensor]()
        for part in chosen.split(max(1, CHECKED_AT_ONCE // (1 + links.num_negatives))):
            dst = torch.cat([links.dst[part].unsqueeze(1), links.negatives[part]], dim=1)
            types = None if links.types is None else links.types[part]
            scores = self.scores(rows, links.src[part].unsqueeze(1), dst, types)
            if not bool(scores.isfinite().all()):
                raise InputError(
                    f"a score is not finite: {int((~scores.isfinite()).sum())} of {scores.numel()} scores "
                    f"(in model {self.name})",
                    hint=_DIVERGED,
                )
            found.append(scores.to(chosen.device))
        # A model's own scores may have another dtype than its rows.
        outputs = found[0].new_zeros(links.num_links, 1 + links.num_negatives)
        outputs[chosen] = torch.cat(found)
        return outputs

    def require_finite(self, outputs: Tensor, graph: Graph) -> Tensor:
        return outputs

    def loss_of_links(self, rows: Tensor, src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
        """The mean loss of positive links, each with its negative ones: ``src`` and ``dst`` int64 [n, 1 + K], ``types`` int64 [n] or None."""
        scores = self.scores(rows, src, dst, types)
        return self.mean_loss(scores, torch.zeros(len(src), dtype=torch.int64, device=scores.device))

    def scores(self, rows: Tensor, src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
        """The logits of links between rows: ``dst`` [n] or [n, 1 + K], ``src`` the same or [n, 1], ``types`` [n] or None; slice by slice."""
        ends = [src, dst] if types is None else [src, dst, types.view(-1, *[1] * (dst.ndim - 1))]
        flat = [each.expand_as(dst).flatten().to(rows.device) for each in ends]
        step = max(1, CHECKED_AT_ONCE // max(1, rows.shape[1]))
        found, keeps = list[Tensor](), len(flat[0]) <= step or not torch.is_grad_enabled()
        for part in zip(*(each.split(step) for each in flat), strict=True):
            # Of several slices, the rows of each are gathered again in the backward pass.
            found.append(
                self._score(rows, *part) if keeps else checkpoint(self._score, rows, *part, use_reentrant=False)
            )
        return torch.cat(found).view(dst.shape)

    def _score(self, rows: Tensor, src: Tensor, dst: Tensor, types: Tensor | None = None) -> Tensor:
        # The backward pass of an embedding adds in parallel, that of an index does not. Rows may be too many for the device.
        sources, destinations = (F.embedding(ids, rows).to(self.device) for ids in (src, dst))
        # A score may overwrite its arguments.
        kinds = None if types is None else types.to(self.device, copy=True)
        scores = (own_score(self.model) or product)(sources, destinations, kinds)
        if _is_floats(scores, self.device) and scores.shape == (len(src),):
            return scores
        raise LayerError(
            f"score must give a logit for each link: {form_of(scores)}, expected a dense tensor of floats "
            f"[{len(src)}] on {self.device} (in {self.name}.score)",
            hint="Let score(src, dst, types) return a dense tensor of one number for each pair of rows.",
        )

    def check_request(self, graph: Graph, *, probabilities: bool, links: Any) -> tuple[Tensor, ...]:
        if links is None:
            raise InputError(
                "there are no pairs of vertices to score: links is None (in predict)",
                hint=f"{_LINKS_HINT} embed gives the rows of all vertices.",
            )
        require_type(links, (tuple, list, Tensor), where="predict.links", hint=_LINKS_HINT)
        found, wanted = tuple(links), 3 if self.contract.num_edge_types else 2
        for number, ids in enumerate(found):
            require_ids(ids, graph.num_vertices if number < 2 else None, where=f"predict.links[{number}]")
        if len(found) != wanted or len({len(ids) for ids in found}) != 1:
            raise InputError(
                f"pairs of vertices have another form: {len(found)} arrays of "
                f"{', '.join(str(len(ids)) for ids in found)} ids, expected {wanted} of the same length (in "
                "predict.links)",
                hint=_LINKS_HINT,
            )
        for types in found[2:]:
            check_types(types, self.contract.num_edge_types, where=numbered("predict.links[2]", "pair"))
        return found

    def predict(self, rows: Tensor, graph: Graph, *, probabilities: bool, links: tuple[Tensor, ...]) -> Tensor:
        # A worker that gets no results has no rows.
        src, dst, *types = links if len(rows) else (ids[:0] for ids in links)
        scores = self.scores(rows, src, dst, types[0] if types else None)
        return (scores.sigmoid() if probabilities else (scores > 0).to(torch.uint8)).cpu()


HEADS: dict[Unit, type[Head]] = {kind.unit: kind for kind in (Head, GraphHead, LinkHead)}
"The head of each unit."


def _is_floats(found: object, device: torch.device) -> TypeGuard[Tensor]:
    """Whether something is a dense tensor of floats on a device."""
    return (
        isinstance(found, Tensor)
        and (found.layout, found.device) == (torch.strided, device)
        and found.dtype in FEATURE_DTYPES
    )


class LastInput(nn.Module):
    """Runs a model, and returns the input of the SAGA layer that ran last, in whatever order the layers were registered.

    It is traced and streamed as any model: a trace leaves out operators that only the model's own output needs.
    """

    def __init__(self, model: nn.Module, num_hops: int) -> None:
        super().__init__()
        self.model = model
        self.num_hops = num_hops
        # In another mode than the model's, the model would be traced anew.
        self.training = False

    def forward(self, hops: Sequence[Topology], x: Tensor, *more: Tensor) -> Tensor:
        """Dense rows [num_vertices, F]. Where the layer reads several tensors, their rows stand side by side."""
        engine = _Noting(current_engine())
        with using_engine(engine):
            self.model(hops, x, *more)
        if engine.x is None:
            raise LayerError(
                f"embed needs a SAGA layer: the model ran no SagaLayer (in model {type(self.model).__name__})",
                hint="Write the model's layers as subclasses of sagann.SagaLayer; an embedding is the last one's input.",
            )
        dense = [rows.dense() if isinstance(rows, FeatureRows) else rows for rows in engine.x.values()]
        return dense[0] if len(dense) == 1 else torch.cat([rows.flatten(1) for rows in dense], -1)


class _Noting(Engine):
    """An engine that passes layers on to another engine, and notes their input."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.x: VertexRows | None = None
        "Input of the last layer so far."

    def note_input(self, x: Tensor) -> None:
        self.x = {"": x}

    def run(self, layer: SagaLayer, topology: Topology, x: VertexRows, data: EdgeData) -> Tensor:
        from sagann.interop.pyg_layer import PygLayer

        # The input of a layer of PyG is noted, and not that of the SAGA layers that it runs.
        if not isinstance(layer, PygLayer):
            self.x = x
        return self._engine.run(layer, topology, x, data)

    def maps_features(self, layer: SagaLayer, x: FeatureRows, data: EdgeData) -> bool:
        return self._engine.maps_features(layer, x, data)
