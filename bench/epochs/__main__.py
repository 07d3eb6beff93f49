"""Full-graph training epochs against PyG and DGL: ``python -m bench.epochs --dgl /path/to/dgl/bin/python``.

Prints a report in Markdown, and writes every measurement to a file from which an interrupted run continues. An epoch is forward,
cross-entropy on the training vertices, backward, and a step of Adam, of 2 layers without dropout. With ``--defaults`` it is what
``sagann train`` does: dropout 0.5, weight decay, and an evaluation of the training and validation vertices; sparse features stay
sparse in sagann and in the floor, PyG's layers take them dense, and sparse where they can, DGL's dense.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.contest import Contestant, Results, Rules, run_contest
from bench.epochs.graphs import (
    DATASETS,
    REAL,
    SHAPES,
    USUAL,
    has_sparse_features,
    specification_of,
    write_task,
)
from bench.epochs.report import DENSE_MODELS, EDGE_MODELS, render, rows_of
from bench.pages import parser_of
from bench.workers import RESULTS, ROOT, commit
from sagann.runtime.processor import processor_name

MODELS = (*DENSE_MODELS, *EDGE_MODELS)
PYG_VARIANTS = ("edge_index", "EdgeIndex", "EdgeIndex32", "csr", "csr32", "SparseTensor")
GROUPS = {
    "sagann": ("sagann", "sagann:lean"),
    "pyg": tuple(f"pyg:{variant}" for variant in PYG_VARIANTS),
    "pyg-sparse": ("pyg:edge_index+sparse", "pyg:csr+sparse"),
    "dgl": ("dgl", "dgl:weights"),
    "floor": ("floor",),
}
"What may be asked for together; every single contestant may be asked for too."
ONLY_FOR = {"dgl:weights": ("gcn",), "pyg:EdgeIndex32": ("commnet",)}
USUAL_MODELS = ("gcn", "sage", "gin", "gat")


def main() -> int:
    """Measure what is not yet measured, and report."""
    arguments = _arguments()
    contestants = contestants_of(arguments.contestants, arguments.dgl)
    rules = Rules(
        rounds=arguments.rounds,
        epochs=arguments.epochs,
        timeout_s=arguments.timeout,
    )
    settings = {
        **asdict(rules),
        "threads": arguments.threads,
        "hidden": arguments.hidden,
        "defaults": arguments.defaults,
    }
    results = Results(arguments.results, settings, commit(), processor_name())
    for dataset in arguments.datasets:
        with TemporaryDirectory(prefix="sagann_epochs_", dir=arguments.work) as folder:
            stored = write_task(Path(folder), dataset, arguments.models, arguments.hidden)
            told = _told(arguments, folder) | {"sparse": arguments.defaults and has_sparse_features(stored)}
            for model in arguments.models:
                run_contest(
                    [who for who in contestants if model in ONLY_FOR.get(who.name, (model,))],
                    lambda who, model=model, told=told: specification_of(model, variant=who.variant, **told),
                    dataset=dataset,
                    task=model,
                    rules=rules,
                    results=results,
                )
    print(render(rows_of(results.records.values())))
    return 0


def contestants_of(names: Sequence[str], dgl: str | None) -> list[Contestant]:
    """The contestants that names or groups of names stand for.

    Args:
        names: groups or single contestants.
        dgl: the Python of DGL's environment; without it DGL is left out.
    """
    ours = (sys.executable, "-m")
    commands = {
        "sagann": (*ours, "bench.epochs.sagann_worker"),
        "pyg": (*ours, "bench.epochs.pyg_worker"),
        "floor": (*ours, "bench.epochs.floor_worker"),
    }
    if dgl is not None:
        commands["dgl"] = (dgl, str(ROOT / "bench" / "standalone" / "dgl_epochs.py"))
    single = dict.fromkeys(name for group in names for name in GROUPS.get(group, (group,)))
    unknown = [name for name in single if name.partition(":")[0] not in ("sagann", "pyg", "dgl", "floor")]
    if unknown:
        raise SystemExit(
            f"Unknown contestants: {', '.join(unknown)}. Choose of {', '.join(GROUPS)}, or one of a group."
        )
    return [
        Contestant(name=name, command=commands[name.partition(":")[0]])
        for name in single
        if name.partition(":")[0] in commands
    ]


def _told(arguments: argparse.Namespace, folder: str) -> dict[str, Any]:
    """What every worker is told."""
    names = ("hidden", "defaults", "threads")
    dropout = 0.5 if arguments.defaults else 0.0
    return {**{name: getattr(arguments, name) for name in names}, "dropout": dropout, "folder": folder}


def _arguments() -> argparse.Namespace:
    of_defaults = "--defaults" in sys.argv
    parser = parser_of(__doc__, rounds=7, threads=torch.get_num_threads(), work=None, hidden=128)
    parser.add_argument(
        "--datasets",
        nargs="+",
        choices=[*REAL, *SHAPES],
        default=list(USUAL if of_defaults else DATASETS),
        metavar="NAME",
    )
    parser.add_argument("--epochs", type=int, default=3, help="fewest runs in a turn")
    parser.add_argument(
        "--dgl", metavar="PYTHON", help="Python of an environment with DGL; without it DGL is left out"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS / ("defaults.jsonl" if of_defaults else "epochs.jsonl")
    )
    models = USUAL_MODELS if of_defaults else MODELS
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(models))
    parser.add_argument(
        "--defaults",
        action="store_true",
        help=f"epochs of `sagann train` as it is, by default of {', '.join(USUAL_MODELS)} on {', '.join(USUAL)}",
    )
    parser.add_argument(
        "--contestants",
        nargs="+",
        default=["sagann", "pyg", *(["pyg-sparse"] if of_defaults else []), "dgl", "floor"],
        help=f"groups ({', '.join(GROUPS)}) or single ones (pyg:csr, sagann:lean)",
    )
    parser.add_argument("--timeout", type=float, default=1800.0, help="longest wait for a turn, in seconds")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
