"""``sagann plan``: declared here, done in sagann.cli.plan_run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sagann.cli.options import Given, Shared, with_default, with_settings
from sagann.cli.settings import SETTINGS
from sagann.errors import InputError

SHOWN = ("program", "kernels", "steps")


@with_settings(tuple(setting for setting in SETTINGS if setting.section in ("data", "model")))
def plan(
    context: typer.Context,
    given: Given,
    show: Annotated[
        str,
        typer.Option(
            help=with_default(
                "program: what each layer was made into, and why; kernels: the generated source as well, without "
                "--memory; steps: with --memory, every step and copy of an epoch.",
                "program",
            ),
            metavar="|".join(SHOWN),
            show_default=False,
        ),
    ] = SHOWN[0],
    memory: Annotated[
        str | None,
        typer.Option(
            help=with_default("Say how training is streamed within so much memory, as 2GiB.", "none"),
            metavar="SIZE",
            show_default=False,
        ),
    ] = None,
    spill: Annotated[
        Path | None,
        typer.Option(
            help=with_default(
                "With --memory: the folder that blocks will go to; its disk is measured.",
                "as sagann train: below runs",
            ),
            metavar="FOLDER",
            show_default=False,
        ),
    ] = None,
    machine: Annotated[
        Path | None,
        typer.Option(
            help=with_default(
                "With --memory: rates of another machine, as `sagann machine` writes them.", "this one's, measured"
            ),
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="With --memory: what will compute.", metavar="auto|cpu|cuda|cuda:N")
    ] = "auto",
    picture: Annotated[
        Path | None,
        typer.Option(
            help=with_default("With --memory: draw the expected timeline into this PNG file.", "none"),
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings from a TOML file; the command line wins.", metavar="FILE")
    ] = None,
) -> None:
    """Say what a model becomes on a graph, without training it.

    With --memory, say instead how an epoch is streamed: into how many intervals the graph is cut, how much memory it
    takes, what is copied, and how long it will take.

    Example: sagann plan --data demo --model gat
    """
    if show not in SHOWN:
        raise InputError(
            "cannot show that", value=f"'{show}'", where="--show", fix=f"Choose one of {', '.join(SHOWN)}."
        )
    from sagann.cli.plan_run import plan_run
    from sagann.cli.plan_streaming import Wish

    wish = Wish.of(memory=memory, show=show, spill=spill, machine=machine, device=device, picture=picture)
    raise typer.Exit(plan_run(given, show=show, streaming=wish, file=config, shared=context.ensure_object(Shared)))
