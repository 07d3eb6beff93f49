"""The work of ``sagann data generate``."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sagann.cli.fit_memory import refuse_beyond_memory
from sagann.cli.options import Shared
from sagann.cli.split_choice import apply_split
from sagann.errors import InputError
from sagann.graph import Quadrants, sbm_graph, validate_graph
from sagann.report.import_progress import import_progress
from sagann.report.terminal import Terminal
from sagann.storage import ImportOptions, dataset_info, save_graph, write_rmat


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockModel:
    """Parameters of :func:`sagann.graph.sbm_graph`, which checks them."""

    num_vertices: int
    "Number of vertices."
    num_classes: int
    "Number of classes."
    average_degree: float
    "Directed edges per vertex."
    homophily: float
    "Share of the edges that join vertices of one class."
    degree_exponent: float
    "Exponent of the power law of the degrees."
    num_features: int
    "Features per vertex."
    feature_noise: float
    "Standard deviation of the noise in every feature."


def rmat_run(
    out: Path,
    *,
    num_vertices: int,
    num_edges: int,
    num_features: int,
    num_classes: int,
    shares: tuple[float, float, float],
    seed: int,
    options: ImportOptions,
    shared: Shared,
) -> None:
    """Generate an R-MAT graph straight to disk."""
    _check_sizes(num_vertices=num_vertices, num_edges=num_edges, num_features=num_features, num_classes=num_classes)
    a, b, c = shares
    terminal = Terminal(quiet=shared.quiet)
    with import_progress(terminal) as progress:
        write_rmat(
            out,
            num_vertices,
            num_edges,
            seed=seed,
            num_features=num_features,
            num_classes=num_classes,
            quadrants=Quadrants(a=a, b=b, c=c, d=max(0.0, 1 - a - b - c)),
            options=replace(options, progress=progress),
        )
    report_dataset(out, terminal)


def sbm_run(
    out: Path, *, model: BlockModel, split: str, seed: int, name: str | None, overwrite: bool, shared: Shared
) -> None:
    """Generate a block-model graph in memory, and save it."""
    _check_sizes(num_vertices=model.num_vertices, num_features=model.num_features, num_classes=model.num_classes)
    terminal = Terminal(quiet=shared.quiet)
    # Features and centres of 4 bytes; keys, ids and sort buffers of an edge; offsets of the classes.
    # Not finite: the generator says so itself.
    edges = model.num_vertices * model.average_degree
    if edges < 2**62:
        refuse_beyond_memory(
            4 * (model.num_vertices + model.num_classes) * model.num_features
            + 32 * int(edges)
            + 16 * model.num_classes,
            where=f"a block model of {model.num_vertices} vertices",
            fix="Ask for less, or use 'sagann data generate rmat', which needs little memory.",
        )
    graph = apply_split(sbm_graph(**asdict(model), seed=seed), split, seed=seed)
    validate_graph(graph)
    save_graph(replace(graph, name=name or graph.name), out, overwrite=overwrite)
    report_dataset(out, terminal)


def report_dataset(out: Path, terminal: Terminal) -> None:
    """Say what stands in a dataset folder now."""
    info = dataset_info(out)
    terminal.show(f"{info['num_vertices']} vertices and {info['num_edges']} edges written to {out}")


def _check_sizes(**sizes: int) -> None:
    # Above this, positions in the arrays no longer fit 64 bits.
    largest = 2**40
    for name, size in sizes.items():
        if size > largest:
            raise InputError(
                "size of a generated graph is too large",
                value=f"{name} = {size:.3g}, at most {largest:.3g} are possible",
                where="sagann data generate",
                fix=f"Lower {name}.",
            )
