"""``sagann train`` and ``sagann plan``: their options. The work is in train_run and plan_run, which load PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sagann.cli.options import Given, Shared, command, option, switch
from sagann.config import SETTINGS
from sagann.errors import require_choice


@command(*SETTINGS.values(), first="data")
def train(
    shared: Shared,
    given: Given,
    out: Annotated[
        Path | None,
        option(
            "Folder for the run: weights, metrics, checkpoints, configuration.",
            "RUN_DIR",
            default="runs/DATA-MODEL, numbered",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "Settings from a TOML file with the sections data, model and train; the command line wins.",
            "FILE",
        ),
    ] = None,
    resume: Annotated[bool, switch("--resume", "Continue the run in RUN_DIR.")] = False,
    overwrite: Annotated[bool, switch("--overwrite", "Replace the run in RUN_DIR.")] = False,
) -> int:
    """Train a model on a graph, and save the run.

    Every setting may stand in a TOML file instead (--config); a run's own is RUN_DIR/config.toml.
    Ctrl-C or SIGTERM finishes the epoch, or with --sample the batch, and saves a checkpoint; --resume continues bitwise as if nothing had
    happened. With --workers several processes train together; on several machines, start them with torchrun -m sagann train.

    Example: sagann train demo --model gcn --epochs 100 --out runs/demo
    """
    with shared.loading():
        from sagann.cli.train_run import train_run

    return train_run(given, out=out, file=config, resume=resume, overwrite=overwrite, shared=shared)


SHOWN = ("program", "kernels", "steps")


@command(*SETTINGS.values(), first="data")
def plan(
    shared: Shared,
    given: Given,
    show: Annotated[
        str,
        option(
            "program: the program that each layer is compiled to, and why; kernels: the generated source as well, "
            "without --memory; steps: with --memory, every step and copy of an epoch.",
            "|".join(SHOWN),
        ),
    ] = SHOWN[0],
    machine: Annotated[
        Path | None,
        option(
            "With --memory: rates of another machine, as 'sagann machine' writes them. With --devices: those of a machine with "
            "accelerators, or the name of a published one, as epyc-7763-u250.",
            "FILE",
            default="this one's, measured",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        option("With --memory: draw the expected timeline into this PNG file.", "FILE", default="none"),
    ] = None,
    learned: Annotated[
        Path | None,
        option(
            "With --workers: predict seconds with the cost model that this run learned (--balance cost).",
            "RUN_DIR",
            default="the run of --config",
        ),
    ] = None,
    config: Annotated[Path | None, option("Settings from a TOML file; the command line wins.", "FILE")] = None,
) -> None:
    """Explain what 'sagann train' would do with the same options, without training.

    Without further options, say what each layer of the model is compiled to. With --memory, say how an epoch is streamed: into how many
    intervals the graph is cut, how much memory it takes, what is copied, and how long it will take. With --sample, say how long an epoch of
    mini-batches will take, which bytes it reads, and what holds it up; a few batches are trained for that. With --devices, predict it for a
    processor and accelerators that train together, on this machine or on one that is described. With --workers, say how the graph is
    divided among them, and what a run has learned of their seconds.

    Example: sagann plan demo --model gat
    """
    require_choice(show, SHOWN, what="cannot show that", where="--show")
    with shared.loading():
        from sagann.cli.plan_run import plan_run

    plan_run(given, config, shared, show=show, machine_file=machine, picture=picture, learned=learned)
