"""``sagann train``: its options. The work is in sagann.cli.train_run, which loads PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from sagann.cli.options import Given, Shared, command, option, switch
from sagann.cli.settings import SETTINGS

_RUN = "Run folder"


@command(*SETTINGS)
def train(
    shared: Shared,
    given: Given,
    out: Annotated[
        Path | None,
        option(
            "Folder for the run: weights, metrics, checkpoints, configuration.",
            "RUN_DIR",
            default="runs/DATA-MODEL, numbered",
            panel=_RUN,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        option(
            "Settings from a TOML file with the sections data, model and train; the command line wins.",
            "FILE",
            panel=_RUN,
        ),
    ] = None,
    resume: Annotated[bool, switch("--resume", "Continue the run in RUN_DIR.", panel=_RUN)] = False,
    overwrite: Annotated[bool, switch("--overwrite", "Replace the run in RUN_DIR.", panel=_RUN)] = False,
) -> int:
    """Train a model on a graph, and save the run.

    Every setting may stand in a TOML file instead (--config); a run's own is RUN_DIR/config.toml.
    Ctrl-C finishes the epoch and saves a checkpoint, and --resume continues bitwise as if nothing had happened.

    Example: sagann train --data demo --model gcn --epochs 100 --out runs/demo
    """
    from sagann.cli.train_run import train_run

    return train_run(given, out=out, file=config, resume=resume, overwrite=overwrite, shared=shared)
