"""``sagann data``: declared here, done in sagann.cli.data_*."""

from __future__ import annotations

import typer

app = typer.Typer(help="Import, generate, describe and check datasets.", no_args_is_help=True)


@app.command()
def info() -> None: ...
@app.command()
def check() -> None: ...
