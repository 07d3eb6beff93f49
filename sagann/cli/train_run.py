"""The work of ``sagann train``: settings and graph in, a run folder and a table of metrics out."""

from __future__ import annotations

import itertools
import shlex
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from sagann.byte_size import format_bytes
from sagann.cli.failure import INTERRUPTED
from sagann.cli.options import Given, Shared
from sagann.cli.prepare import training_graph
from sagann.cli.result_file import owner_of
from sagann.cli.run_settings import chosen_settings, new_engine, require_nothing_of_workers
from sagann.config import RunConfig
from sagann.errors import CheckpointError, InputError, SagannError
from sagann.graph import Graph
from sagann.nn import MODELS
from sagann.processes import is_restarted, is_worker, local_rank, num_local_workers
from sagann.report.progress import ProgressReporter, short_seconds
from sagann.report.tables import metrics_table
from sagann.report.terminal import Terminal
from sagann.runtime.team import SOLO, START_TIMEOUT_S, Team
from sagann.saga.engine import using_engine
from sagann.storage.folder import TEMPORARY_PREFIX, write_whole
from sagann.train import Reporter, Trainer, TrainResult
from sagann.train.checkpoint import Position
from sagann.train.resources import device_of
from sagann.train.run_folder import CONFIG_FILE, HISTORY_FILE, LOCK_FILE, RUN_FILE, RUNS, RunFolder, is_of_run
from sagann.train.runner import large_arrays
from sagann.train.streamed import Streaming
from sagann.train.trainable import require_divisible


def train_run(
    given: Given, *, out: Path | None, file: Path | None, resume: bool, overwrite: bool, shared: Shared
) -> int:
    """Train, save and report a run, and return the exit code. With several workers, start them; or be one of them."""
    from_run = is_of_run(file) or (resume and file is None)
    if resume:
        file = _file_of_resumed(out, file, overwrite=overwrite)
    settings = chosen_settings(given, file, of_run=from_run)
    if settings.workers == 1 and not is_worker():
        require_nothing_of_workers(given)
        return _train(settings, out, shared, resume=resume, overwrite=overwrite)
    from sagann.cli.launch import joined, launch_workers

    if is_worker():
        with joined(shared, given, timeout_s=settings.worker_timeout, balance=settings.balance) as workers:
            settings = replace(settings, workers=workers.size)
            return _train(settings, out, shared, resume=resume, overwrite=overwrite, workers=workers)
    run_dir = out or _free_folder(settings)
    _check_folder(run_dir, resume=resume, overwrite=overwrite)
    _device_of_worker(settings, local_rank=0, num_local=settings.workers)
    named = [] if out is not None else ["--out", str(run_dir)]
    again = f"Continue with: sagann train --resume --out {shlex.quote(str(run_dir))}"
    return launch_workers([*shared.arguments, *named], settings.workers, run_dir=run_dir, again=again)


def _train(
    settings: RunConfig, out: Path | None, shared: Shared, *, resume: bool, overwrite: bool, workers: Team = SOLO
) -> int:
    """Train in this process, alone or as one of several workers, of which the first one writes and reports."""
    terminal, is_first = shared.terminal(), workers.is_first
    shared.load_kernels()
    run_dir = out or _free_folder(settings)
    # torchrun counts restarts on each machine, and not those in which a machine follows another one.
    if workers.size > 1 and workers.any(is_restarted(), "agreeing on whether to resume"):
        overwrite = False
        # A worker may have been lost before there was a run. Only the first one reads the folder.
        resume = workers.any(is_first and RunFolder(run_dir).exists, "agreeing on whether to resume") or resume
    if is_first:
        _check_folder(run_dir, resume=resume, overwrite=overwrite)
    with workers.together("checking the options"):
        if workers.size == 1:
            device = device_of(settings.train)
        else:
            device = _device_of_worker(settings, local_rank=local_rank(), num_local=num_local_workers())
        streaming = Streaming.of(settings.train, run_dir, device=device)
    with workers.together("opening the dataset"):
        graph = opened_graph(settings, streaming, say=terminal.say, check=is_first)
    if streaming is not None:
        passes = "epochs" if settings.train.sample is None else "evaluations"
        terminal.say(f"Cutting the graph, and planning {passes} within {format_bytes(streaming.memory_bytes)} ...")
    result = _fit(settings, graph, run_dir, shared, resume=resume, overwrite=overwrite, workers=workers)
    if result.interrupted:
        if is_first:
            position = Position(result.epochs, result.batch)
            _say_interrupted(f"Interrupted after {position}, and saved.", settings, run_dir, terminal)
        return INTERRUPTED
    if is_first:
        ended = "stopped early" if result.stopped_early else "done"
        of_epoch = f", of epoch {result.best_epoch}" if result.weights == "best" else ""
        terminal.show(metrics_table(result.metrics, title=f"Metrics of the {result.weights} weights{of_epoch}"))
        noun = "epoch" if result.epochs == 1 else "epochs"
        terminal.show(f"{result.epochs} {noun} {ended}, {short_seconds(result.epoch_s)} each (median).")
        terminal.show(f"Run saved in {run_dir}")
    return 0


def _device_of_worker(settings: RunConfig, *, local_rank: int, num_local: int) -> torch.device:
    """The device of a worker. What several workers cannot train is refused before anything is read."""
    from sagann.runtime.workers.carriers import device_of_worker, name_for_workers

    require_divisible(settings.train, balance=settings.balance)
    name = name_for_workers(settings.train.device, num_local=num_local)
    return device_of_worker(name, local_rank=local_rank, num_local=num_local)


def opened_graph(
    settings: RunConfig, streaming: Streaming | None, *, say: Callable[[str], None], check: bool = True
) -> Graph:
    """The graph of a run with a split to train on, with large arrays in files where the run is streamed."""
    with large_arrays(streaming):
        return training_graph(
            settings.data, task=settings.train.task, seed=settings.train.seed, say=say, check=check
        )


def made_trainer(
    settings: RunConfig, graph: Graph, shared: Shared, *, run_dir: Path, reporter: Reporter, workers: Team = SOLO
) -> Trainer:
    """The Trainer of a run, whose graph has been opened; nothing is written yet."""
    shared.load_compiler()
    data = settings.data
    return Trainer(
        settings.model,
        graph,
        settings.train,
        run_dir=run_dir,
        source=data.data,
        reporter=reporter,
        # The values of the graph as it was opened are checked.
        validate=data.undirected or data.inverse_edges or data.normalise_features,
        workers=workers,
    )


def _fit(
    settings: RunConfig,
    graph: Graph,
    run_dir: Path,
    shared: Shared,
    *,
    resume: bool,
    overwrite: bool,
    workers: Team,
) -> TrainResult:
    config, terminal = run_dir / CONFIG_FILE, shared.terminal()
    content = settings.to_toml().encode()
    # Settings that the Trainer refuses must not replace those in the folder.
    reporter = ProgressReporter(terminal.err, begin=lambda: write_whole(config, content))
    trainer = made_trainer(settings, graph, shared, run_dir=run_dir, reporter=reporter, workers=workers)
    # Of several workers, the first one alone reads and writes the folder.
    is_new = workers.is_first and not run_dir.exists()
    if workers.is_first:
        run_dir.mkdir(parents=True, exist_ok=True)
        if not config.exists():
            # From here on, a run that is killed can be resumed.
            write_whole(config, content)
    folder = RunFolder(run_dir)
    # A run that was killed before its first epoch has settings only, and starts again.
    is_resumed = resume and workers.is_first and (folder.exists or folder.has_work)
    # A worker may have a larger part to copy.
    is_resumed = workers.any(is_resumed, "agreeing on a checkpoint", timeout_s=START_TIMEOUT_S)
    try:
        with using_engine(new_engine(settings)), shared.signals.stopping(trainer.stop):
            return trainer.fit(resume=is_resumed, overwrite=overwrite)
    except SagannError:
        if is_new and not folder.exists:
            # A run that is refused leaves nothing.
            shutil.rmtree(run_dir)
        raise
    except KeyboardInterrupt:
        if positions := folder.checkpoints.positions():
            _say_interrupted(f"Interrupted; saved up to {positions[0]}.", settings, run_dir, terminal)
        raise
    finally:
        reporter.close()


def _file_of_resumed(out: Path | None, file: Path | None, *, overwrite: bool) -> Path:
    """The file of settings of a run that is resumed: ``file``, or the run's own."""
    if overwrite:
        raise InputError(
            "a run cannot be continued and replaced: --resume and --overwrite (in sagann train)",
            hint="Leave one of them out.",
        )
    if out is None:
        raise InputError("nothing to resume: no --out (in sagann train)", hint="Name the run folder with --out.")
    if file is not None:
        return file
    if not (out / CONFIG_FILE).is_file():
        raise CheckpointError(
            f"nothing to resume: there is no {CONFIG_FILE} (in {out})",
            hint="Pass the folder of a run of 'sagann train'; resume one started in Python with fit(resume=True).",
        )
    return out / CONFIG_FILE


def _free_folder(settings: RunConfig) -> Path:
    """runs/DATA-MODEL, or the first of runs/DATA-MODEL-2, -3, ... that is free."""
    data = Path(settings.data.data).stem
    model = settings.model.model if settings.model.model in MODELS else settings.model.model.rpartition(":")[2]
    base = RUNS / f"{data}-{model}"
    numbered = (base.with_name(f"{base.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([base], numbered) if not folder.exists())


def _check_folder(run_dir: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds files, or lies in a dataset or a run, before the graph is opened."""
    if resume:
        return
    if owner := owner_of(run_dir):
        raise InputError(
            f"a run cannot be saved among the files of a dataset or of another run: they belong to {owner}, "
            f"and may be replaced with it (in {run_dir})",
            hint="Choose a folder elsewhere with --out.",
        )
    if run_dir.exists() and not run_dir.is_dir():
        raise InputError(
            f"the run folder is a file: a folder is needed (in {run_dir})", hint="Choose another --out."
        )
    folder = RunFolder(run_dir)
    names = {path.name for path in run_dir.glob("*") if not path.name.startswith(TEMPORARY_PREFIX)}
    # Settings alone are those of a run that was killed before its first epoch.
    is_unstarted = names <= {CONFIG_FILE, HISTORY_FILE, LOCK_FILE}
    is_run = folder.exists or (CONFIG_FILE in names and (folder.has_work or is_unstarted))
    if names and not is_run:
        raise InputError(
            f"the folder holds something else than a run: {len(names)} files and folders, no {RUN_FILE} of a run (in {run_dir})",
            hint="Choose an empty or a new folder with --out.",
        )
    folder.require_free(overwrite=overwrite)


def _say_interrupted(text: str, settings: RunConfig, run_dir: Path, terminal: Terminal) -> None:
    # A file is executed only where it is named.
    model = "" if settings.model.model in MODELS else f" --model {shlex.quote(settings.model.model)}"
    terminal.say(f"{text} Continue with:")
    terminal.say(f"  sagann train --resume --out {shlex.quote(str(run_dir))}{model}")
