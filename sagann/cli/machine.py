"""``sagann machine``: declared here, done in sagann.cli.machine_run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sagann.cli.apply import OverwriteOption
from sagann.cli.options import Shared, with_default, with_settings


@with_settings(())
def machine(
    context: typer.Context,
    out: Annotated[
        Path | None,
        typer.Option(help=with_default("File to write: .toml.", "none"), metavar="FILE", show_default=False),
    ] = None,
    disk: Annotated[
        Path, typer.Option(help="Folder whose disk is measured: where runs spill to.", metavar="FOLDER")
    ] = Path(),
    device: Annotated[str, typer.Option(help="What computes, and is measured.", metavar="cpu|cuda|cuda:N")] = "cpu",
    overwrite: OverwriteOption = False,
) -> None:
    """Measure this machine: how fast it computes, gathers over edges, copies, reads and writes.

    With --out, the rates are written as TOML. It takes a few seconds, and is best done while nothing else runs.

    Example: sagann machine --out machine.toml
    """
    # Imported here: it loads torch, for which --help must not wait.
    from sagann.cli.machine_run import machine_run

    machine_run(out=out, disk=disk, device=device, overwrite=overwrite, shared=context.ensure_object(Shared))
