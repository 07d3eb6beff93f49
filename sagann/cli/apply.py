"""``sagann evaluate | predict | embed``: their options. The work is in sagann.cli.apply_run, which loads PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sagann.cli.options import Shared, command, option, switch

OverwriteOption = Annotated[bool, switch("--overwrite", "Replace a file that stands there.")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """Options of the three commands: which run is opened, on which graph, and where it computes."""

    run: Annotated[str | None, option("Folder that 'sagann train' wrote.", "RUN_DIR")] = None
    data: Annotated[
        str | None,
        option(
            "Another graph: a dataset folder, an .npz file or a name. It is prepared as the run's own was.",
            "PATH|NAME",
            default="the run's",
        ),
    ] = None
    model: Annotated[
        str | None,
        option(
            "The run's own model file, named again so that it may be executed; models of the zoo need none.",
            "FILE.py:CLASS",
        ),
    ] = None
    device: Annotated[str, option("Where to compute.", "auto|cpu|cuda|cuda:N")] = "auto"
    memory: Annotated[
        str | None,
        option(
            "Memory for the tensors of vertices and edges, as 2GiB: the model is streamed by intervals.",
            "SIZE",
            default="the budget that it was trained within, half of it for one on mini-batches; none for a run in memory",
        ),
    ] = None
    spill: Annotated[
        Path | None,
        option(
            "Folder for blocks of a streamed model that memory does not hold, on a disk with room.",
            "FOLDER",
            default="the run's, if it was named one; else the system's for temporary files",
        ),
    ] = None


@command(first="run")
def evaluate(
    shared: Shared,
    opening: Opening,
    split: Annotated[
        str | None,
        option(
            "Split to measure on, as for 'sagann train'.",
            "SPLIT",
            default="the run's; with --data that dataset's own, else all labelled vertices",
        ),
    ] = None,
) -> None:
    """Measure a trained model on each split of its graph, or of another one.

    Example: sagann evaluate --run runs/demo
    """
    from sagann.cli.apply_run import opened

    with opened(opening, shared) as trained:
        trained.evaluate(split)


@command(first="run")
def predict(
    shared: Shared,
    opening: Opening,
    out: Annotated[Path, option("File to write: .csv, .parquet or .npy.", "FILE")],
    links: Annotated[
        Path | None,
        option(
            "For a model of links: table of pairs to score, .csv or .parquet: source, destination, and the type if edges have types. Messages "
            "travel along all edges of the graph, also those that the run held out.",
            "FILE",
        ),
    ] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Predict the class of every vertex, with its probability, or the values of a regression; those of every graph of several in one; or how likely pairs are edges.

    One row per vertex (of a task on whole graphs, per graph): vertex, class, class_name, probability. Where a vertex may have several classes: vertex,
    and a column per class with its probability (.npy: a float32 matrix). Of a regression: vertex, prediction, or prediction_0,
    prediction_1, ... for several targets (.npy: a float32 array). Of links: src, dst, type and probability of each pair of --links (.npy: the probabilities).

    Example: sagann predict --run runs/demo --out predictions.csv
    """
    from sagann.cli.apply_run import opened
    from sagann.cli.result_file import check_target

    check_target(out, (".csv", ".parquet", ".npy"), overwrite=overwrite)
    with opened(opening, shared) as trained:
        trained.predict(out, links)


@command(first="run")
def embed(
    shared: Shared,
    opening: Opening,
    out: Annotated[Path, option("File to write: .npy.", "FILE")],
    overwrite: OverwriteOption = False,
) -> None:
    """Write an embedding of every vertex: the input of the last layer, a float32 matrix with a row per vertex.

    Example: sagann embed --run runs/demo --out embeddings.npy
    """
    from sagann.cli.apply_run import opened
    from sagann.cli.result_file import check_target

    check_target(out, (".npy",), overwrite=overwrite)
    with opened(opening, shared) as trained:
        trained.embed(out)
