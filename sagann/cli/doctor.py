"""``sagann doctor``: declared here, done in sagann.cli.doctor_run."""

from __future__ import annotations

import typer

from sagann.cli.options import Shared, with_settings


@with_settings(())
def doctor(context: typer.Context) -> None:
    """Say what is installed, what this machine offers, and which parts of sagann work here.

    Exit code 0 when everything that sagann needs works.
    """
    from sagann.cli.doctor_run import doctor_run

    shared = context.ensure_object(Shared)
    raise typer.Exit(doctor_run(shared=shared))
