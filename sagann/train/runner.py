"""Runners: a model over a prepared graph, however it runs: whole and in memory, over a worker's part, or graph by graph.

Whoever trains or evaluates asks a runner for rows and losses, and never how it runs. :mod:`sagann.train.streamed` runs a model by intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sagann.errors import LayerError
from sagann.graph.feature_store import Features
from sagann.kernels.row_dropout import rows_with
from sagann.nn.model_call import class_of
from sagann.saga.batch_norms import naming_few_rows
from sagann.saga.layer import count_hops
from sagann.train.heads import Batch, Head
from sagann.train.preparation import PreparedGraph, evaluating, large_arrays
from sagann.train.run_folder import PROFILE_FILE
from sagann.train.trainable import require_one_graph

if TYPE_CHECKING:
    from sagann.runtime.loading import GraphBatch
    from sagann.runtime.recorder import Recorder
    from sagann.runtime.streaming.epoch import LossOf
    from sagann.train.streamed import Streaming

# Vertices of a batch of graphs that is evaluated.
_VERTICES_AT_ONCE = 1 << 16


class Runner:
    """A model over a whole graph in memory. Subclasses run it otherwise. With ``for_first``, the first worker alone gets rows of all vertices."""

    def __init__(
        self,
        model: nn.Module,
        prepared: PreparedGraph,
        head: Head,
        *,
        device: torch.device,
        streaming: Streaming | None = None,
        for_first: bool = False,
    ) -> None:
        self.model, self.prepared, self.device, self.streaming = model, prepared, device, streaming
        self.num_hops = count_hops(model)
        self.team = prepared.team
        self._head, self._for_first = head, for_first

    def rows(self) -> Tensor:
        """The model's rows of this process's own vertices (or graphs) in its current mode, with their gradient."""
        own, walked = self.prepared.vertices, self.prepared.walked
        return self._head.check(self._run(self.model), own.stop - own.start, walked.topology.device)

    def all_rows(self) -> Tensor:
        """The rows of all vertices at every worker, with their gradient."""
        rows, part = self.rows(), self.prepared.part
        return rows if part is None else part.workers.all_rows(rows, part.bounds, "gathering rows")

    def rows_of(self, model: nn.Module) -> Tensor:
        """Own rows of another model, without a gradient, on the CPU."""
        return self._run(model).to("cpu", copy=True)

    def gathered(self, own: Tensor, doing: str) -> Tensor:
        """The rows of all vertices, from each worker's own: at the workers that get results, else without rows."""
        part = self.prepared.part
        if part is None:
            return own
        # A device may be too small for the rows of all vertices.
        own = own.cpu()
        with large_arrays(self.streaming):
            return part.gather_at_first(own, doing) if self._for_first else part.gather(own, doing)

    def loss(self, loss_of: LossOf, *, timeline: Recorder | None = None) -> Tensor:
        """A loss with its gradient: the sum of what ``loss_of`` gives for ranges of vertices. ``timeline`` records a streamed epoch."""
        first = self.prepared.vertices.start
        return self._total(
            lambda: self._own_loss(
                lambda rows, at: loss_of(rows, slice(first + at.start, first + at.stop)), timeline
            )
        )

    def loss_of_all(self, loss_of: Callable[[Tensor, slice], Tensor], num_units: int) -> Tensor:
        """A loss with its gradient: the sum of what ``loss_of`` gives for the rows of all vertices and each worker's share of units."""
        return self._total(lambda: loss_of(self.all_rows(), self.team.share_of(num_units)))

    def _total(self, own_loss: Callable[[], Tensor]) -> Tensor:
        self.team.share_random_numbers(self.device)
        with self.team.forward():
            own = own_loss()
        return self.team.total(own, "adding the loss")

    def _own_loss(self, loss_of: LossOf, timeline: Recorder | None) -> Tensor:
        rows = self.rows()
        return loss_of(rows, slice(0, len(rows)))

    def add_gradients(self) -> None:
        """Add the gradients that other workers have found for the model's parameters."""
        self.team.add_gradients(list(self.model.parameters()))

    def try_out(self) -> None:
        """Make lazy parameters, and find errors of the model, the budget and the disk before anything is trained."""
        with evaluating(self.model):
            self._head.try_rows(self.rows())

    def write_profile(self, folder: Path, measured: Recorder, say: Callable[[str], None]) -> None:
        """Write a trace of an epoch into the run folder."""
        from sagann.runtime.forecasting.timeline_files import write_trace

        write_trace(folder / PROFILE_FILE, {"measured": measured})

    def require_row_wise(self) -> None:
        """Refuse a model that, in its current mode, mixes vertices between its layers, where it sees some of them at a time."""

    def close(self) -> None:
        """Remove spilled blocks. The next call makes them again."""

    def _run(self, model: nn.Module) -> Tensor:
        """The result of a model for the own vertices."""
        graph = self.prepared.graph
        takes_batch = graph.graph_ptr is not None and getattr(self.model, "reads_batch", False)
        more = [graph.graph_ptr] if takes_batch else []
        with unchanged(self.model, graph.features):
            return model(graph.hops(self.num_hops), graph.features, *more)


class OnPart(Runner):
    """A model over a worker's part in memory."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        part = self.prepared.part
        assert part is not None
        self._part = part
        self._row_wise_modes: set[bool] = set()
        "Modes, training or not, in which the model is known to treat vertices independently."

    def _own_loss(self, loss_of: LossOf, timeline: Recorder | None) -> Tensor:
        rows = self.rows()
        # A worker without training vertices takes part in the backward pass of the others.
        return loss_of(rows, slice(0, len(rows))) + rows[:0].sum()

    def try_out(self) -> None:
        super().try_out()
        self.model.train()
        self.require_row_wise()

    def require_row_wise(self) -> None:
        require_one_graph(self.model, self.prepared.graph)
        if self.model.training not in self._row_wise_modes:
            from sagann.compiler import CompilerOptions
            from sagann.compiler.capture import capture

            # Only errors of the model are wanted: nothing is optimised, and sparse features pass for dense ones.
            part, features = self._part, self._part.features
            options = CompilerOptions(hoist=False, split_concat=False, commute=False, invariant=False, fuse=False)
            x = torch.empty(0, features.shape[1], dtype=features.dtype, device=features.device)
            capture(self.model, part.hops(self.num_hops), x, options=options)
            self._row_wise_modes.add(self.model.training)

    def _run(self, model: nn.Module) -> Tensor:
        from sagann.runtime.workers import batch_norms_over_all

        part = self._part
        with part.computing(), batch_norms_over_all(model, part.workers), unchanged(self.model, part.features):
            return model(part.hops(self.num_hops), part.features)


class ByGraphs(Runner):
    """A model of whole graphs, in batches, each of which is cut from memory, or from mapped files, when its turn comes."""

    def rows(self) -> Tensor:
        return torch.cat([rows_of_batch(self.model, self._head, batch) for batch in self._batches()])

    def try_out(self) -> None:
        with evaluating(self.model):
            rows_of_batch(self.model, self._head, next(self._batches()))

    def rows_of(self, model: nn.Module) -> Tensor:
        # Pooling pads the rows of a batch with more graphs than vertices.
        return torch.cat(
            [_on_batch(model, self._head, each)[: each.num_vertices] for each in self._batches()]
        ).cpu()

    def _batches(self) -> Iterator[GraphBatch]:
        """All graphs in order, in batches on the device."""
        from sagann.runtime.loading import GraphBatches

        graph = self.prepared.graph
        mean_vertices = graph.num_vertices / max(1, graph.num_graphs)
        batch_size = max(1, int(_VERTICES_AT_ONCE / max(1.0, mean_vertices)))
        for batch in GraphBatches(graph, batch_size=batch_size, graphs=None, shuffle=False, ahead=0):
            yield batch.to(self.device)


def rows_of_batch(model: nn.Module, head: Head, batch: Batch) -> Tensor:
    """A model's rows of a batch's seeds, or graphs, in its current mode, with their gradient."""
    call = head.call(batch)
    return head.check(_on_batch(model, head, batch), call.num_rows, call.device)


def _on_batch(model: nn.Module, head: Head, batch: Batch) -> Tensor:
    call = head.call(batch)
    with rows_with(call.ids), unchanged(head.model, batch.features):
        return model(*call.arguments)


@contextmanager
def unchanged(model: nn.Module, features: Features | None) -> Iterator[None]:
    """While a model runs: one that overwrites its features is a LayerError, and so is a BatchNorm that is trained on one row."""
    # A tensor made in inference mode counts no versions, and refuses to be overwritten outside of that mode.
    counted = features if isinstance(features, Tensor) and not features.is_inference() else None
    before = 0 if counted is None else counted._version
    with naming_few_rows(f"model {class_of(model).__name__}"):
        yield
    if counted is not None and counted._version != before:
        raise LayerError(
            "the model overwrites its input: the features were changed in place "
            f"{counted._version - before} times in one pass (in model {class_of(model).__name__})",
            hint="Compute a new tensor (x = x * 2, not x *= 2 or x.mul_(2)), or work on x.clone(); then load the features again.",
        )
