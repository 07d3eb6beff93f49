"""Reopening a run folder: its description, and its trained model."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from sagann import interop
from sagann.byte_size import parse_bytes
from sagann.config import class_in_file
from sagann.errors import CheckpointError, InputError, require_type
from sagann.nn import ModelConfig, build_model
from sagann.nn.model_call import is_written_for_pyg
from sagann.nn.user_model import require_named
from sagann.runtime.team import SOLO
from sagann.train.identity import device_together
from sagann.train.losses import LossFunction
from sagann.train.metrics import OwnMetrics
from sagann.train.predictor import Predictor
from sagann.train.run import Run
from sagann.train.run_folder import RunFolder
from sagann.train.streamed import Streaming

if TYPE_CHECKING:
    from sagann.runtime.team import Team


def read_run(run_dir: str | os.PathLike[str]) -> Run:
    """Read the description and the summary of a run, without its weights.

    Raises:
        CheckpointError: ``run_dir`` is no run folder, or its run.json or metrics.json is damaged.
    """
    require_type(run_dir, (str, os.PathLike), where="run_dir", hint="Pass the folder that a training run wrote.")
    folder = RunFolder(Path(run_dir))
    return replace(folder.read_run(), metrics=folder.read_summary())


def load_run(
    run_dir: str | os.PathLike[str],
    *,
    model: nn.Module | str | None = None,
    loss: LossFunction | None = None,
    metrics: OwnMetrics | None = None,
    device: str = "auto",
    memory: str | None = None,
    spill: str | os.PathLike[str] | None = None,
    workers: Team | None = None,
) -> Predictor:
    """Reopen a trained model, with the weights that its run ended with, or of its newest checkpoint if it has not ended.

    A Python file that a run folder names is executed only where the caller names it again. A model that was trained
    within a memory budget is also evaluated within that budget (on mini-batches: within half of it). The model is left in evaluation mode.

    Args:
        run_dir: the folder that a Trainer wrote.
        model: the module to load the weights into, or 'path/to/file.py:ClassName' to build it from; needed where
            the run's model is not of the zoo.
        loss: the function that the run was trained with, if it was one of the user's; without it, evaluations leave the loss out.
        metrics: further metrics of evaluations, by name, as the Trainer takes them.
        device: 'cpu', 'cuda', 'cuda:N' or 'auto'; within a memory budget also several, as 'cuda:0,cuda:1'.
        memory: budget to stream the model within, such as '2GiB'; None for the budget of the run, if any.
        spill: spill folder; None for the one that the run's options name, else the system's folder for temporary files.
        workers: the workers that use the model together (:func:`sagann.runtime.workers.join_workers`), each of which opens the run, and calls the
            same methods with the same graphs; the first one gets the results. ``memory`` is the budget of each. If they are balanced by cost, graphs
            are cut by what the run has learned of its workers' seconds.
    Returns:
        A predictor with ``evaluate``, ``predict`` and ``embed``, each of which takes a graph.
    Raises:
        CheckpointError: no run folder, no weights yet, weights of another model, ``model`` is needed, or workers are to be balanced by costs that
            the run has not learned.
        InputError: the run's model was a module of the user's own, and ``model`` is None; or ``memory`` is no size.
    """
    hint = "Pass a module, or 'path/to/file.py:ClassName'."
    require_type(model, (str, nn.Module), where="load_run.model", hint=hint, optional=True)
    require_type(memory, str, where="load_run.memory", hint="Pass a size such as '2GiB'.", optional=True)
    hint = "Pass the path of a folder."
    require_type(spill, (str, os.PathLike), where="load_run.spill", hint=hint, optional=True)
    memory_bytes = None if memory is None else parse_bytes(memory, where="load_run.memory")
    run = read_run(run_dir)
    model = _with_weights(run, model)
    trained = run.train_config
    spill = trained.spill if spill is None else os.fspath(spill)
    config = replace(trained, device=device, memory=memory or trained.memory, spill=spill)
    team = workers or SOLO
    where = device_together(device, team)
    # An automatic budget comes from the host's free memory, for one process.
    automatic_bytes = run.automatic_bytes if where.type == "cpu" and team.size == 1 else None
    streaming = Streaming.of(config, None, device=where, automatic_bytes=automatic_bytes, trains=False)
    if streaming is not None and memory_bytes is not None:
        # Nothing else needs a part of it, whatever the run was.
        streaming = replace(streaming, memory_bytes=memory_bytes, is_half=False)
    if is_written_for_pyg(model):
        model = interop.from_pyg_model(model, run.contract.shape_only_graph())
    # Predictions of several threads then find the model in this mode, and leave it so.
    model.eval()
    if run.loss.is_known and loss is not None:
        raise InputError(
            f"a run with a loss by name takes no other one: the run has the loss '{run.loss.name}', and loss= "
            "is given (in load_run.loss)",
            hint="Leave loss out.",
        )
    mean_loss = run.loss if run.loss.is_known else replace(run.loss, function=loss)
    learned = None
    if team.size > 1 and team.balance == "cost":
        from sagann.train.balancer import learned_costs

        learned = learned_costs(run_dir).forward
    return Predictor(
        model,
        run.contract,
        device=where,
        loss=mean_loss,
        metrics=metrics,
        streaming=streaming,
        workers=team,
        learned=learned,
        for_first=True,
    )


def _with_weights(run: Run, model: nn.Module | str | None) -> nn.Module:
    """The model of a run, with its weights."""
    if not isinstance(model, nn.Module):
        model = build_model(_confirmed_config(run, model), run.contract.shape_only_graph())
    weights = RunFolder(run.path).read_weights()
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        found = " ".join(str(error).split("\n\t")[:2])
        raise CheckpointError(
            f"the weights are of another model: {found} (in {run.path})",
            hint="Pass the model that the run was trained with: load_run(..., model=...) takes a module that you have built.",
        ) from error
    return model


def _confirmed_config(run: Run, reference: str | None) -> ModelConfig:
    """The configuration of the run's model. A user's file is used only where ``reference`` names it."""
    config, hint = run.model_config, "Name the model that the run was trained with."
    if config is None:
        hint = f"Name its file and class (--model FILE.py:{run.model}), or pass load_run(..., model=...) with a module of that class."
    if config is None and reference is None:
        raise InputError(
            f"the run's model cannot be built from its folder: it was a {run.model} of the user's own (in {run.path})",
            hint=hint,
        )
    if config is not None and reference in (None, config.model):
        if reference is None:
            require_named(config.model, where=str(run.path), error=CheckpointError)
        return config
    named = class_in_file(str(reference))
    own = run.model if config is None else (class_in_file(config.model) or ("", ""))[1]
    if named is None or named[1] != own:
        raise CheckpointError(
            f"the run was trained with another model: '{reference}', the run's is "
            f"'{run.model if config is None else config.model}' (in {run.path})",
            hint=hint,
        )
    return replace(config or ModelConfig(), model=str(reference))
