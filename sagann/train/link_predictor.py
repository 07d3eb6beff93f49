"""LinkPredictor: a trained model of links: it gives each vertex a row, and two rows a score."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from sagann.errors import InputError, LayerError, require_type
from sagann.graph import SPLIT_NAMES, Graph
from sagann.graph.checks import CHECKED_AT_ONCE, check_ids, check_types, form_of, numbered, require_ids
from sagann.graph.validate import FEATURE_DTYPES
from sagann.kernels.row_dropout import rows_with
from sagann.nn.link_model import product
from sagann.nn.model_call import check_score, class_of, own_score
from sagann.runtime.loading import MiniBatch
from sagann.train.contract import Contract
from sagann.train.evaluating import evaluating
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph

_TRIED_LINKS = 8
"Links on which it is tried whether a score depends on others."


class LinkPredictor(Predictor):
    """A Predictor of a model that gives each vertex a row. The product of two rows scores a link, or the model's own ``score``.

    ``model.score(src, dst, types)`` gets the rows [n, F] of sources and of destinations, and the types of the links, int64 [n] or None; it gives
    logits [n].

    Raises:
        InputError: ``score`` takes other arguments, or the model is to be divided among workers, or streamed while it is trained; and as
            :class:`Predictor`.
    """

    def __init__(self, model: nn.Module, contract: Contract, **options: Any) -> None:
        super().__init__(model, contract, **options)
        check_score(model, where=f"model {class_of(model).__name__}")
        is_streamed = self.streaming is not None and self.streaming.trains
        if is_streamed or self.workers is not None:
            found = (
                f"{self.workers.size} workers"
                if self.workers is not None
                else "a memory budget for the whole graph"
            )
            raise InputError(
                f"a model of links is neither streamed in training nor divided among workers: {found} (in "
                f"model {class_of(model).__name__})",
                hint="Train it on mini-batches, which take little memory: --sample 10,10.",
            )

    def _prepare(self, graph: Graph) -> PreparedGraph:
        prepared = super()._prepare(graph)
        return PreparedGraph(graph=prepared.graph, learned=graph.topology)

    def logits(self, prepared: PreparedGraph, *, splits: Collection[str] = SPLIT_NAMES) -> Tensor:
        """The scores of the links to measure, each before those of its negative links: [num_links, 1 + num_negatives]; 0 for links of other splits.

        Raises:
            InputError: a score is not finite.
        """
        links = prepared.graph.links
        assert links is not None
        masks = [mask for name, mask in links.splits.items() if name in splits]
        chosen = torch.stack(masks).any(dim=0).nonzero().squeeze(1) if masks else links.src[:0]
        step = max(1, CHECKED_AT_ONCE // (1 + links.num_negatives))
        with evaluating(self.model):
            rows = self.forward(prepared)
            found: Tensor | None = None
            for part in chosen.split(step):
                dst = torch.cat([links.dst[part].unsqueeze(1), links.negatives[part]], dim=1)
                src = links.src[part].unsqueeze(1).expand_as(dst)
                types = None if links.types is None else links.types[part]
                scores = self._scores_side_by_side(rows, src, dst, types)
                if not bool(scores.isfinite().all()):
                    raise InputError(
                        f"a score is not finite: {int((~scores.isfinite()).sum())} of {scores.numel()} scores "
                        f"(in model {class_of(self.model).__name__})",
                        hint="Look for features far larger than in training; a model that diverged wants a lower lr.",
                    )
                if found is None:
                    # A model's own scores may have another dtype than its rows.
                    found = scores.new_zeros(links.num_links, 1 + links.num_negatives)
                found[part] = scores
        # One part at least is scored, if an empty one.
        assert found is not None
        return found

    def try_out(self, prepared: PreparedGraph) -> None:
        """Make lazy parameters, and find errors of the model before anything is trained."""
        if self.streaming is not None:
            super().try_out(prepared)
            return
        with evaluating(self.model):
            self._try_score(self.forward(prepared))

    def _try_score(self, rows: Tensor) -> None:
        """Refuse a score of a link that depends on the links beside it."""
        ids = torch.arange(min(_TRIED_LINKS, len(rows)), device=rows.device)
        types = torch.zeros_like(ids) if self.contract.num_edge_types else None
        together = self.scores(rows, ids, ids.flip(0), types)[0]
        alone = self.scores(rows, ids[:1], ids.flip(0)[:1], None if types is None else types[:1])[0]
        if not torch.allclose(together, alone, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise LayerError(
                f"score must treat links independently: the score of a link is {float(together):g} beside "
                f"{len(ids) - 1} others, and {float(alone):g} alone (in {class_of(self.model).__name__}.score)",
                hint="Reduce over feature dimensions only (dim=-1).",
            )

    def loss_of_links(self, prepared: PreparedGraph, src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
        """The mean loss of some positive links over the whole graph, with its gradient.

        Args:
            prepared: the graph.
            src: sources, int64 [n, 1 + K], of a positive link and of its negative ones.
            dst: destinations, likewise.
            types: int64 [n]; None where links have none.
        """
        return self._mean_loss_of(self.forward(prepared), src, dst, types)

    def loss_of_batch(self, batch: MiniBatch) -> Tensor:
        """The mean loss of a mini-batch's positive links, with its gradient."""
        assert batch.links is not None
        return self._mean_loss_of(self.forward_batch(batch), *batch.links.side_by_side(), batch.links.types)

    def _mean_loss_of(self, rows: Tensor, src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
        scores = self._scores_side_by_side(rows, src.to(rows.device), dst.to(rows.device), types)
        return self.mean_loss(scores, torch.zeros(len(src), dtype=torch.int64, device=rows.device))

    def _scores_side_by_side(self, rows: Tensor, src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
        """The scores [n, 1 + K] of links whose ends are ``src`` and ``dst``, [n, 1 + K], those of a row of the type ``types``, [n]."""
        of_each = None if types is None else types.to(rows.device).unsqueeze(1).expand_as(dst).flatten()
        return self.scores(rows, src.flatten(), dst.flatten(), of_each).view(dst.shape)

    def scores(self, rows: Tensor, src: Tensor, dst: Tensor, types: Tensor | None) -> Tensor:
        """The logits [n] of links between rows, in the model's current mode, with their gradient.

        A slice of the links is computed at a time; its rows are not kept, but gathered again in the backward pass.
        """
        step = max(1, CHECKED_AT_ONCE // max(1, rows.shape[1]))
        found = [
            self._score(rows, src[part], dst[part], None if types is None else types[part], keeps=len(src) <= step)
            for part in (slice(first, first + step) for first in range(0, max(1, len(src)), step))
        ]
        return found[0] if len(found) == 1 else torch.cat(found)

    def _score(self, rows: Tensor, src: Tensor, dst: Tensor, types: Tensor | None, *, keeps: bool) -> Tensor:
        score = own_score(self.model) or product

        def scored(rows: Tensor) -> Tensor:
            # The backward pass of an embedding adds in parallel, that of an index does not. A score may overwrite what it gets.
            own_types = None if types is None else types.clone()
            found = score(F.embedding(src, rows), F.embedding(dst, rows), own_types)
            return self._checked_scores(found, len(src), rows)

        if keeps or not torch.is_grad_enabled():
            return scored(rows)
        found: Tensor = checkpoint(scored, rows, use_reentrant=False)
        return found

    def _checked_scores(self, scores: object, count: int, rows: Tensor) -> Tensor:
        if (
            isinstance(scores, Tensor)
            and scores.layout == torch.strided
            and scores.shape == (count,)
            and scores.dtype in FEATURE_DTYPES
            and scores.device == rows.device
        ):
            return scores
        raise LayerError(
            f"score must give a logit for each link: {form_of(scores)}, expected a dense tensor of floats "
            f"[{count}] on {rows.device} (in {class_of(self.model).__name__}.score)",
            hint="Let score(src, dst, types) return a dense tensor of one number for each pair of rows.",
        )

    def forward_batch(self, batch: MiniBatch) -> Tensor:
        with rows_with(batch.src_ids):
            rows = self._run(lambda: self.model(batch.blocks, batch.features), batch.features)
        return self._checked_rows(rows, len(batch.seeds), batch.blocks[-1].device)

    def _checked(self, logits: Tensor, graph: Graph) -> Tensor:
        return self._checked_rows(logits, graph.num_vertices, graph.topology.device)

    def _checked_rows(self, rows: object, count: int, device: torch.device) -> Tensor:
        if (
            isinstance(rows, Tensor)
            and rows.layout == torch.strided
            and rows.ndim == 2
            and len(rows) == count
            and rows.dtype in FEATURE_DTYPES
            and rows.device == device
        ):
            return rows
        raise LayerError(
            f"the model must return one row per vertex, of any width: {form_of(rows)}, expected a dense tensor "
            f"of 16- to 64-bit floats [{count}, F] on {device} (in model {class_of(self.model).__name__})",
            hint="Let the last layer return such a tensor. Two rows are scored by their product, or by a method score(src, dst, types).",
        )

    def predict(
        self,
        graph: Graph | PreparedGraph,
        *,
        probabilities: bool = False,
        links: tuple[Tensor, ...] | None = None,
    ) -> Tensor:
        """Score pairs of vertices, with messages along all edges of ``graph``.

        Args:
            graph: the training graph or a new one.
            probabilities: return probabilities instead of 0 and 1.
            links: sources and destinations, int64 [n] each; of a graph with edge types also the types, int64 [n].
        Returns:
            floats [n] of probabilities, or uint8 [n]: 1 where an edge is expected (probability above 0.5). On the CPU.
        Raises:
            InputError: ``links`` is None, or an id is out of range.
        """
        if links is None:
            raise InputError(
                "there are no pairs of vertices to score: links is None (in predict)",
                hint="Pass links=(src, dst), or with edge types (src, dst, types); embed gives the rows of all vertices.",
            )
        prepared = self._prepared(graph)
        src, dst, types = self._checked_links(links, prepared.graph)
        with evaluating(self.model):
            scores = self.scores(self.forward(prepared), src, dst, types)
        return (scores.sigmoid() if probabilities else (scores > 0).to(torch.uint8)).cpu()

    def _checked_links(self, links: tuple[Tensor, ...], graph: Graph) -> tuple[Tensor, Tensor, Tensor | None]:
        wanted = 3 if self.contract.num_edge_types else 2
        hint = "Pass links=(src, dst), or with edge types (src, dst, types)."
        require_type(links, (tuple, list, Tensor), where="predict.links", hint=hint)
        links = tuple(links)
        for number, ids in enumerate(links):
            require_ids(ids, where=f"predict.links[{number}]")
        if len(links) != wanted or len({len(ids) for ids in links}) != 1:
            raise InputError(
                f"pairs of vertices have another form: {len(links)} arrays of "
                f"{', '.join(str(len(ids)) for ids in links)} ids, expected {wanted} of the same length (in "
                "predict.links)",
                hint=hint,
            )
        for number, ids in enumerate(links):
            where = numbered(f"predict.links[{number}]", "pair")
            if number < 2:
                check_ids(ids, graph.num_vertices, "vertex", where=where)
            else:
                check_types(ids, self.contract.num_edge_types, where=where)
        device = graph.topology.device
        src, dst, *types = (ids.to(device) for ids in links)
        return src, dst, types[0] if types else None

    def _embed(self, prepared: PreparedGraph) -> Tensor:
        """The rows that links are scored by."""
        with evaluating(self.model):
            return self.forward(prepared).to("cpu", copy=True)
