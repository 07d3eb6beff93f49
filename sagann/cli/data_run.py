"""The work of ``sagann data info`` and ``check``."""

from __future__ import annotations

from pathlib import Path

from sagann.cli.options import Shared
from sagann.cli.prepare import stored_class_names
from sagann.cli.run_settings import absolute_path
from sagann.graph import validate_graph
from sagann.report.dataset_table import dataset_table
from sagann.report.terminal import Terminal
from sagann.storage import check_dataset, load_graph


def info_run(dataset: str, *, shared: Shared) -> None:
    """Print what a dataset holds."""
    graph = load_graph(dataset)
    # Offsets are read below, and a damaged file must not look like a graph.
    names = stored_class_names(absolute_path(dataset), graph.num_classes)
    Terminal(quiet=shared.quiet).show(dataset_table(graph, class_names=names, path=Path(dataset)))


def check_run(dataset: str, *, shared: Shared) -> None:
    """Check a whole dataset."""
    if Path(dataset).is_dir():
        check_dataset(dataset)
    else:
        # Opening an archive reads and checks all of it already.
        validate_graph(load_graph(dataset))
    Terminal(quiet=shared.quiet).show(f"{dataset} is sound.")
