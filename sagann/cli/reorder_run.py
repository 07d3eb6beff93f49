"""The work of ``sagann data reorder``."""

from __future__ import annotations

from pathlib import Path

from sagann.cli.generate_run import report_dataset
from sagann.cli.options import Shared
from sagann.cli.result_file import check_target
from sagann.partition import vertex_order
from sagann.report.terminal import Terminal
from sagann.storage import load_graph
from sagann.storage.manifest import read_manifest
from sagann.storage.npy import write_npy
from sagann.storage.reorder import save_reordered


def reorder_run(
    dataset: str,
    out: Path,
    *,
    by: str,
    num_parts: int,
    seed: int,
    save_order: Path | None,
    overwrite: bool,
    shared: Shared,
) -> None:
    """Write a dataset anew with its vertices in another order, and say what came of it."""
    if save_order is not None:
        check_target(save_order, (".npy",), overwrite=overwrite, option="--save-order")
    graph = load_graph(dataset)
    order = vertex_order(graph, by, num_parts=num_parts, seed=seed)
    folder = Path(dataset)
    manifest = read_manifest(folder) if folder.is_dir() else None
    save_reordered(graph, order, out, overwrite=overwrite, manifest=manifest)
    if save_order is not None:
        write_npy(save_order, order)
    report_dataset(out, Terminal(quiet=shared.quiet))
