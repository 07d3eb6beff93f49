"""Trainer: trains a model on a whole graph, on mini-batches or on batches of graphs, with metrics, early stopping, checkpoints and exact resume.

On a whole graph it may be one of several workers, each of which makes a Trainer and computes a part.

The same seed gives bitwise the same run, and a resumed run is bitwise the uninterrupted one: operators sum in a fixed
order, and a checkpoint holds weights, optimizer, scheduler, random generators and the best weights so far.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from sagann.config import TrainConfig
from sagann.errors import CheckpointError, require_type
from sagann.graph import Graph
from sagann.nn import ModelConfig
from sagann.registry import default
from sagann.runtime.team import SOLO
from sagann.train.agreement import continue_together, require_same_run
from sagann.train.best import copy_of
from sagann.train.description import description_of, info_of, summary_of, trained_on
from sagann.train.epoch_progress import EpochProgress
from sagann.train.history import History
from sagann.train.losses import LossFunction
from sagann.train.metrics import Metrics
from sagann.train.own_metrics import OwnMetrics
from sagann.train.policies import OptimizerFactory, ParamGroups, SchedulerFactory, require_maker
from sagann.train.reporter import (
    EpochRecord,
    LogReporter,
    Reporter,
    SilentReporter,
    TensorBoardReporter,
    TrainResult,
)
from sagann.train.resources import own_turn, peak_rss_bytes, reproducible, seeded, stop_on_interrupt
from sagann.train.run_folder import EVENTS, RunFolder
from sagann.train.run_parts import RunParts
from sagann.train.saver import Saver
from sagann.train.session import TrainSession
from sagann.train.start import continue_run, start_run

if TYPE_CHECKING:
    from sagann.hybrid.forecast import Prediction
    from sagann.runtime.team import Team
    from sagann.train.preparation import PreparedGraph
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
        class_names: names of the classes, for later predictions; by default those of the graph, else their numbers.
        loss: gives the loss of each vertex, or graph, instead of ``config.loss``: see :data:`sagann.train.LossFunction`.
        metrics: further metrics of evaluations and of the run's end, by name: functions of outputs and answers
            (:data:`sagann.train.MetricFunction`), or objects with ``reset``, ``update`` and ``compute``, such as those of torchmetrics.
        optimizer: a function that makes the optimizer from parameter groups, instead of ``config.optimizer``.
        scheduler: a function that makes the scheduler from the optimizer, instead of ``config.scheduler``.
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
        workers: Team | None = None,
    ) -> None:
        hint = "Pass a module, or ModelConfig(model=...) for a model of the zoo."
        require_type(model, (nn.Module, ModelConfig), where="Trainer.model", hint=hint)
        hint = "Open it with sagann.load_graph, or make a sagann.Graph."
        require_type(graph, Graph, where="Trainer.graph", hint=hint)
        require_type(config, TrainConfig, where="Trainer.config", hint="Pass TrainConfig(...).", optional=True)
        require_type(run_dir, (str, os.PathLike), where="Trainer.run_dir", hint="Pass a path.", optional=True)
        require_type(source, str, where="Trainer.source", hint="Pass a name of the data.", optional=True)
        require_type(progress, bool, where="Trainer.progress", hint="Pass True or False.")
        require_maker(optimizer, "optimizer", "groups")
        require_maker(scheduler, "scheduler", "optimizer")
        team = workers or SOLO
        self._is_first = team.is_first
        self.run_dir = None if run_dir is None or not self._is_first else Path(run_dir)
        self._reporter: Reporter = (reporter or LogReporter()) if self._is_first else SilentReporter()
        self._say = self._reporter.on_message
        self._shows_progress = progress and reporter is None and self._is_first
        self._records: Sequence[EpochRecord] = ()
        self._is_stopping = False
        with own_turn(team):
            self._parts = RunParts(
                model,
                graph,
                config or TrainConfig(),
                source=source,
                class_names=class_names,
                loss=loss,
                metrics=metrics,
                optimizer=optimizer,
                scheduler=scheduler,
                param_groups=param_groups,
                validate=validate and self._is_first,
                team=team,
                # All workers spill to the run folder, each on its own machine.
                spill_dir=None if run_dir is None else Path(run_dir),
                say=self._say,
            )
        parts = self._parts
        self.config: TrainConfig = parts.config
        "How to train."
        self.graph: Graph = parts.graph
        "The training graph, with the answers of the run's task alone."
        self.prepared: PreparedGraph = parts.prepared
        "The graph as the model reads it."
        self.monitor: str = parts.monitor
        "The metric that early stopping and the best weights go by, as 'val/accuracy'."
        self.weights: str = parts.weights
        "Weights that the run ends with: 'best' or 'last'."
        self.model: nn.Module = parts.predictor.model
        "The model, with the weights it has now."
        self.device: torch.device = parts.device
        "The device that computes."

    @property
    def history(self) -> History:
        """The epochs of the last :meth:`fit`, with those before a resume; empty before the first one."""
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
        parts, team = self._parts, self._parts.team
        with ExitStack() as stack:
            if folder is not None:
                stack.enter_context(folder.locked())
            stack.callback(parts.predictor.release)
            stack.callback(self._let_go_on)
            stack.enter_context(own_turn(team))
            parts.stream_where_needed(folder, resume=resume)
            stack.enter_context(seeded(self.config.seed, self.device))
            stack.enter_context(reproducible(self.config.deterministic, self.device))
            require_same_run(team, resume=resume)
            session = parts.session()
            description = {} if folder is None else description_of(parts, session)
            run = ""
            with team.together("opening the run folder"):
                if folder is not None and resume:
                    run = continue_run(session, folder, description, self._say)
                elif folder is not None:
                    run = start_run(folder, description, overwrite=overwrite)
            if resume and team.size > 1:
                continue_together(session)
            self._records = session.history
            if session.balancer is not None:
                session.balancer.begin()
            unit = "batch" if session.source.num_batches > 1 else "epoch"
            stack.enter_context(stop_on_interrupt(self.stop, self._say, after=unit))
            reporters = self._reporters(folder, session, stack)
            for reporter in reporters:
                reporter.on_start(info_of(parts, session))
            saver = None if folder is None else Saver(session, folder, run)
            stack.callback(session.source.close)
            if self.config.mapping == "model":
                # Imported here: most runs are not rehearsed, and it loads Numba.
                from sagann.train.rehearsals import begin_as_foretold

                begin_as_foretold(parts, session.source)
            session.source.open()
            self._train(session, saver, reporters)
            result = self._finish(session, folder)
            for reporter in reporters:
                reporter.on_end(result)
        return result

    def _reporters(self, folder: RunFolder | None, session: TrainSession, stack: ExitStack) -> list[Reporter]:
        """Everyone who is told how a session goes; what is to be closed at its end is put on ``stack``."""
        reporters = [self._reporter]
        if self._shows_progress and (bar := default("progress")()) is not None:
            stack.callback(bar.close)
            reporters.append(bar)
        if folder is not None and self.config.tensorboard:
            events = TensorBoardReporter(folder.path / EVENTS, first_epoch=session.epoch + 1)
            stack.callback(events.close)
            reporters.append(events)
        return reporters

    def _train(self, session: TrainSession, saver: Saver | None, reporters: Sequence[Reporter]) -> None:
        """Train until the run has ended or is stopped; save and report its progress."""

        def between_batches(progress: EpochProgress) -> bool:
            for reporter in reporters:
                reporter.on_batch(progress)
            if saver is not None and saver.is_late:
                saver.save()
            return self._all_stop()

        while not (session.finished or self._all_stop()):
            record = session.run_epoch(leave=between_batches)
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
        return self._parts.team.any(self._is_stopping, "agreeing on the next epoch")

    def _let_go_on(self) -> None:
        self._is_stopping = False

    def resume(self) -> TrainResult:
        """Continue the run in ``run_dir``: ``fit(resume=True)``."""
        return self.fit(resume=True)

    def evaluate(self, graph: Graph | None = None) -> dict[str, Metrics]:
        """Measure the model on the training graph, or on a new one: see :meth:`sagann.train.Predictor.evaluate`."""
        return self._parts.predictor.evaluate(self._parts.prepared if graph is None else graph)

    def predict(
        self, graph: Graph | None = None, *, probabilities: bool = False, links: tuple[Tensor, ...] | None = None
    ) -> Tensor:
        """Class ids, 0/1 per class, probabilities or values of every vertex, or graph: see :meth:`sagann.train.Predictor.predict`.

        Where links are learned, ``links`` are the pairs to score: see :meth:`sagann.train.Predictor.predict`.
        """
        given = self._parts.prepared if graph is None else graph
        return self._parts.predictor.predict(given, probabilities=probabilities, links=links)

    def embed(self, graph: Graph | None = None) -> Tensor:
        """The input of the last SAGA layer, float [num_vertices, F], on the CPU."""
        return self._parts.predictor.embed(self._parts.prepared if graph is None else graph)

    def foretell(self) -> SampledForecast:
        """Foretell the seconds and bytes of an epoch of mini-batches: a few are sampled, loaded and trained, in about ten seconds.

        A copy of the model is trained. Model and random numbers stay as they are.

        Raises:
            InputError: ``config.sample`` is not set, the model cannot be copied, or the loss of a rehearsed batch is NaN or infinite.
        """
        # Imported here: most runs are not foretold, and it loads Numba.
        from sagann.train.rehearsals import foretell

        with own_turn(self._parts.team):
            return foretell(self._parts)

    def foretell_trainers(self) -> tuple[Prediction, Prediction | None]:
        """Foretell an epoch of the trainers of ``config.devices``, with the shares that they settle on in some ten seconds; and with one accelerator process more.

        A copy of the model is trained. Model and random numbers stay as they are.

        Raises:
            InputError: ``config.sample`` or ``config.devices`` is not set, or the model cannot be copied or shared out.
            TrainerError: a trainer does not start, or fails.
        """
        # Imported here: most runs are not foretold, and it loads Numba.
        from sagann.train.rehearsals import foretell_trainers

        with own_turn(self._parts.team):
            return foretell_trainers(self._parts)

    def _run_folder(self, resume: bool) -> RunFolder | None:
        if self.run_dir is not None:
            return RunFolder(self.run_dir, keep_checkpoints=self.config.keep_checkpoints)
        if resume:
            raise CheckpointError(
                "nothing to resume: the Trainer has no run folder (in Trainer.run_dir)",
                hint="Pass run_dir, when the run is started and when it is resumed.",
            )
        if self.config.tensorboard:
            self._say("TensorBoard events are not written: the Trainer has no run folder.")
        return None

    def __repr__(self) -> str:
        parts = self._parts
        return (
            f"Trainer(model={parts.model_name!r}, data={parts.source!r}, trains={trained_on(parts)!r}, "
            f"epoch={len(self._records)} of {self.config.epochs}, monitor={self.monitor!r}, device={str(self.device)!r})"
        )

    def _finish(self, session: TrainSession, folder: RunFolder | None) -> TrainResult:
        """Give the model its final weights, and measure them unless the run was interrupted."""
        interrupted = not session.finished
        best = session.tracker.weights
        use_best = not interrupted and best is not None
        if use_best:
            self.model.load_state_dict(best)  # type: ignore[arg-type]
            if said := session.tracker.first_is_best(session.history):
                self._say(said)
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
            history=History(session.history),
            run_dir=self.run_dir,
        )
        if folder is not None and not interrupted:
            folder.write_result(copy_of(self.model.state_dict()), summary_of(self._parts, result))
            session.source.write_profile(folder.path, self._say)
        return result
