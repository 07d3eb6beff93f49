"""``sagann data import | info | check | reorder | generate``: declared here, done in sagann.cli.data_run and its like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sagann.cli.options import Shared, with_default, with_settings

app = typer.Typer(help="Import, describe, check, reorder and generate datasets.", no_args_is_help=True)
generate = typer.Typer(help="Generate a dataset at random.", no_args_is_help=True)
app.add_typer(generate, name="generate")

_GRAPH = "Graph"
_EDGE_LIST = "Edge lists (csv, parquet)"
_RESOURCES = "Memory and disk"

OutArgument = Annotated[Path, typer.Argument(help="Dataset folder to make.", metavar="OUT")]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of everything that is drawn.", min=0, max=2**63 - 1)]
NameOption = Annotated[
    str | None,
    typer.Option(
        "--name",
        help=with_default("What to call the graph.", "the source's name; of an edge list, OUT's"),
        rich_help_panel=_GRAPH,
    ),
]
SymmetriseOption = Annotated[
    bool,
    typer.Option(
        "--symmetrise",
        metavar="",
        help="Add the reverse of every edge; merges multi-edges.",
        rich_help_panel=_GRAPH,
    ),
]
CoalesceOption = Annotated[
    bool,
    typer.Option(
        "--coalesce",
        metavar="",
        help="Merge multi-edges: weights add up, types tell edges apart.",
        rich_help_panel=_GRAPH,
    ),
]
LoopsOption = Annotated[
    bool, typer.Option("--drop-self-loops", metavar="", help="Leave out edges v -> v.", rich_help_panel=_GRAPH)
]
MemoryOption = Annotated[
    str,
    typer.Option(
        "--memory",
        help="Working memory, beside that of the libraries.",
        metavar="SIZE",
        rich_help_panel=_RESOURCES,
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", metavar="", help="Replace a dataset in OUT.", rich_help_panel=_RESOURCES)
]


@app.command("import")
@with_settings(())
def import_(
    context: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(
            help="An edge list (CSV or Parquet file, or a folder of them), an .npz file, an OGB folder, "
            "or a GraphBolt folder.",
            metavar="SOURCE",
        ),
    ],
    out: OutArgument,
    format_: Annotated[
        str,
        typer.Option("--format", help="What SOURCE is.", metavar="auto|csv|parquet|npz|ogb|graphbolt"),
    ] = "auto",
    src: Annotated[
        str,
        typer.Option(
            help="Column of the source ids: a name, or a position from 0.",
            metavar="COLUMN",
            rich_help_panel=_EDGE_LIST,
        ),
    ] = "0",
    dst: Annotated[
        str, typer.Option(help="Column of the destination ids.", metavar="COLUMN", rich_help_panel=_EDGE_LIST)
    ] = "1",
    weight: Annotated[
        str | None, typer.Option(help="Column of edge weights.", metavar="COLUMN", rich_help_panel=_EDGE_LIST)
    ] = None,
    edge_type: Annotated[
        str | None, typer.Option(help="Column of edge types.", metavar="COLUMN", rich_help_panel=_EDGE_LIST)
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            help=with_default(
                "Character between the fields of CSV files, of features and labels too; 'tab' for a tabulator.",
                "a comma; a tab for .tsv",
            ),
            rich_help_panel=_EDGE_LIST,
        ),
    ] = None,
    header: Annotated[
        bool | None,
        typer.Option(
            "--header/--no-header",
            metavar="",
            help=with_default("Whether CSV files begin with a line of names.", "looked up"),
            rich_help_panel=_EDGE_LIST,
        ),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Vertex features, a row per vertex: .npy, CSV or Parquet.",
            metavar="FILE",
            rich_help_panel=_EDGE_LIST,
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Vertex labels, a row per vertex: .npy, CSV or Parquet.",
            metavar="FILE",
            rich_help_panel=_EDGE_LIST,
        ),
    ] = None,
    split_scheme: Annotated[
        str | None,
        typer.Option(
            help=with_default("Which of several splits to take.", "the only one"),
            metavar="NAME",
            rich_help_panel="OGB folders",
        ),
    ] = None,
    symmetrise: SymmetriseOption = False,
    coalesce: CoalesceOption = False,
    drop_self_loops: LoopsOption = False,
    num_vertices: Annotated[
        int | None,
        typer.Option(
            help=with_default("Number of vertices.", "what the source says"),
            rich_help_panel=_GRAPH,
        ),
    ] = None,
    num_classes: Annotated[
        int | None,
        typer.Option(
            help=with_default("Number of classes.", "what the source says"),
            rich_help_panel=_GRAPH,
        ),
    ] = None,
    name: NameOption = None,
    memory: MemoryOption = "256MiB",
    overwrite: OverwriteOption = False,
) -> None:
    """Import a graph into a dataset folder, in bounded memory; a kill leaves no half dataset.

    Example: sagann data import edges.csv roads --weight km --symmetrise
    """
    # Imported here: it loads torch, for which --help must not wait.
    from sagann.cli.import_run import SourceChoice, import_run, options_of

    options = options_of(
        symmetrise=symmetrise,
        coalesce=coalesce,
        drop_self_loops=drop_self_loops,
        num_vertices=num_vertices,
        num_classes=num_classes,
        name=name,
        memory=memory,
        overwrite=overwrite,
    )
    choice = SourceChoice(
        src=src,
        dst=dst,
        weight=weight,
        edge_type=edge_type,
        separator=separator,
        header=header,
        features=features,
        labels=labels,
        split=split_scheme,
    )
    import_run(source, out, kind=format_, choice=choice, options=options, shared=context.ensure_object(Shared))


DatasetArgument = Annotated[
    str,
    typer.Argument(
        help="A dataset folder, an .npz file, or the name of an embedded graph (demo).", metavar="PATH|NAME"
    ),
]


@app.command("info")
@with_settings(())
def info(context: typer.Context, dataset: DatasetArgument) -> None:
    """Describe a dataset: vertices, edges, degrees, features, classes, splits, sizes.

    Example: sagann data info demo
    """
    from sagann.cli.data_run import info_run

    info_run(dataset, shared=context.ensure_object(Shared))


@app.command("check")
@with_settings(())
def check(context: typer.Context, dataset: DatasetArgument) -> None:
    """Read a whole dataset: compare checksums, check every value. Exit code 2 if anything is wrong.

    Example: sagann data check roads
    """
    from sagann.cli.data_run import check_run

    check_run(dataset, shared=context.ensure_object(Shared))


@app.command("reorder")
@with_settings(())
def reorder(
    context: typer.Context,
    dataset: DatasetArgument,
    out: OutArgument,
    by: Annotated[
        str,
        typer.Option(
            "--by",
            help="What the order is: neighbours close together, highest in-degree first, or none.",
            metavar="metis|degree|random",
        ),
    ] = "metis",
    parts: Annotated[
        int, typer.Option(help="Parts of METIS: at least as many as intervals will be cut.", min=1)
    ] = 128,
    seed: SeedOption = 0,
    save_order: Annotated[
        Path | None,
        typer.Option(help="File (.npy) for the order: row i of OUT is row order[i] of the source.", metavar="FILE"),
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", metavar="", help="Replace a dataset in OUT, and the file of --save-order."),
    ] = False,
) -> None:
    """Renumber the vertices of a dataset, so that a streamed epoch finds those that it needs together.

    Example: sagann data reorder roads roads-near --by degree
    """
    from sagann.cli.reorder_run import reorder_run

    reorder_run(
        dataset,
        out,
        by=by,
        num_parts=parts,
        seed=seed,
        save_order=save_order,
        overwrite=overwrite,
        shared=context.ensure_object(Shared),
    )


@generate.command("rmat")
@with_settings(())
def rmat(
    context: typer.Context,
    out: OutArgument,
    vertices: Annotated[int, typer.Option(help="Number of vertices.", min=0)],
    edges: Annotated[int, typer.Option(help="Number of edges drawn.", min=0)],
    features: Annotated[int, typer.Option(help="Random features per vertex.", min=0)] = 0,
    classes: Annotated[int, typer.Option(help="Classes of random labels, split 60/20/20.", min=0)] = 0,
    seed: SeedOption = 0,
    a: Annotated[float, typer.Option(help="Probability of low source, low destination.")] = 0.57,
    b: Annotated[float, typer.Option(help="Probability of low source, high destination.")] = 0.19,
    c: Annotated[float, typer.Option(help="Probability of high source, low destination.")] = 0.19,
    symmetrise: SymmetriseOption = False,
    coalesce: CoalesceOption = False,
    drop_self_loops: LoopsOption = False,
    name: NameOption = None,
    memory: MemoryOption = "256MiB",
    overwrite: OverwriteOption = False,
) -> None:
    """Generate a power-law graph (R-MAT) of any size, in bounded memory. Labels and features mean nothing.

    Example: sagann data generate rmat big --vertices 1000000 --edges 16000000
    """
    from sagann.cli.generate_run import rmat_run
    from sagann.cli.import_run import options_of

    options = options_of(
        symmetrise=symmetrise,
        coalesce=coalesce,
        drop_self_loops=drop_self_loops,
        num_vertices=None,
        num_classes=None,
        name=name,
        memory=memory,
        overwrite=overwrite,
    )
    rmat_run(
        out,
        num_vertices=vertices,
        num_edges=edges,
        num_features=features,
        num_classes=classes,
        shares=(a, b, c),
        seed=seed,
        options=options,
        shared=context.ensure_object(Shared),
    )


@generate.command("sbm")
@with_settings(())
def sbm(
    context: typer.Context,
    out: OutArgument,
    vertices: Annotated[int, typer.Option(help="Number of vertices.", min=1)] = 20_000,
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 3,
    degree: Annotated[float, typer.Option(help="Directed edges per vertex.")] = 4.5,
    homophily: Annotated[float, typer.Option(help="Share of the edges that join vertices of one class.")] = 0.67,
    degree_exponent: Annotated[float, typer.Option(help="Exponent of the degrees' power law.")] = 2.5,
    features: Annotated[int, typer.Option(help="Features per vertex.", min=0)] = 500,
    noise: Annotated[float, typer.Option(help="Standard deviation of the noise in every feature.")] = 0.37,
    split: Annotated[
        str, typer.Option(help="How to split, as for 'sagann train'.", metavar="SPLIT")
    ] = "random:0.6,0.2",
    seed: SeedOption = 0,
    name: NameOption = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Generate a block-model graph with classes that a graph network can learn.

    Example: sagann data generate sbm blocks --vertices 5000 --classes 4
    """
    from sagann.cli.generate_run import BlockModel, sbm_run

    model = BlockModel(
        num_vertices=vertices,
        num_classes=classes,
        average_degree=degree,
        homophily=homophily,
        degree_exponent=degree_exponent,
        num_features=features,
        feature_noise=noise,
    )
    sbm_run(
        out,
        model=model,
        split=split,
        seed=seed,
        name=name,
        overwrite=overwrite,
        shared=context.ensure_object(Shared),
    )
