"""``sagann data``: import, info, check, reorder and generate. Their work is imported when a command runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from sagann.cli.options import App, Given, Shared, command, option, options_from, switch
from sagann.errors import InputError
from sagann.import_config import EdgeListFormat, ImportOptions
from sagann.interop import FORMATS
from sagann.options import options_of
from sagann.ranges import RANGES, Range

app = App(help="Import, describe, check, reorder and generate datasets.", no_args_is_help=True)

IMPORTS = options_of(ImportOptions)
"Options of every import."
FORMS = {name: each for name, each in options_of(EdgeListFormat).items() if name != "kind"}
"Options of edge lists; --format states their kind."
_EDGE_LIST, _OTHERS = FORMS["src"].panel, "OGB folders, files of PyG"
_ROWS = "a row per vertex: .npy, CSV or Parquet."

OutArgument = Annotated[Path, typer.Argument(help="Dataset folder to create.", metavar="OUT")]
DatasetArgument = Annotated[
    str,
    typer.Argument(
        help="A dataset folder, an .npz file, or the name of an embedded graph (demo).", metavar="PATH|NAME"
    ),
]
SeedOption = Annotated[
    int, option("Seed of all random numbers of the command.", name="--seed", within=RANGES["seed"])
]


@app.command("import")
@command(*IMPORTS.values(), *FORMS.values())
def import_(
    shared: Shared,
    given: Given,
    source: Annotated[
        Path,
        typer.Argument(
            help="An edge list (CSV or Parquet file, or a folder of them), an .npz file, an OGB folder, a GraphBolt folder, "
            "or a .pt file with a graph of PyG.",
            metavar="SOURCE",
        ),
    ],
    out: OutArgument,
    format_: Annotated[str, option("What SOURCE is.", "|".join(("auto", *FORMATS)), name="--format")] = "auto",
    features: Annotated[Path | None, option(f"Vertex features, {_ROWS}", "FILE", panel=_EDGE_LIST)] = None,
    labels: Annotated[Path | None, option(f"Vertex labels, {_ROWS}", "FILE", panel=_EDGE_LIST)] = None,
    targets: Annotated[
        Path | None, option(f"Values to predict in a regression, {_ROWS}", "FILE", panel=_EDGE_LIST)
    ] = None,
    split_scheme: Annotated[
        str | None,
        option(
            "Which of several splits to take: its name in an OGB folder, its column in a file of PyG.",
            "NAME|COLUMN",
            default="the only one",
            panel=_OTHERS,
        ),
    ] = None,
    task: Annotated[
        str | None,
        option(
            "What y is in a file of PyG.",
            "classification|multi-label|regression|none",
            default="what its form tells",
            panel=_OTHERS,
        ),
    ] = None,
) -> None:
    """Import a graph into a dataset folder, in bounded memory; a kill leaves no half dataset.

    Example: sagann data import edges.csv roads --weight km --symmetrise
    """
    with shared.loading():
        from sagann.cli.import_run import import_run

    own = {"features": features, "labels": labels, "targets": targets, "split_scheme": split_scheme, "task": task}
    of_formats = {
        name: value for name, value in {**given, **own}.items() if name not in IMPORTS and value is not None
    }
    options = options_from(ImportOptions, given)
    import_run(source, out, kind=format_, given=of_formats, options=options, terminal=shared.terminal())
    report_dataset(out, shared)


@app.command("info")
@command()
def info(shared: Shared, dataset: DatasetArgument) -> None:
    """Describe a dataset: vertices, edges, degrees, features, classes, splits, sizes.

    Example: sagann data info demo
    """
    with shared.loading():
        from sagann.report.tables import dataset_table
        from sagann.storage import load_graph

    shared.terminal().show(dataset_table(load_graph(dataset), path=Path(dataset)))


@app.command("check")
@command()
def check(shared: Shared, dataset: DatasetArgument) -> None:
    """Read a whole dataset: compare checksums, check every value. Exit code 2 if anything is wrong.

    Example: sagann data check roads
    """
    with shared.loading():
        from sagann.graph import validate_graph
        from sagann.storage import check_dataset, load_graph

    if Path(dataset).is_dir():
        check_dataset(dataset)
    else:
        # An archive has no checksums: opening it reads and checks all of it.
        validate_graph(load_graph(dataset))
    shared.terminal().show(f"{dataset} is sound.")


@app.command("reorder")
@command()
def reorder(
    shared: Shared,
    dataset: DatasetArgument,
    out: OutArgument,
    by: Annotated[
        str,
        option(
            "The order: neighbours close together, highest in-degree first, what sampled mini-batches read most first, "
            "or random.",
            "metis|degree|score|random",
        ),
    ] = "metis",
    score: Annotated[
        str | None,
        option(
            "The score of --by score: out-degree, reverse PageRank, the latter from the vertices to train on, or the probability "
            "that a batch of 1024 with fanouts 25,10 reads the vertex.",
            "degree|rpr|wrpr|vip",
            default="vip",
        ),
    ] = None,
    parts: Annotated[
        int, option("Parts of METIS: at least as many as intervals will be cut.", within=RANGES["parts"])
    ] = 128,
    seed: SeedOption = 0,
    overwrite: Annotated[bool, switch("--overwrite", "Replace a dataset in OUT.")] = False,
) -> None:
    """Renumber the vertices of a dataset, so that an epoch finds those that it needs together.

    The original ids are kept: 'sagann predict' and 'sagann embed' write their rows in the original order.

    Example: sagann data reorder roads roads-near --by degree
    """
    with shared.loading():
        from sagann.partition import DEFAULT_SCORE, vertex_order
        from sagann.storage import load_graph
        from sagann.storage.manifest import read_manifest
        from sagann.storage.reorder import save_reordered
        from sagann.storage.verify import check_graph

    if score is not None and by != "score":
        raise InputError(
            f"only the order by score has a score: --score {score} with --by {by} (in sagann data reorder)",
            hint="Add --by score, or leave --score out.",
        )
    graph = load_graph(dataset)
    # Orders rely on valid ids.
    check_graph(graph)
    order = vertex_order(graph, by, num_parts=parts, seed=seed, score=score or DEFAULT_SCORE)
    manifest = read_manifest(Path(dataset)) if Path(dataset).is_dir() else None
    save_reordered(graph, order, out, overwrite=overwrite, manifest=manifest)
    report_dataset(out, shared)


generate = App(help="Generate a random dataset.", no_args_is_help=True)
app.add_typer(generate, name="generate")

_DRAWN = RANGES["drawn"]
_STREAMED = [each for name, each in IMPORTS.items() if name not in ("num_vertices", "num_classes")]


@generate.command("rmat")
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
) -> None:
    """Generate a power-law graph (R-MAT) of any size, in bounded memory. Labels and features mean nothing.

    Example: sagann data generate rmat big --vertices 1000000 --edges 16000000
    """
    with shared.loading():
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
            options=options_from(ImportOptions, given, progress=progress),
        )
    report_dataset(out, shared)


@generate.command("sbm")
@command(IMPORTS["name"], IMPORTS["overwrite"])
def sbm(
    shared: Shared,
    given: Given,
    out: OutArgument,
    vertices: Annotated[int, option("Number of vertices.", within=Range(1, _DRAWN.high))] = 20_000,
    classes: Annotated[int, option("Number of classes.", within=_DRAWN)] = 3,
    degree: Annotated[float, option("Directed edges per vertex.")] = 4.5,
    features: Annotated[int, option("Features per vertex.", within=_DRAWN)] = 500,
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
    # The generator refuses more edges with a text of its own.
    if num_edges < 2**62:
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
        num_features=features,
        seed=seed,
    )
    graph = apply_split(graph, split, seed=seed)
    validate_graph(graph)
    options = options_from(ImportOptions, given)
    save_graph(replace(graph, name=options.name or graph.name), out, overwrite=options.overwrite)
    report_dataset(out, shared)


def report_dataset(out: Path, shared: Shared) -> None:
    """Say the size of the dataset that was written to ``out``."""
    from sagann.storage import open_graph

    graph = open_graph(out)
    shared.terminal().show(f"{graph.num_vertices} vertices and {graph.num_edges} edges written to {out}")
