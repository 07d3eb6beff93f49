"""Trainer: trains a model on a whole graph, on mini-batches or on batches of graphs, with metrics, early stopping, checkpoints and exact resume.

On a whole graph it may be one of several workers, each of which makes a Trainer and computes a part.

The same seed gives bitwise the same run, and a resumed run is bitwise the uninterrupted one: operators sum in a fixed
order, and a checkpoint holds weights, optimizer, scheduler, random generators and the best weights so far.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from sagann.byte_size import format_bytes
from sagann.errors import CheckpointError, InputError, MissingDependencyError, require_type
from sagann.graph import Graph, for_task
from sagann.graph.task import answered, left_out, task_of
from sagann.graph.validate import validate_labels
from sagann.nn import ModelConfig, build_model
from sagann.registry import default
from sagann.runtime.spinning import may_spin
from sagann.storage.verify import check_graph
from sagann.storage.whole_files import whole_files
from sagann.train.agreement import continue_together, require_agreement, require_divisible, require_same_run
from sagann.train.automatic import automatic_budget, bytes_in_files
from sagann.train.best import BestTracker, copy_of, resolve_monitor
from sagann.train.busy_watch import BusyWatch
from sagann.train.config import TrainConfig
from sagann.train.contract import Contract, require_names
from sagann.train.epoch_progress import EpochProgress
from sagann.train.epoch_source import EpochSource, WholeGraph
from sagann.train.graph_predictor import GraphPredictor, predictor_of
from sagann.train.history import History
from sagann.train.identity import identity_of
from sagann.train.losses import LossFunction, build_loss
from sagann.train.metrics import Metrics
from sagann.train.own_metrics import OwnMetrics
from sagann.train.policies import (
    DECAY_POLICIES,
    OptimizerFactory,
    ParamGroups,
    SchedulerFactory,
    build_optimizer,
    build_scheduler,
    try_policies,
)
from sagann.train.predictor import Predictor
from sagann.train.preparation import PreparedGraph
from sagann.train.reporter import (
    EpochRecord,
    LogReporter,
    Reporter,
    RunInfo,
    SilentReporter,
    TensorBoardReporter,
    TrainResult,
)
from sagann.train.resources import peak_rss_bytes, reproducible, resolve_device, seeded, stop_on_interrupt, versions
from sagann.train.run_folder import AUTOMATIC, EVENTS, RunFolder
from sagann.train.saver import Saver
from sagann.train.session import TrainSession
from sagann.train.start import continue_run, start_run
from sagann.train.streaming import OWN_FOLDER, Streaming, remove_spilled
from sagann.train.trainable import check_sampled, check_trainable, copy_of_model

if TYPE_CHECKING:
    from sagann.plan.hybrid.rehearsed import RehearsedJob
    from sagann.runtime.workers import Workers
    from sagann.train.balancer import Balancer
    from sagann.train.sampled_forecast import SampledForecast


class Trainer:
    """Trains ``model`` on ``graph``.

    Args:
        model: any module called as ``model(hops, x)``, or as ``model(hops, x, graph_ptr)`` where whole graphs are learned; or a ModelConfig,
            which is built here under the seed.
        graph: labels or targets, of vertices or of whole graphs, and a split 'train' of these are needed; 'val' and 'test' are optional. If it
            has several kinds of answers, ``config.task`` says which to learn.
        config: how to train; by default 200 epochs of Adam with learning rate 0.01.
        run_dir: folder for checkpoints, metrics and weights; None keeps everything in memory.
        reporter: is told how the run goes, and alone shows it; by default messages go to the logger 'sagann.train'.
        progress: show a progress bar in a terminal or a notebook, where no ``reporter`` is given. A pipe or a log gets none.
        source: name of the data in the run folder, such as a path; by default the graph's name.
        class_names: names of the classes, for later predictions; by default their numbers.
        loss: gives the loss of each vertex, or graph, instead of ``config.loss``: see :data:`sagann.train.LossFunction`.
        metrics: further metrics of evaluations and of the run's end, by name: functions of outputs and answers
            (:data:`sagann.train.MetricFunction`), or objects with ``reset``, ``update`` and ``compute``, such as those of torchmetrics.
        optimizer: makes the optimizer from parameter groups, instead of ``config.optimizer``.
        scheduler: makes the scheduler from the optimizer, instead of ``config.scheduler``.
        param_groups: splits the parameters into groups, instead of ``config.decay``.
        validate: check every value of the graph, and the checksums of the files that it was opened from; turn it off only for a
            checked graph. Labels and splits are always checked. Of several workers, the first one checks.
        workers: the workers that train the model together (:func:`sagann.runtime.workers.join_workers`), each of which makes a Trainer with the
            same arguments. The first one alone writes the run folder and reports. None trains in this process alone.

    Raises:
        InputError: the graph, the model or the configuration cannot be trained as it is.

    Example:
        >>> import torch
        >>> from sagann.graph import Topology
        >>> from sagann.nn import ModelConfig
        >>> labels = torch.tensor([0, 0, 0, 1, 1, 1])
        >>> src, dst = torch.tensor([0, 1, 2, 3, 4, 5]), torch.tensor([1, 2, 0, 4, 5, 3])
        >>> topology = Topology.from_coo(src=src, dst=dst, num_src=6)
        >>> train = torch.tensor([True, False, False, True, False, False])
        >>> graph = Graph(
        ...     topology=topology, features=torch.eye(6), labels=labels, num_classes=2,
        ...     splits={"train": train, "test": ~train},
        ... )
        >>> trainer = Trainer(ModelConfig(hidden=8), graph, TrainConfig(epochs=60))
        >>> trainer.fit().metrics["test"]["accuracy"]
        1.0
        >>> trainer.predict().tolist()
        [0, 0, 0, 1, 1, 1]
    """

    def __init__(
        self,
        model: nn.Module | ModelConfig,
        graph: Graph,
        config: TrainConfig | None = None,
        *,
        run_dir: str | os.PathLike[str] | None = None,
        reporter: Reporter | None = None,
        progress: bool = True,
        source: str | None = None,
        class_names: Sequence[str] = (),
        loss: LossFunction | None = None,
        metrics: OwnMetrics | None = None,
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
        param_groups: ParamGroups | None = None,
        validate: bool = True,
        workers: Workers | None = None,
    ) -> None:
        fix = "Pass a module, or ModelConfig(model=...) for a model of the zoo."
        require_type(model, (nn.Module, ModelConfig), where="Trainer.model", fix=fix)
        fix = "Open it with sagann.load_graph, or make a sagann.Graph."
        require_type(graph, Graph, where="Trainer.graph", fix=fix)
        require_type(config, TrainConfig, where="Trainer.config", fix="Pass TrainConfig(...).", optional=True)
        require_type(run_dir, (str, os.PathLike), where="Trainer.run_dir", fix="Pass a path.", optional=True)
        require_type(source, str, where="Trainer.source", fix="Pass a name of the data.", optional=True)
        require_type(progress, bool, where="Trainer.progress", fix="Pass True or False.")
        self.config = config or TrainConfig()
        self.workers = workers
        self._is_first = workers is None or workers.is_first
        self.run_dir = None if run_dir is None or not self._is_first else Path(run_dir)
        # All workers spill to the run folder, each on its own machine.
        self._spill_dir = None if run_dir is None else Path(run_dir)
        self._reporter: Reporter = (reporter or LogReporter()) if self._is_first else SilentReporter()
        self._shows_progress = progress and reporter is None and self._is_first
        self._records: Sequence[EpochRecord] = ()
        everything, graph = graph, for_task(graph, self.config.task, where="TrainConfig.task")
        if said := left_out(everything, task_of(graph)):
            self._reporter.on_message(said)
        self.graph, answers = graph, answered(graph)
        self._source = source or graph.name
        self._class_names = require_names(class_names, answers.num_classes, where="Trainer.class_names")
        self._optimizer, self._scheduler = optimizer, scheduler
        self._is_stopping = False
        self._param_groups = param_groups or DECAY_POLICIES[self.config.decay]
        if optimizer is None and scheduler is None:
            try_policies(self.config)
        with whole_files(graph):
            if validate and self._is_first:
                check_graph(graph)
            else:
                validate_labels(graph)
        check_trainable(graph)
        self.config.require_effect(of_graphs=answers is not graph)
        if self.config.tensorboard and find_spec("tensorboard") is None:
            raise MissingDependencyError("tensorboard", extra="tensorboard", feature="TrainConfig.tensorboard")
        device = resolve_device("cpu" if self.config.devices else self.config.device)
        contract = Contract.of(graph)
        with whole_files(graph), seeded(self.config.seed, device):
            mean_loss = build_loss(
                contract.kind,
                answers,
                name=self.config.loss,
                class_weights=self.config.class_weights,
                function=loss,
            )
            mean_loss.try_out(answers, contract.num_outputs, device)
        self.monitor = resolve_monitor(self.config, contract, answers.splits)
        self.weights = self.config.weights or ("best" if self.monitor.startswith("val/") else "last")
        self.model_config = model if isinstance(model, ModelConfig) else None
        if isinstance(model, ModelConfig):
            with seeded(self.config.seed, device):
                model = build_model(model, graph)
        if self.config.sample is not None:
            check_sampled(model, graph, self.config.sample)
        streaming = self._streaming(device)
        self._predictor = predictor_of(
            model, contract, device=device, loss=mean_loss, metrics=metrics, streaming=streaming, workers=workers
        )
        with whole_files(graph):
            if workers is not None:
                require_divisible(self.config, device, balance=workers.balance)
                require_agreement(workers, self.config, graph, self._predictor, self.model_config)
            self._prepared = self._prepare(graph)

    def _prepare(self, graph: Graph) -> PreparedGraph:
        """Prepare the graph, with large arrays in files where memory may be too small for both the arrays and the run."""
        self._in_files_bytes = 0
        if self._learns_graphs:
            return self._predictor.prepare(graph, validate=False)
        if self._predictor.streaming is None and self.device.type == "cpu" and self.workers is None:
            self._in_files_bytes = bytes_in_files(self.model, graph)
        if not self._in_files_bytes:
            return self._predictor.prepare(graph, validate=False)
        files = self._streaming(self.device, automatic_bytes=1)
        assert files is not None
        with files.large_arrays():
            return self._predictor.prepare(graph, validate=False)

    @property
    def _learns_graphs(self) -> bool:
        """Whether whole graphs are learned."""
        return self._predictor.contract.of_graphs

    @property
    def model(self) -> nn.Module:
        """The model, with the weights it has now."""
        return self._predictor.model

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return self._predictor.device

    @property
    def history(self) -> History:
        """The epochs of the last :meth:`fit` as rows of metrics, with those before a resume; empty before the first one."""
        return History(self._records)

    def fit(self, *, resume: bool = False, overwrite: bool = False) -> TrainResult:
        """Train, from the weights that the model has, or from the newest whole checkpoint.

        Ctrl-C finishes the epoch, or the mini-batch, writes a checkpoint and returns a result with ``interrupted`` set.

        Args:
            resume: continue the run in ``run_dir``. The result is bitwise that of a run without interruption,
                on the same machine with the same versions and number of threads.
            overwrite: remove the run that is in ``run_dir``.
        Raises:
            InputError: the loss became NaN or infinite; or ``run_dir`` holds a run that is neither resumed nor overwritten.
            CheckpointError: there is nothing to resume, or the run was started with another model, graph or configuration.
        """
        folder = self._run_folder(resume) if self._is_first else None
        with ExitStack() as stack:
            if folder is not None:
                stack.enter_context(folder.locked())
            stack.callback(self._predictor.release)
            stack.callback(self._let_go_on)
            self._stream_where_needed(folder, resume)
            stack.enter_context(seeded(self.config.seed, self.device))
            stack.enter_context(reproducible(self.config.deterministic, self.device))
            has_batches = self.config.sample is not None or self._learns_graphs
            unit = "batch" if has_batches else "epoch"
            stack.enter_context(stop_on_interrupt(self.stop, self._reporter.on_message, after=unit))
            with whole_files(self.graph):
                if self.workers is not None:
                    require_same_run(self.workers, resume=resume)
                session = self._session()
                description = {} if folder is None else self._description(session)
            run = ""
            if folder is not None and resume:
                run = continue_run(session, folder, description, self._reporter.on_message)
            elif folder is not None:
                run = start_run(folder, description, overwrite=overwrite)
            if resume and self.workers is not None:
                continue_together(session, self.workers)
            self._records = session.history
            if session.balancer is not None:
                session.balancer.begin()
            require_whole_files = stack.enter_context(whole_files(self._prepared.graph))
            info = self._info(session)
            reporters = [self._reporter]
            # Threads that copy blocks, or make batches, would be taken for other processes.
            is_alone = self._predictor.streaming is None and not has_batches and self.device.type == "cpu"
            if is_alone and self._is_first and may_spin(torch.get_num_threads()):
                reporters.append(BusyWatch(self._reporter.on_message))
            if self._shows_progress and (bar := default("progress")()) is not None:
                stack.callback(bar.close)
                reporters.append(bar)
            if folder is not None and self.config.tensorboard:
                events = TensorBoardReporter(folder.path / EVENTS, first_epoch=info.first_epoch)
                stack.callback(events.close)
                reporters.append(events)
            for reporter in reporters:
                reporter.on_start(info)
            saver = None if folder is None else Saver(session, folder, run)
            stack.callback(session.source.close)
            session.source.open()
            self._train(session, saver, reporters, require_whole_files)
            result = self._finish(session, folder)
            for reporter in reporters:
                reporter.on_end(result)
        return result

    def _train(
        self,
        session: TrainSession,
        saver: Saver | None,
        reporters: Sequence[Reporter],
        require_whole_files: Callable[[], None],
    ) -> None:
        """Train until the run has ended or is stopped; save and report its progress."""

        def between_batches(progress: EpochProgress) -> bool:
            for reporter in reporters:
                reporter.on_batch(progress)
            if saver is not None and saver.is_late:
                require_whole_files()
                saver.save()
            return self._is_stopping

        while not (session.finished or self._all_stop()):
            record = session.run_epoch(leave=between_batches)
            require_whole_files()
            if record is None:
                break
            if saver is not None:
                saver.keep(record)
            for reporter in reporters:
                reporter.on_epoch(record)
        if saver is not None:
            saver.save()

    def stop(self) -> None:
        """Have :meth:`fit` end after the epoch or the mini-batch that is trained now, as Ctrl-C does.

        It may be called from any thread or signal handler. If one worker stops, all do.
        """
        # Without a lock, which a signal handler could wait for in vain.
        self._is_stopping = True

    def _all_stop(self) -> bool:
        if self.workers is None:
            return self._is_stopping
        return self.workers.any(self._is_stopping, "agreeing on the next epoch")

    def _let_go_on(self) -> None:
        self._is_stopping = False

    def resume(self) -> TrainResult:
        """Continue the run in ``run_dir``: ``fit(resume=True)``."""
        return self.fit(resume=True)

    def evaluate(self, graph: Graph | None = None) -> dict[str, Metrics]:
        """Measure the model on the training graph, or on a new one: see :meth:`sagann.train.Predictor.evaluate`."""
        return self._predictor.evaluate(self._prepared if graph is None else graph)

    def predict(self, graph: Graph | None = None, *, probabilities: bool = False) -> Tensor:
        """Class ids, 0/1 per class, probabilities or values of every vertex, or graph: see :meth:`sagann.train.Predictor.predict`."""
        return self._predictor.predict(self._prepared if graph is None else graph, probabilities=probabilities)

    def embed(self, graph: Graph | None = None) -> Tensor:
        """The input of the last SAGA layer, float [num_vertices, F], on the CPU."""
        return self._predictor.embed(self._prepared if graph is None else graph)

    def _stream_where_needed(self, folder: RunFolder | None, resume: bool) -> None:
        """Stream the model where a budget is stated, or where memory is too small for the run."""
        if folder is not None:
            # Also where this run does not stream.
            remove_spilled(folder.path / OWN_FOLDER)
        if self._learns_graphs:
            return
        if self.workers is not None:
            if self._predictor.streaming is not None:
                self._predictor.streaming.warn(self._reporter.on_message)
            return
        budget_bytes = None
        if self.config.memory is None and self.device.type == "cpu":
            known = folder.read_run().get(AUTOMATIC) if folder is not None and folder.exists and resume else None
            budget_bytes = automatic_budget(
                self.model,
                self._prepared.graph,
                self._reporter.on_message,
                known=known,
                in_files_bytes=self._in_files_bytes,
                hot_bytes=self._hot_bytes(),
                trains=self.config.sample is None,
            )
        streaming = self._streaming(self.device, automatic_bytes=budget_bytes)
        if streaming is not None:
            streaming.warn(self._reporter.on_message)
        self._predictor.streaming = streaming

    def _streaming(self, device: torch.device, *, automatic_bytes: int | None = None) -> Streaming | None:
        """How the whole graph is streamed, if it is: in training and evaluation, or where batches are sampled in evaluation alone."""
        trains = self.config.sample is None
        return Streaming.of(
            self.config, self._spill_dir, device=device, automatic_bytes=automatic_bytes, trains=trains
        )

    def _epoch_source(self) -> EpochSource:
        if isinstance(self._predictor, GraphPredictor):
            # Imported here: it loads Numba.
            from sagann.train.graph_epochs import GraphEpochs

            return GraphEpochs(self._predictor, self._prepared, self.config)
        if self.config.sample is None:
            return WholeGraph(self._predictor, self._prepared, profile=self.config.profile)
        if self.config.devices is not None:
            # Imported here: most runs have one trainer.
            from sagann.train.hybrid_epochs import HybridEpochs

            return HybridEpochs(
                self._predictor,
                self._prepared,
                self.config,
                model_config=self.model_config,
                say=self._reporter.on_message,
            )
        # Imported here: most runs do not sample, and it loads Numba.
        from sagann.train.sampled_epochs import SampledEpochs

        return SampledEpochs(self._predictor, self._prepared, self.config, say=self._reporter.on_message)

    def _hot_bytes(self) -> int:
        """Bytes of the hot tier that the configuration states."""
        if self.config.hot is None:
            return 0
        # Imported here: most runs have no tiers, and it loads Numba.
        from sagann.train.tiers import stated_hot_bytes

        return stated_hot_bytes(self._prepared.graph.features, self.config)

    def foretell(self) -> SampledForecast:
        """Foretell the seconds and bytes of an epoch of mini-batches: a few are sampled, loaded and trained, in about ten seconds.

        A copy of the model is trained. Model and random numbers stay as they are.

        Raises:
            InputError: ``config.sample`` is not set, the model cannot be copied, or the loss of a rehearsed batch is NaN or infinite.
        """
        if self.config.sample is None:
            raise InputError(
                "only epochs of mini-batches are foretold",
                value="sample is None",
                where="Trainer.foretell",
                fix="Set TrainConfig.sample. `sagann plan --memory` foretells epochs of the whole graph.",
            )
        # Imported here: most runs are not foretold, and it loads Numba.
        from sagann.train.sampled_forecast import RehearsedEpochs

        with self._rehearsing() as predictor:
            source = RehearsedEpochs(predictor, self._prepared, self.config)
            source.try_out()
            return source.forecast(self._session_of(predictor, source))

    def rehearse_trainers(self) -> RehearsedJob:
        """Measure every trainer of ``config.devices`` on a few mini-batches, in some ten seconds, for :mod:`sagann.plan.hybrid.predict`.

        A copy of the model is trained. Model and random numbers stay as they are.

        Raises:
            InputError: ``config.sample`` or ``config.devices`` is not set, or the model cannot be copied or shared out.
            TrainerError: a trainer does not start, or fails.
        """
        if self.config.sample is None or self.config.devices is None:
            raise InputError(
                "only trainers that share mini-batches are rehearsed",
                value=f"sample is {self.config.sample}, devices is {self.config.devices}",
                where="Trainer.rehearse_trainers",
                fix="Set TrainConfig.sample and TrainConfig.devices.",
            )
        # Imported here: most runs are not foretold, and it loads Numba.
        from sagann.train.rehearsed_trainers import RehearsedTrainers

        with self._rehearsing() as predictor:
            source = RehearsedTrainers(predictor, self._prepared, self.config, model_config=self.model_config)
            source.try_out()
            with closing(source):
                return source.rehearse(self._session_of(predictor, source).optimizer)

    @contextmanager
    def _rehearsing(self) -> Iterator[Predictor]:
        """A copy of the model to rehearse with inside the ``with`` block."""
        with ExitStack() as stack:
            stack.enter_context(seeded(self.config.seed, self.device))
            stack.enter_context(reproducible(self.config.deterministic, self.device))
            stack.enter_context(whole_files(self._prepared.graph))
            known = self._predictor
            yield Predictor(copy_of_model(self.model), known.contract, device=self.device, loss=known.mean_loss)

    def _session(self) -> TrainSession:
        self._predictor.try_out(self._prepared)
        return self._session_of(self._predictor, self._epoch_source())

    def _session_of(self, predictor: Predictor, source: EpochSource) -> TrainSession:
        """A session that trains a predictor's model from the beginning."""
        tracker = BestTracker(self.monitor, keep_weights=self.weights == "best", patience=self.config.patience)
        # TrainConfig has put a number in place of None.
        assert self.config.weight_decay is not None
        groups = self._param_groups(predictor.model, self.config.weight_decay)
        optimizer = self._optimizer(groups) if self._optimizer else build_optimizer(self.config, groups)
        if self._scheduler:
            scheduler: LRScheduler | None = self._scheduler(optimizer)
        else:
            scheduler = build_scheduler(self.config, optimizer, maximise=tracker.maximise)
        return TrainSession(
            model=predictor.model,
            source=source,
            graph=self._prepared.answers,
            loss=predictor.mean_loss,
            device=self.device,
            config=self.config,
            optimizer=optimizer,
            scheduler=scheduler,
            tracker=tracker,
            balancer=self._balancer(),
        )

    def _balancer(self) -> Balancer | None:
        """What moves vertices between the workers, if they are balanced by cost."""
        part = self._prepared.part
        if part is None or part.workers.balance != "cost" or part.workers.size == 1:
            return None
        # Imported here: most runs have no workers, and it loads Numba.
        from sagann.train.balancer import Balancer

        return Balancer(part, say=self._reporter.on_message)

    def _run_folder(self, resume: bool) -> RunFolder | None:
        if self.run_dir is not None:
            return RunFolder(self.run_dir, keep_checkpoints=self.config.keep_checkpoints)
        if resume:
            raise CheckpointError(
                "nothing to resume",
                value="the Trainer has no run folder",
                where="Trainer.run_dir",
                fix="Pass run_dir, when the run is started and when it is resumed.",
            )
        if self.config.tensorboard:
            self._reporter.on_message("TensorBoard events are not written: the Trainer has no run folder.")
        return None

    def _description(self, session: TrainSession) -> dict[str, Any]:
        """The content of run.json."""
        streaming = self._predictor.streaming
        automatic_bytes = streaming.memory_bytes if streaming is not None and streaming.is_automatic else None
        return {
            "model": {
                "name": self._model_name,
                "config": None if self.model_config is None else asdict(self.model_config),
            },
            "train": self.config.to_json(),
            "data": self._source,
            "class_names": self._class_names,
            "seed": self.config.seed,
            "monitor": self.monitor,
            "weights": self.weights,
            "contract": asdict(self._predictor.contract),
            "loss": self._predictor.mean_loss.to_json(),
            "versions": {**versions(), "workers": 1 if self.workers is None else self.workers.size},
            "identity": identity_of(session, self.graph, self.model_config),
            AUTOMATIC: automatic_bytes,
        }

    def __repr__(self) -> str:
        return (
            f"Trainer(model={self._model_name!r}, data={self._source!r}, trains={self._trains!r}, "
            f"epoch={len(self._records)} of {self.config.epochs}, monitor={self.monitor!r}, device={str(self.device)!r})"
        )

    @property
    def _trains(self) -> str:
        """What an epoch is trained on, in words."""
        if self.config.sample is not None:
            fanouts = ",".join(map(str, self.config.sample))
            by = "" if self.config.devices is None else f", by {self.config.devices}"
            return f"mini-batches of {self.config.seeds_per_batch} with {fanouts} neighbours{by}"
        if self._learns_graphs:
            return f"batches of {self.config.graphs_per_batch} graphs"
        streaming, workers = self._predictor.streaming, self.workers
        within = "" if streaming is None else f", streamed within {format_bytes(streaming.memory_bytes)}"
        return f"the whole graph{within}" + ("" if workers is None else f", by {workers.size} workers")

    @property
    def _model_name(self) -> str:
        return type(self.model).__name__ if self.model_config is None else self.model_config.model

    def _info(self, session: TrainSession) -> RunInfo:
        return RunInfo(
            model=self._model_name,
            data=self._source,
            num_vertices=self._prepared.graph.num_vertices,
            num_edges=self._prepared.num_edges,
            num_hops=self._predictor.num_hops,
            epochs=self.config.epochs,
            first_epoch=session.epoch + 1,
            first_batch=session.position.batch,
            monitor=self.monitor,
            device=str(self.device),
        )

    def _finish(self, session: TrainSession, folder: RunFolder | None) -> TrainResult:
        """Give the model its final weights, and measure them unless the run was interrupted."""
        interrupted = not session.finished
        best = session.tracker.weights
        use_best = not interrupted and best is not None
        if use_best:
            self.model.load_state_dict(best)  # type: ignore[arg-type]
        result = TrainResult(
            epochs=session.epoch,
            batch=session.position.batch,
            best_epoch=session.tracker.epoch,
            weights="best" if use_best else "last",
            stopped_early=session.tracker.exhausted and session.epoch < self.config.epochs,
            interrupted=interrupted,
            epoch_s=statistics.median(record.epoch_s for record in session.history) if session.history else 0.0,
            peak_rss_bytes=peak_rss_bytes(),
            metrics={} if interrupted else self.evaluate(),
            history=tuple(session.history),
            run_dir=self.run_dir,
        )
        if folder is not None and not interrupted:
            folder.write_result(copy_of(self.model.state_dict()), self._summary(result))
            if session.source.timeline is not None:
                # Imported here: most runs do not stream, and it loads Numba.
                from sagann.train.profile import write_profile

                measured, say = session.source.timeline, self._reporter.on_message
                write_profile(folder.path, self._predictor, self._prepared.graph, measured, say)
        return result

    def _summary(self, result: TrainResult) -> dict[str, Any]:
        return {
            "model": self._model_name,
            "data": self._source,
            "num_vertices": self.graph.num_vertices,
            "num_edges": self.graph.num_edges,
            "epochs": result.epochs,
            "best_epoch": result.best_epoch,
            "monitor": self.monitor,
            "weights": result.weights,
            "stopped_early": result.stopped_early,
            "epoch_s": result.epoch_s,
            "peak_rss_bytes": result.peak_rss_bytes,
            "seed": self.config.seed,
            "device": str(self.device),
            **{split: result.metrics.get(split, {}) for split in ("train", "val", "test")},
        }
