"""Full-graph training epochs against PyG and DGL: ``python -m bench.epochs --dgl /path/to/dgl/bin/python``.

Prints a report in Markdown, and writes every measurement to a file from which an interrupted run continues. An epoch is forward,
cross-entropy on the training vertices, backward, and a step of Adam, of 2 layers without dropout. With ``--defaults`` it is what
``sagann train`` does: dropout 0.5, weight decay, and an evaluation of the training and validation vertices; sparse features stay
sparse in sagann and in the floor, PyG's layers take them dense, and sparse where they can, DGL's dense.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.contest import Results, Rules, run_contest, variant_of
from bench.epochs.graphs import DATASETS, REAL, SHAPES, USUAL, has_sparse_features, specification_of, write_task
from bench.epochs.report import MODELS, render, rows_of
from bench.pages import parser_of
from bench.workers import RESULTS, ROOT, commit
from sagann.runtime.processor import processor_name

PYG_VARIANTS = ("edge_index", "EdgeIndex", "EdgeIndex32", "csr", "csr32", "SparseTensor")
PYG_SPARSE_VARIANTS = ("edge_index+sparse", "csr+sparse")
ONLY_FOR = {"dgl:weights": ("gcn",), "pyg:EdgeIndex32": ("commnet",)}
USUAL_MODELS = ("gcn", "sage", "gin", "gat")


def main() -> int:
    arguments = _arguments()
    commands = commands_of(arguments.dgl, sparse=arguments.defaults)
    rules = Rules(rounds=arguments.rounds, epochs=arguments.epochs)
    told = {name: getattr(arguments, name) for name in ("threads", "hidden", "defaults")}
    settings = rules._asdict() | told
    results = Results(arguments.results, settings, commit(), processor_name())
    for dataset in arguments.datasets:
        with TemporaryDirectory(prefix="sagann_epochs_", dir=arguments.work) as folder:
            stored = write_task(Path(folder), dataset, arguments.models, arguments.hidden)
            told |= {"folder": folder, "dropout": 0.5 if arguments.defaults else 0.0}
            told["sparse"] = arguments.defaults and has_sparse_features(stored)
            for model in arguments.models:
                run_contest(
                    {who: each for who, each in commands.items() if model in ONLY_FOR.get(who, (model,))},
                    lambda who, model=model, told=dict(told): specification_of(
                        model, variant=variant_of(who), **told
                    ),
                    dataset=dataset,
                    task=model,
                    rules=rules,
                    results=results,
                )
    print(render(rows_of(results.records.values())))
    return 0


def commands_of(dgl: str | None, *, sparse: bool) -> dict[str, tuple[str, ...]]:
    """How to start each contestant; without DGL's Python, DGL is left out."""
    variants = {
        "sagann": ("sagann", "sagann:lean"),
        "pyg": [f"pyg:{each}" for each in (*PYG_VARIANTS, *(PYG_SPARSE_VARIANTS if sparse else ()))],
        "floor": ("floor",),
    }
    found = {
        who: (sys.executable, "-m", f"bench.epochs.{name}_worker")
        for name, each in variants.items()
        for who in each
    }
    script = str(ROOT / "bench" / "standalone" / "dgl_epochs.py")
    return found if dgl is None else found | dict.fromkeys(("dgl", "dgl:weights"), (dgl, script))


def _arguments() -> argparse.Namespace:
    of_defaults = "--defaults" in sys.argv
    usual = f"epochs of `sagann train` as it is, by default of {', '.join(USUAL_MODELS)} on {', '.join(USUAL)}"
    return parser_of(
        __doc__,
        {"rounds": 7, "threads": torch.get_num_threads(), "work": None, "hidden": 128, "dgl": None},
        datasets=(list(USUAL if of_defaults else DATASETS), "graphs", {*REAL, *SHAPES}),
        epochs=(3, "fewest runs in a turn"),
        results=(RESULTS / ("defaults.jsonl" if of_defaults else "epochs.jsonl"), "file of records", Path),
        models=(list(USUAL_MODELS if of_defaults else MODELS), "models", MODELS),
        defaults=(False, usual),
    ).parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
