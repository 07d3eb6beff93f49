"""Trainer: trains a model on a whole graph, on mini-batches or on batches of graphs, with metrics, early stopping, checkpoints and exact resume.

On a whole graph it may be one of several workers, each of which makes a Trainer and computes a part.

The same seed gives bitwise the same run, and a resumed run is bitwise the uninterrupted one: operators sum in a fixed
order, and a checkpoint holds weights, optimizer, scheduler, random generators and the best weights so far.
"""

from __future__ import annotations

import os
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
from sagann.train.automatic import automatic_budget, bytes_in_files
from sagann.train.contract import Contract, require_names
from sagann.train.epoch_source import EpochSource, source_of
from sagann.train.identity import device_together, require_agreement, require_same_run
from sagann.train.losses import LossFunction, build_loss
from sagann.train.metrics import Metrics, OwnMetrics
from sagann.train.policies import OptimizerFactory, ParamGroups, Policies, SchedulerFactory
from sagann.train.predictor import Predictor
from sagann.train.reporter import (
    EpochRecord,
    History,
    LogReporter,
    Reporter,
    SilentReporter,
    TensorBoardReporter,
    TrainResult,
)
from sagann.train.resources import device_of, own_turn, reproducible, seeded, stop_on_interrupt
from sagann.train.run import info_of, model_name, result_of, run_of, summary_of, trained_on
from sagann.train.run_folder import EVENTS, RunFolder
from sagann.train.runner import PreparedGraph, large_arrays
from sagann.train.saver import Saver, continue_run, continue_together, start_run
from sagann.train.session import BestTracker, TrainSession, resolve_monitor
from sagann.train.streamed import Streaming
from sagann.train.trainable import learned_graph, model_to_train, require_divisible, require_seeds_apart

if TYPE_CHECKING:
    from sagann.runtime.team import Team
    from sagann.train.rehearsals import SampledForecast


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
        hint = "Open it with sagann.load_graph, make a sagann.Graph, or convert a Data of PyG with sagann.interop.from_pyg."
        require_type(graph, Graph, where="Trainer.graph", hint=hint)
        require_type(config, TrainConfig, where="Trainer.config", hint="Pass TrainConfig(...).", optional=True)
        self.config: TrainConfig = config or TrainConfig()
        "How to train."
        self.team: Team = workers or SOLO
        "The workers that train together; this process alone is a team of one."
        is_first = self.team.is_first
        # All workers spill to the run folder, each on its own machine. The first one alone writes what else is in it.
        self._spill_dir = None if run_dir is None else Path(run_dir)
        self.run_dir = self._spill_dir if is_first else None
        self._reporter: Reporter = (reporter or LogReporter()) if is_first else SilentReporter()
        self._say = self._reporter.on_message
        self._shows_progress = progress and reporter is None and is_first
        self.source: str = source or graph.name
        "Name of the data."
        self._policies = Policies(self.config, optimizer=optimizer, scheduler=scheduler, param_groups=param_groups)
        self._records: Sequence[EpochRecord] = ()
        self._is_stopping = False
        # Options are refused early, and free memory is measured when torch has loaded what optimizers need.
        self._policies.try_out()
        with own_turn(self.team):
            self.graph: Graph = learned_graph(
                graph, self.config, self.team, validate=validate and is_first, tell=self._tell
            )
            "The training graph, with the answers of the run's task alone."
            contract = Contract.of(self.graph)
            names = class_names or self.graph.class_names[: contract.num_classes]
            self.class_names = require_names(names, contract.num_classes, where="Trainer.class_names")
            "Names of the classes; empty where classes are known by their numbers."
            self.monitor: str = resolve_monitor(self.config, contract, self.graph.answers.splits)
            "The metric that early stopping and the best weights go by, as 'val/accuracy'."
            self.weights: str = self.config.weights or ("best" if self.monitor.startswith("val/") else "last")
            "Weights that the run ends with: 'best' or 'last'."
            self.model_config = model if isinstance(model, ModelConfig) else None
            "What the model was built from; None for a module of the user's own."
            self.predictor = self._made_predictor(model, contract, loss, metrics)
            "Runs the model on graphs."
            self.model: nn.Module = self.predictor.model
            "The model, with the weights it has now."
            self.device: torch.device = self.predictor.device
            "The device that computes."
            if self.team.size > 1:
                require_divisible(self.config, balance=self.team.balance, of_graphs=contract.unit == "graph")
                require_agreement(self.team, self.config, self.graph, self.predictor, self.model_config)
            # Large arrays of the prepared graph lie in files where memory may be too small for both the arrays and the run.
            self._in_files_bytes = bytes_in_files(self.predictor, self.graph, self.config)
            self.prepared: PreparedGraph = self._prepare()
            "The graph as the model reads it."

    def _made_predictor(
        self,
        model: nn.Module | ModelConfig,
        contract: Contract,
        function: LossFunction | None,
        metrics: OwnMetrics | None,
    ) -> Predictor:
        config, answers = self.config, self.graph.answers
        device = device_of(config) if self.team.size == 1 else device_together(config.device, self.team, self._tell)
        with seeded(config.seed, device):
            loss = build_loss(
                contract.kind, answers, name=config.loss, class_weights=config.class_weights, function=function
            )
            num_outputs = 1 + config.negatives if contract.unit == "link" else contract.num_outputs
            loss.try_out(answers, num_outputs, device)
        return Predictor(
            model_to_train(model, self.graph, config, device=device, team=self.team, tell=self._tell),
            contract,
            device=device,
            loss=loss,
            metrics=metrics,
            streaming=Streaming.of(config, self._spill_dir, device=device),
            workers=self.team,
        )

    def _tell(self, text: str | None) -> None:
        if text:
            self._say(text)

    def _prepare(self) -> PreparedGraph:
        features, streaming = self.graph.features, self.predictor.streaming
        if self.config.sample is not None and streaming is None and not isinstance(features, Tensor | None):
            self._say(
                f"All rows of the {type(features).__name__} are read into memory, where an evaluation takes them: mini-batches do not "
                "read the store. With a memory budget (--memory, TrainConfig.memory) they do, and evaluations are streamed."
            )
        files = Streaming.of(self.config, self._spill_dir, device=self.device, automatic_bytes=1)
        with large_arrays(files if self._in_files_bytes else None):
            return self.predictor.prepare(self.graph, validate=False, samples=self.config.sample is not None)

    def session_of(self, predictor: Predictor, source: EpochSource) -> TrainSession:
        """A session that trains the model of ``predictor``, which may be a copy, on the steps of ``source``."""
        tracker = BestTracker(self.monitor, keep_weights=self.weights == "best", patience=self.config.patience)
        optimizer, scheduler = self._policies.made(predictor.model, maximise=tracker.maximise)
        return TrainSession(
            predictor.model, source, self.device, self.config, optimizer, scheduler, tracker, self.team
        )

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
        folder, config, team = self._run_folder(resume), self.config, self.team
        with ExitStack() as stack:
            if folder is not None:
                stack.enter_context(folder.locked())
            stack.callback(self.predictor.release)
            stack.callback(setattr, self, "_is_stopping", False)
            stack.enter_context(own_turn(team))
            self._stream_where_needed(folder if resume else None)
            stack.enter_context(seeded(config.seed, self.device))
            stack.enter_context(reproducible(config.deterministic, self.device))
            require_same_run(team, resume=resume)
            self.predictor.try_out(self.prepared)
            if config.sample is not None:
                require_seeds_apart(self.predictor, self.prepared, config.sample)
            session = self._session()
            reporters: list[Reporter] = [self._reporter]
            with team.together("opening the run folder"):
                if folder is not None:
                    run = run_of(self, session, folder.path)
                    if resume:
                        digest = continue_run(session, folder, run, self._say)
                    else:
                        digest = start_run(folder, run, overwrite=overwrite)
                    reporters.insert(0, Saver(session, folder, digest))
            if resume and team.size > 1:
                continue_together(session)
            self._records = session.history
            unit = "batch" if session.source.num_batches > 1 else "epoch"
            stack.enter_context(stop_on_interrupt(self.stop, self._say, after=unit))
            if self._shows_progress and (bar := default("progress")()) is not None:
                stack.callback(bar.close)
                reporters.append(bar)
            if folder is not None and config.tensorboard:
                events = TensorBoardReporter(folder.path / EVENTS, first_epoch=session.epoch + 1)
                stack.callback(events.close)
                reporters.append(events)
            for reporter in reporters:
                reporter.on_start(info_of(self, session))
            stack.callback(session.source.close)
            if config.mapping == "model":
                from sagann.train.rehearsals import begin_as_foretold

                begin_as_foretold(self, session.source, self._say)
            session.source.open()
            session.run(
                reporters, stops=lambda: team.any(self._is_stopping, "agreeing on the next epoch"), say=self._say
            )
            if isinstance(reporters[0], Saver):
                reporters[0].save()
            result = self._finish(session, folder)
            for reporter in reporters:
                reporter.on_end(result)
        return result

    def _session(self) -> TrainSession:
        """A session that trains the model from the weights it has now."""
        source = source_of(
            self.predictor, self.prepared, self.config, model_config=self.model_config, say=self._say
        )
        return self.session_of(self.predictor, source)

    def _stream_where_needed(self, resumed: RunFolder | None) -> None:
        """Stream the model where a budget is stated, or where memory is too small for the run; a resumed run has a budget already."""
        known = resumed.read_run().automatic_bytes if resumed is not None and resumed.exists else None
        given = self.predictor, self.prepared.graph, self.config, self._say
        budget_bytes = automatic_budget(*given, known=known, in_files_bytes=self._in_files_bytes)
        streaming = Streaming.of(self.config, self._spill_dir, device=self.device, automatic_bytes=budget_bytes)
        if streaming is not None:
            streaming.warn(self._say)
        self.predictor.stream_within(streaming)

    def stop(self) -> None:
        """Have :meth:`fit` end after the epoch or the mini-batch that is trained now, as Ctrl-C does.

        It may be called from any thread or signal handler. If one worker stops, all do.
        """
        # Without a lock, which a signal handler could wait for in vain.
        self._is_stopping = True

    def resume(self) -> TrainResult:
        """Continue the run in ``run_dir``: ``fit(resume=True)``."""
        return self.fit(resume=True)

    def evaluate(self, graph: Graph | None = None) -> dict[str, Metrics]:
        """Measure the model on the training graph, or on a new one: see :meth:`sagann.train.Predictor.evaluate`."""
        return self.predictor.evaluate(self.prepared if graph is None else graph)

    def predict(
        self, graph: Graph | None = None, *, probabilities: bool = False, links: tuple[Tensor, ...] | None = None
    ) -> Tensor:
        """Class ids, 0/1 per class, probabilities or values of every vertex, or graph: see :meth:`sagann.train.Predictor.predict`.

        Where links are learned, ``links`` are the pairs to score.
        """
        given = self.prepared if graph is None else graph
        return self.predictor.predict(given, probabilities=probabilities, links=links)

    def embed(self, graph: Graph | None = None) -> Tensor:
        """The input of the last SAGA layer, float [num_vertices, F], on the CPU."""
        return self.predictor.embed(self.prepared if graph is None else graph)

    def foretell(self) -> SampledForecast:
        """Foretell the seconds and bytes of an epoch of mini-batches: a few are sampled, loaded and trained, in about ten seconds.

        A copy of the model is trained. Model and random numbers stay as they are.

        Raises:
            InputError: ``config.sample`` is not set, several workers train, the model cannot be copied, or the loss of a rehearsed batch is NaN or infinite.
        """
        from sagann.train.rehearsals import foretell

        with own_turn(self.team):
            return foretell(self)

    def _run_folder(self, resume: bool) -> RunFolder | None:
        if not self.team.is_first:
            return None
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
        return (
            f"Trainer(model={model_name(self)!r}, data={self.source!r}, trains={trained_on(self)!r}, "
            f"epoch={len(self._records)} of {self.config.epochs}, monitor={self.monitor!r}, device={str(self.device)!r})"
        )

    def _finish(self, session: TrainSession, folder: RunFolder | None) -> TrainResult:
        """Give the model its final weights, and measure them unless the run was interrupted."""
        best = session.tracker.weights if session.finished else None
        if best is not None:
            self.model.load_state_dict(best)
            self._tell(session.tracker.first_is_best(session.history))
        metrics = self.evaluate() if session.finished else {}
        result = result_of(session, metrics, weights="last" if best is None else "best", run_dir=self.run_dir)
        if folder is not None and session.finished:
            folder.write_result(self.model.state_dict(), summary_of(self, result))
            if (trace := session.source.trace) is not None:
                session.source.runner.write_profile(folder.path, trace, self._say)
        return result
