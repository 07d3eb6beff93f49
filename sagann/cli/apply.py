"""``sagann evaluate | predict | embed``: their options. The work is in sagann.cli.apply_run, which loads PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sagann.cli.options import Given, Shared, command, option, switch
from sagann.config import SETTINGS, WORKERS
from sagann.options import Metavar, Values, check_fields, options, options_of
from sagann.torchrun import is_worker, rank

OverwriteOption = Annotated[bool, switch("--overwrite", "Replace a file that stands there.")]


@options("use", "Options")
@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """Options of the three commands: which run is opened, on which graph, and where it computes."""

    run: Annotated[str | None, Metavar("RUN_DIR")] = None
    "Folder that 'sagann train' or a Trainer wrote."
    data: Annotated[str | None, Metavar("PATH|NAME")] = None
    "Another graph: a dataset folder, an .npz file or a name. It is prepared as the run's own was. None is the run's own."
    model: Annotated[str | None, Metavar("FILE.py:CLASS")] = None
    "The run's own model file, named again so that it may be executed; models of the zoo need none."
    device: Annotated[str, SETTINGS["device"].mark(Values)] = "auto"
    "Where to compute."
    memory: Annotated[str | None, SETTINGS["memory"].mark(Values)] = None
    """Memory for the tensors of vertices and edges, as 2GiB, of each worker: the model is streamed by intervals. None is the budget that it was
    trained within, half of it for one on mini-batches, or no budget for a run in memory."""
    spill: Annotated[str | None, SETTINGS["spill"].mark(Values)] = None
    """Folder for blocks of a streamed model that memory does not hold, on a disk with room. None is the run's, if it was named one; else the system's for
    temporary files."""

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def of(cls, given: Given) -> Opening:
        """The options that were given on the command line."""
        return cls(**{name: given[name] for name in given if name in options_of(Opening)})


_OPENED = (*options_of(Opening).values(), *WORKERS)


@command(*_OPENED, first="run")
def evaluate(
    shared: Shared,
    given: Given,
    split: Annotated[
        str | None,
        option(
            "Split to measure on, as for 'sagann train'.",
            "SPLIT",
            default="the run's; with --data that dataset's own, else all labelled vertices",
        ),
    ] = None,
) -> int:
    """Measure a trained model on each split of its graph, or of another one.

    Example: sagann evaluate runs/demo
    """
    with shared.loading():
        from sagann.cli.apply_run import use_run

    return use_run(Opening.of(given), given, shared, lambda trained: trained.evaluate(split))


@command(*_OPENED, first="run")
def predict(
    shared: Shared,
    given: Given,
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
) -> int:
    """Predict the class of every vertex, with its probability, or the values of a regression; those of every graph of several in one; or how likely pairs are edges.

    One row per vertex (of a task on whole graphs, per graph): vertex, class, class_name, probability. Where a vertex may have several classes: vertex,
    and a column per class with its probability (.npy: a float32 matrix). Of a regression: vertex, prediction, or prediction_0,
    prediction_1, ... for several targets (.npy: a float32 array). Of links: src, dst, type and probability of each pair of --links (.npy: the probabilities).

    Example: sagann predict runs/demo --out predictions.csv
    """
    with shared.loading():
        from sagann.cli.apply_run import use_run

    _check_out(out, (".csv", ".parquet", ".npy"), overwrite=overwrite)
    return use_run(Opening.of(given), given, shared, lambda trained: trained.predict(out, links))


@command(*_OPENED, first="run")
def embed(
    shared: Shared,
    given: Given,
    out: Annotated[Path, option("File to write: .npy.", "FILE")],
    overwrite: OverwriteOption = False,
) -> int:
    """Write an embedding of every vertex: the input of the last layer, a float32 matrix with a row per vertex.

    Example: sagann embed runs/demo --out embeddings.npy
    """
    with shared.loading():
        from sagann.cli.apply_run import use_run

    _check_out(out, (".npy",), overwrite=overwrite)
    return use_run(Opening.of(given), given, shared, lambda trained: trained.embed(out))


def _check_out(out: Path, suffixes: Sequence[str], *, overwrite: bool) -> None:
    """Refuse a file that cannot or should not be written. Of several workers, the first one alone writes it."""
    from sagann.cli.result_file import check_target

    if not is_worker() or rank() == 0:
        check_target(out, suffixes, overwrite=overwrite)
