"""Model passes: a model on prepared graphs and mini-batches, in its current mode, with gradients.

The passes are the same in training and in evaluation: over a whole graph in memory, streamed by intervals, over a worker's part, or over a
mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sagann.errors import InputError, LayerError, require_type
from sagann.graph import Graph
from sagann.graph.answers import answers_in
from sagann.graph.feature_store import Features
from sagann.kernels.row_dropout import rows_with
from sagann.nn.model_call import VERTICES, check_call, class_of
from sagann.saga.batch_norms import naming_few_rows
from sagann.saga.layer import count_hops
from sagann.saga.row_runs import tolerance_of
from sagann.train.contract import Contract
from sagann.train.evaluating import evaluating
from sagann.train.losses import Loss, default_loss
from sagann.train.own_metrics import OwnMetrics, check_own_metrics
from sagann.train.preparation import PreparedGraph
from sagann.train.streamed_passes import StreamedPasses
from sagann.train.streaming import Streaming
from sagann.train.trainable import require_one_graph

if TYPE_CHECKING:
    from sagann.plan.epoch import Planned
    from sagann.runtime.loading import MiniBatch
    from sagann.runtime.recorder import Recorder
    from sagann.runtime.streaming.epoch import LossOf
    from sagann.runtime.workers import WorkerPart, Workers
    from sagann.train.learned import Learned


_TRIED_SEEDS = 8
"Seeds on which it is tried whether the row of one depends on the others."


class ModelPasses:
    """Runs a model. The arguments are those of :class:`sagann.train.Predictor`.

    Raises:
        InputError: the model cannot be called so.
    """

    arguments: tuple[str, ...] = VERTICES
    "Names of the arguments that the model's ``forward`` is called with, in their order."

    def __init__(
        self,
        model: nn.Module,
        contract: Contract,
        *,
        device: torch.device,
        loss: Loss | None = None,
        metrics: OwnMetrics | None = None,
        streaming: Streaming | None = None,
        workers: Workers | None = None,
        learned: Learned | None = None,
        for_first: bool = False,
    ) -> None:
        require_type(model, nn.Module, where="Predictor.model", hint="Pass a torch.nn.Module.")
        require_type(contract, Contract, where="Predictor.contract", hint="Pass Contract.of(graph).")
        require_type(device, torch.device, where="Predictor.device", hint="Pass torch.device('cpu'), for one.")
        check_call(model, self.arguments, where=f"model {class_of(model).__name__}")
        _check_has_data(model)
        self.model = model.to(device)
        self.contract = contract
        self.device = device
        self.mean_loss = loss or default_loss(contract.kind)
        self.own_metrics = metrics or {}
        check_own_metrics(self.own_metrics, where="Predictor.metrics")
        self.num_hops = count_hops(model)
        self.workers = workers
        self.learned = learned
        self._for_first = for_first
        self.passes: StreamedPasses | None = None
        "The passes of a model that is streamed; None for everything in memory."
        self._row_wise_modes: set[bool] = set()
        "Modes, training or not, in which the model is known to treat the vertices of workers independently."
        self.stream_within(streaming)

    def stream_within(self, streaming: Streaming | None) -> None:
        """Stream the model from now on within ``streaming``; None for everything in memory."""
        self.passes = None
        if streaming is not None:
            self.passes = StreamedPasses(self.model, streaming, device=self.device, for_first=self._for_first)

    @property
    def streaming(self) -> Streaming | None:
        """The budget of a model that is streamed, and its spill folder; None for everything in memory."""
        return None if self.passes is None else self.passes.streaming

    def large_arrays(self) -> AbstractContextManager[None]:
        """See :meth:`sagann.train.streaming.Streaming.large_arrays`; changes nothing where the model is not streamed."""
        return nullcontext() if self.streaming is None else self.streaming.large_arrays()

    def logits(self, prepared: PreparedGraph) -> Tensor:
        """The model's output without dropout: [num_vertices, C], on the device; on the CPU, where workers divide the graph."""
        with evaluating(self.model):
            logits = self.forward(prepared)
            part = prepared.part
            return logits if part is None else self._gathered(part, logits, "gathering the model's output")

    def _gathered(self, part: WorkerPart, own: Tensor, doing: str) -> Tensor:
        """The rows of all vertices at the workers that get results, on the CPU; where the part is streamed, in a file."""
        with self.large_arrays():
            # A device may be too small for the rows of all vertices.
            own = own.cpu()
            return part.gather_at_first(own, doing) if self._for_first else part.gather(own, doing)

    def try_out(self, prepared: PreparedGraph) -> None:
        """Make lazy parameters, and find errors of the model, the budget and the disk before anything is trained.

        In memory that takes one pass. For a streamed model, an evaluation is planned, and an epoch if it is streamed too.
        """
        if self.passes is not None:
            self.model.train()
            self.passes.plan(prepared, lambda planned: self._check_result(planned, prepared.graph))
            return
        self.logits(prepared)
        if prepared.part is not None:
            self.model.train()
            self.require_row_wise(prepared)

    def require_row_wise(self, prepared: PreparedGraph, *, fanouts: Sequence[int] | None = None) -> None:
        """Refuse a model that, in its current mode, mixes vertices between its layers, where it sees some of them at a time.

        They are a worker's own, or with ``fanouts`` those of a mini-batch. A streamed model is refused when it is planned.
        """
        if fanouts is not None:
            self._require_seeds_apart(prepared.graph.to("cpu"), fanouts)
        if prepared.part is None or self.streaming is not None:
            return
        require_one_graph(self.model, prepared.graph)
        if self.model.training in self._row_wise_modes:
            return
        # Imported here: most runs have no workers, and it loads the compiler of whole models.
        from sagann.compiler.capture import capture

        capture(self.model, prepared.part.hops(self.num_hops), prepared.part.features)
        self._row_wise_modes.add(self.model.training)

    def _require_seeds_apart(self, graph: Graph, fanouts: Sequence[int]) -> None:
        """Refuse a model that gives a seed another row alone than beside others."""
        # Imported here: most runs sample nothing, and it loads Numba.
        from sagann.interop.pyg_example import undisturbed
        from sagann.runtime.loading import MiniBatches

        def row_of_last(seeds: Tensor) -> Tensor:
            batches = MiniBatches(graph, fanouts=fanouts, seeds=seeds, shuffle=False, ahead=0, device=self.device)
            return self.forward_batch(next(iter(batches)))[-1]

        seeds = torch.arange(min(_TRIED_SEEDS, graph.num_vertices))
        # Other parameters than those that begin as zeros, which would hide what they are multiplied with.
        with undisturbed(self.model):
            together, again, alone = row_of_last(seeds), row_of_last(seeds), row_of_last(seeds[-1:])
        # Sums in another order differ by less.
        tolerance = max(1e-3, tolerance_of(together.dtype)) * float(together.nan_to_num(0, 0, 0).abs().max())
        is_close = partial(torch.allclose, together, rtol=0.0, atol=tolerance, equal_nan=True)
        # A model that draws random numbers in evaluation is not judged.
        if not is_close(alone) and is_close(again):
            raise LayerError(
                "a model that is trained on mini-batches must treat vertices independently between its layers: "
                f"it gives a seed another row alone than beside {len(seeds) - 1} others (in model "
                f"{class_of(self.model).__name__})",
                hint="Leave out what depends on other vertices than neighbours, or on numbers and order of vertices, such as GraphNorm and "
                "torch.arange(len(x)); or train on the whole graph (without --sample and --devices).",
            )

    def _check_result(self, planned: Planned, graph: Graph) -> None:
        form = planned.program.forms[planned.program.output]
        self._checked(torch.zeros((), dtype=form.dtype).expand(graph.num_vertices, *form.shape), graph)

    def forward(self, prepared: PreparedGraph) -> Tensor:
        """The model's output in its current mode, with its gradient: [num_vertices, C]; of a worker's part, for its own vertices."""
        graph, part, passes = prepared.graph, prepared.part, self.passes
        if passes is not None:
            logits = self._run(lambda: passes.rows(prepared), prepared.features)
        elif part is not None:
            logits = self._on_part(self.model, part)
        else:
            logits = self._on_graph(self.model, graph)
        if part is not None:
            return self.contract.check_logits(
                logits, part.topology.num_dst, self.device, class_of(self.model).__name__
            )
        # Labels of a streamed graph lie on the host, and the device may be too small for all logits.
        return self._checked(logits if passes is None else logits.to(graph.topology.device), graph)

    def _on_graph(self, model: nn.Module, graph: Graph) -> Tensor:
        """The result of a model for all vertices of a prepared graph."""
        several = (
            [graph.graph_ptr] if graph.graph_ptr is not None and getattr(self.model, "reads_batch", False) else []
        )
        return self._run(lambda: model(graph.hops(self.num_hops), graph.features, *several), graph.features)

    def _on_part(self, model: nn.Module, part: WorkerPart) -> Tensor:
        """The result of a model for the own vertices of a worker's part."""
        # Imported here: most runs have no workers, and it loads torch.distributed.
        from sagann.runtime.workers import batch_norms_over_all

        with part.computing(), batch_norms_over_all(model, part.workers):
            return self._run(lambda: model(part.hops(self.num_hops), part.features), part.features)

    def _checked(self, logits: Tensor, graph: Graph) -> Tensor:
        name = class_of(self.model).__name__
        return self.contract.check_logits(logits, graph.num_vertices, graph.topology.device, name)

    def forward_batch(self, batch: MiniBatch) -> Tensor:
        """The model's output in its current mode, with its gradient, for the seeds of a mini-batch: [num_seeds, C]."""
        with rows_with(batch.src_ids):
            logits = self._run(lambda: self.model(batch.blocks, batch.features), batch.features)
        device = batch.blocks[-1].device
        return self.contract.check_logits(logits, len(batch.seeds), device, class_of(self.model).__name__)

    def loss_of_batch(self, batch: MiniBatch) -> Tensor:
        """The mean loss of a mini-batch's seeds, with its gradient."""
        return self.mean_loss(self.forward_batch(batch), answers_in(batch.labels, batch.targets))

    def _run(self, model: Callable[[], Tensor], features: Features | None) -> Tensor:
        """Run the model. A model that overwrites the features is a LayerError, and so is a BatchNorm that is trained on one row."""
        with naming_few_rows(f"model {class_of(self.model).__name__}"):
            if not isinstance(features, Tensor) or features.is_inference():
                # A tensor made in inference mode counts no versions, and refuses to be overwritten outside of that mode.
                return model()
            version = features._version
            result = model()
        if features._version != version:
            raise LayerError(
                "the model overwrites its input: the features were changed in place "
                f"{features._version - version} times in one pass (in model {class_of(self.model).__name__})",
                hint="Compute a new tensor (x = x * 2, not x *= 2 or x.mul_(2)), or work on x.clone(); "
                "then load the features again.",
            )
        return result

    def loss(self, prepared: PreparedGraph, loss_of: LossOf, *, timeline: Recorder | None = None) -> Tensor:
        """A loss over a prepared graph, with its gradient: the sum of what ``loss_of`` gives for ranges of vertices.

        A worker's gradient is that of its own vertices' part: :meth:`add_gradients` adds the others'. ``timeline`` records a streamed
        epoch, with its backward.
        """
        graph, part = prepared.graph, prepared.part
        if part is not None:
            part.workers.share_random_numbers(self.device)
            own = self._loss_of_part(prepared, part, loss_of)
            return part.workers.total(own, "adding the loss")
        if self.passes is not None:
            return self.passes.loss(prepared, loss_of, timeline=timeline)
        return loss_of(self.forward(prepared), slice(0, graph.num_vertices))

    def _loss_of_part(self, prepared: PreparedGraph, part: WorkerPart, loss_of: LossOf) -> Tensor:
        """The loss of a worker's own vertices."""
        if self.passes is not None:
            first = part.vertices.start
            return self.passes.loss(
                prepared, lambda rows, own: loss_of(rows, slice(first + own.start, first + own.stop))
            )
        part.workers.stopwatch.start()
        logits = self.forward(prepared)
        # A worker without training vertices takes part in the backward pass of the others.
        own = loss_of(logits, part.vertices) + logits[:0].sum()
        part.workers.stopwatch.turn()
        return own

    def add_gradients(self) -> None:
        """Add the gradients that other workers have found for the model's parameters; nothing without workers."""
        if self.workers is not None:
            self.workers.stopwatch.stop()
            self.workers.add_gradients(list(self.model.parameters()))

    def release(self) -> None:
        """Remove spilled blocks. The next call makes them again."""
        if self.passes is not None:
            self.passes.release()


def _check_has_data(model: nn.Module) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise InputError(
                f"the model's parameters have no values: '{name}' is on the device 'meta' (in model "
                f"{class_of(model).__name__})",
                hint="Build the model without device='meta', or give it memory and values: model.to_empty(device='cpu').",
            )
