"""``sagann evaluate``, ``predict`` and ``embed``: declared here, done in sagann.cli.apply_run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sagann.cli.options import Shared, with_default, with_settings

RunOption = Annotated[Path, typer.Option("--run", help="Folder that 'sagann train' wrote.", metavar="RUN_DIR")]
DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        help=with_default(
            "Another graph: a dataset folder, an .npz file or a name. It is prepared as the run's own was.",
            "the run's",
        ),
        metavar="PATH|NAME",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="The run's own model file, named again so that it may be executed; models of the zoo need none.",
        metavar="FILE.py:CLASS",
        show_default=False,
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="Where to compute.", metavar="auto|cpu|cuda|cuda:N")]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help=with_default(
            "What vertices' and edges' tensors may take, as 2GiB: the model is streamed by intervals.",
            "the budget that it was trained within; none for a run in memory",
        ),
        metavar="SIZE",
        show_default=False,
    ),
]
SpillOption = Annotated[
    Path | None,
    typer.Option(
        "--spill",
        help=with_default(
            "Where a streamed model keeps what memory does not, on a disk with room.",
            "the run's, if it was named one; else the system's for temporary files",
        ),
        metavar="FOLDER",
        show_default=False,
    ),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace a file that stands there.")]


@with_settings(())
def evaluate(
    context: typer.Context,
    run: RunOption,
    data: DataOption = None,
    split: Annotated[
        str | None,
        typer.Option(
            help=with_default(
                "Split to measure on, as for 'sagann train'.",
                "the run's; with --data that dataset's own, else all labelled vertices",
            ),
            metavar="SPLIT",
        ),
    ] = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    memory: MemoryOption = None,
    spill: SpillOption = None,
) -> None:
    """Measure a trained model on each split of its graph, or of another one.

    Example: sagann evaluate --run runs/demo
    """
    # Imported here: it loads torch, for which --help must not wait.
    from sagann.cli.apply_run import Opening, evaluate_run

    opening = Opening(model=model, device=device, memory=memory, spill=spill)
    evaluate_run(run, opening, data=data, split=split, shared=context.ensure_object(Shared))


@with_settings(())
def predict(
    context: typer.Context,
    run: RunOption,
    out: Annotated[Path, typer.Option(help="File to write: .csv, .parquet or .npy.", metavar="FILE")],
    data: DataOption = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    memory: MemoryOption = None,
    spill: SpillOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Predict the class of every vertex, with its probability.

    One row per vertex: vertex, class, class_name, probability. Where a vertex may have several classes: vertex,
    and a column per class with its probability (.npy: a float32 matrix).

    Example: sagann predict --run runs/demo --out predictions.csv
    """
    from sagann.cli.apply_run import Opening, predict_run

    opening = Opening(model=model, device=device, memory=memory, spill=spill)
    predict_run(run, opening, data=data, out=out, overwrite=overwrite, shared=context.ensure_object(Shared))


@with_settings(())
def embed(
    context: typer.Context,
    run: RunOption,
    out: Annotated[Path, typer.Option(help="File to write: .npy.", metavar="FILE")],
    data: DataOption = None,
    model: ModelOption = None,
    device: DeviceOption = "auto",
    memory: MemoryOption = None,
    spill: SpillOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Write an embedding of every vertex: what the last layer is given, a float32 matrix with a row per vertex.

    Example: sagann embed --run runs/demo --out embeddings.npy
    """
    from sagann.cli.apply_run import Opening, embed_run

    opening = Opening(model=model, device=device, memory=memory, spill=spill)
    embed_run(run, opening, data=data, out=out, overwrite=overwrite, shared=context.ensure_object(Shared))
