"""``sagann train``: declared here, done in sagann.cli.train_run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sagann.cli.options import Given, Shared, with_default, with_settings
from sagann.cli.settings import SETTINGS

_RUN = "Run folder"


@with_settings(SETTINGS)
def train(
    context: typer.Context,
    given: Given,
    out: Annotated[
        Path | None,
        typer.Option(
            help=with_default(
                "Folder for the run: weights, metrics, checkpoints, configuration.", "runs/DATA-MODEL, numbered"
            ),
            metavar="RUN_DIR",
            rich_help_panel=_RUN,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Settings from a TOML file with the sections data, model and train; the command line wins.",
            metavar="FILE",
            rich_help_panel=_RUN,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", metavar="", help="Continue the run in RUN_DIR.", rich_help_panel=_RUN)
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", metavar="", help="Replace the run in RUN_DIR.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Train a model on a graph, and save the run.

    Every setting may stand in a TOML file instead (--config); a run's own is RUN_DIR/config.toml.
    Ctrl-C finishes the epoch and saves a checkpoint, and --resume continues bitwise as if nothing had happened.

    Example: sagann train --data demo --model gcn --epochs 100 --out runs/demo
    """
    # Imported here: it loads torch, for which --help must not wait.
    from sagann.cli.train_run import train_run

    shared = context.ensure_object(Shared)
    raise typer.Exit(train_run(given, out=out, file=config, resume=resume, overwrite=overwrite, shared=shared))
