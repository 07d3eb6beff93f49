"""``sagann data generate rmat | sbm``. Their work is imported when a command runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from sagann.cli.data import IMPORTS, OutArgument, SeedOption, import_options, report_dataset
from sagann.cli.options import App, Given, Shared, command, option
from sagann.ranges import RANGES, Range

app = App(help="Generate a dataset at random.", no_args_is_help=True)

_DRAWN = RANGES["drawn"]
# The generator refuses more edges with a text of its own.
_MOST_EDGES = 2**62


_STREAMED = [each for name, each in IMPORTS.items() if name not in ("num_vertices", "num_classes")]


@app.command("rmat")
@command(*_STREAMED)
def rmat(
    shared: Shared,
    given: Given,
    out: OutArgument,
    vertices: Annotated[int, option("Number of vertices.", within=_DRAWN)],
    edges: Annotated[int, option("Number of edges drawn.", within=_DRAWN)],
    features: Annotated[int, option("Random features per vertex.", within=_DRAWN)] = 0,
    classes: Annotated[int, option("Classes of random labels, split 60/20/20.", within=_DRAWN)] = 0,
    seed: SeedOption = 0,
    a: Annotated[float, option("Probability of low source, low destination.")] = 0.57,
    b: Annotated[float, option("Probability of low source, high destination.")] = 0.19,
    c: Annotated[float, option("Probability of high source, low destination.")] = 0.19,
) -> None:
    """Generate a power-law graph (R-MAT) of any size, in bounded memory. Labels and features mean nothing.

    Example: sagann data generate rmat big --vertices 1000000 --edges 16000000
    """
    with shared.loading():
        from sagann.graph import Quadrants
        from sagann.report.progress import import_progress
        from sagann.storage import write_rmat

    with import_progress(shared.terminal()) as progress:
        write_rmat(
            out,
            vertices,
            edges,
            seed=seed,
            num_features=features,
            num_classes=classes,
            quadrants=Quadrants(a=a, b=b, c=c, d=max(0.0, 1 - a - b - c)),
            options=import_options(given, progress=progress),
        )
    report_dataset(out, shared)


@app.command("sbm")
@command(IMPORTS["name"], IMPORTS["overwrite"])
def sbm(
    shared: Shared,
    given: Given,
    out: OutArgument,
    vertices: Annotated[int, option("Number of vertices.", within=Range(1, _DRAWN.high))] = 20_000,
    classes: Annotated[int, option("Number of classes.", within=_DRAWN)] = 3,
    degree: Annotated[float, option("Directed edges per vertex.")] = 4.5,
    homophily: Annotated[float, option("Share of the edges that join vertices of one class.")] = 0.67,
    degree_exponent: Annotated[float, option("Exponent of the degrees' power law.")] = 2.5,
    features: Annotated[int, option("Features per vertex.", within=_DRAWN)] = 500,
    noise: Annotated[float, option("Standard deviation of the noise in every feature.")] = 0.37,
    split: Annotated[str, option("How to split, as for 'sagann train'.", "SPLIT")] = "random:0.6,0.2",
    seed: SeedOption = 0,
) -> None:
    """Generate a block-model graph with classes that a graph network can learn.

    Example: sagann data generate sbm blocks --vertices 5000 --classes 4
    """
    with shared.loading():
        from sagann.cli.prepare import apply_split
        from sagann.free_space import require_memory
        from sagann.graph import sbm_graph, validate_graph
        from sagann.storage import save_graph

    num_edges = vertices * degree
    if num_edges < _MOST_EDGES:
        # Features and centres of 4 bytes each; keys, ids and sort buffers of an edge; offsets of the classes.
        require_memory(
            4 * (vertices + classes) * features + 32 * int(num_edges) + 16 * classes,
            where=f"a block model of {vertices} vertices",
            hint="Ask for less, or use 'sagann data generate rmat', which needs little memory.",
        )
    graph = sbm_graph(
        vertices,
        num_classes=classes,
        average_degree=degree,
        homophily=homophily,
        degree_exponent=degree_exponent,
        num_features=features,
        feature_noise=noise,
        seed=seed,
    )
    graph = apply_split(graph, split, seed=seed)
    validate_graph(graph)
    options = import_options(given)
    save_graph(replace(graph, name=options.name or graph.name), out, overwrite=options.overwrite)
    report_dataset(out, shared)
