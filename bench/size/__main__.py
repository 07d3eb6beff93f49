"""A graph larger than memory, inside a hard limit: ``python -m bench.size``. Prints a Markdown table.

The shape of ROC's and NeuGraph's Amazon graph, generated as a power-law graph in bounded memory. sagann trains a 2-layer GCN
on it within a budget; PyG and DGL try the same. Each runs in a control group of its own, whose limit the kernel enforces.
With ``--workers`` several workers train instead, each of them a part of the graph, without peers.

References:
    Jia et al., ROC, MLSys 2020, Table 4: Amazon.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import NamedTuple

from bench.epochs.graphs import SEED, specification_of, write_weights
from bench.pages import command_line, figure, head, mebibytes, parser_of, row
from bench.size.limit import Ended, generate, print_errors, run_limited
from bench.workers import ROOT, places_of
from sagann.byte_size import parse_bytes
from sagann.nn import ModelConfig
from sagann.runtime.processor import processor_name

VERTICES, EDGES, FEATURES, CLASSES = 9_430_088, 231_594_310, 300, 24
"ROC, Table 4."
PEERS = {
    "pyg:edge_index": ("-m", "bench.size.pyg_worker"),
    "pyg:csr": ("-m", "bench.size.pyg_worker"),
    "dgl": (str(ROOT / "bench" / "standalone" / "dgl_large.py"),),
}
UNLIMITED = 1 << 50
"Bytes of a limit that is never reached, to measure memory without one."
LOSSES = "loss before the first and the last step"
HEADER = head(
    f"who | outcome | came to | epoch s | whole run s | held MiB | limit hit | {LOSSES}",
    words=("outcome", "came to", LOSSES),
)
NOTES = """\
*Killed* is by the kernel's own count of the group's kills. *Held* is the most memory of the processes' own, sampled twice
a second; the rest of a group is the cache of files, which makes way when the limit is *hit*. Epoch seconds are the median;
the whole run is with imports, checks, preparation, and sagann's evaluation of all splits."""
_SHOWN = ("P = ", "Memory:", "Epoch:", "On disk:", "Estimated:", "Of that,")


class Result(NamedTuple):
    name: str
    ended: Ended
    epochs: Sequence[Mapping[str, float]]
    "Loss and seconds of each epoch that ended."
    loaded: bool

    def __str__(self) -> str:
        ended, losses = self.ended, [epoch["loss"] for epoch in self.epochs]
        got_to = f"{len(losses)} epochs" if losses else "the first epoch" if self.loaded else "loading"
        epoch_s = median(epoch["epoch_s"] for epoch in self.epochs) if losses else None
        cells = [self.name, ended.outcome, got_to, figure(epoch_s, ".1f"), f"{ended.seconds:.0f}"]
        ends = f"{losses[0]:.4f}, {losses[-1]:.4f}" if losses else "-"
        return row([*cells, mebibytes(ended.own_bytes), ended.hits, ends])


def main(given: Sequence[str] | None = None) -> int:
    """Generate, run everybody, report; 0 where sagann alone lives."""
    asked = _arguments(given)
    print(f"`{command_line('bench.size', given)}`; {asked.threads} threads, {processor_name()}.\n")
    prepare(asked)
    if asked.workers == 1:
        print("\n".join(plan_lines(asked)), end="\n\n", flush=True)
    print(HEADER, flush=True)
    ours = run_sagann(asked)
    print("\n".join(map(str, ours)), flush=True)
    others: list[Result] = []
    for name in PEERS if asked.workers == 1 else ():
        if name != "dgl" or asked.dgl:
            others.append(run_peer(asked, name))
            print(others[-1], flush=True)
    losses = [epoch["loss"] for epoch in ours[0].epochs]
    trains = all(each.ended.outcome == "ok" for each in ours) and len(losses) > 1 and losses[-1] < losses[0]
    verdict = f"sagann {'trains, and its loss falls' if trains else 'does not train'}"
    if others:
        killed = ", ".join(other.name for other in others if other.ended.outcome == "killed")
        verdict += f"; killed: {killed or 'nobody'} of {', '.join(other.name for other in others)}"
    print(f"\n{verdict}.\n\n{NOTES}")
    print_errors((each.name, each.ended) for each in (*ours, *others))
    return 0 if trains else 1


def prepare(asked: argparse.Namespace) -> None:
    """Generate the graph at its scale where it is not there yet, and write the weights that ``sagann train`` draws, for the others."""
    vertices, edges = max(2, round(VERTICES * asked.scale)), round(EDGES * asked.scale)
    asked.dataset, asked.made = asked.work / f"graph-{vertices}", asked.work / f"at-{vertices}"
    counts = {"vertices": vertices, "edges": edges, "features": FEATURES, "classes": CLASSES}
    generate(asked.dataset, counts, "--drop-self-loops")
    asked.made.mkdir(parents=True, exist_ok=True)
    write_weights(asked.made, [ModelConfig(model="gcn", hidden=asked.hidden, dropout=0.0)], FEATURES, CLASSES)


def run_sagann(asked: argparse.Namespace) -> list[Result]:
    """Run ``sagann train`` within its budget, in one process or several workers; a result for each."""
    run = asked.made / "run"
    # The losses of a run before are not this one's.
    shutil.rmtree(run, ignore_errors=True)
    options = {"--epochs": asked.epochs, "--lr": asked.lr, "--seed": SEED, "--weight-decay": 0, "--out": run}
    options |= {"--eval-every": asked.epochs, "--spill": asked.made / "spill"}
    words = ["train", *_shared(asked), *(str(word) for option in options.items() for word in option), "--overwrite"]
    ended = _run(asked, [sys.executable, "-m", "sagann", *words], *places_of(asked.workers))
    history = run / "metrics.jsonl"
    epochs = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
    names = ["sagann"] if asked.workers == 1 else [f"worker {rank}" for rank in range(asked.workers)]
    return [
        Result(name=name, ended=each, epochs=epochs, loaded=bool(epochs))
        for name, each in zip(names, ended, strict=True)
    ]


def plan_lines(asked: argparse.Namespace) -> list[str]:
    """The forecast of ``sagann plan`` for the same epoch, in bytes and seconds, with a machine's rates or this one's."""
    rates = [] if asked.machine is None else ["--machine", str(asked.machine)]
    (plan,) = _run(
        asked, [sys.executable, "-m", "sagann", "plan", *_shared(asked), "--spill", str(asked.made), *rates]
    )
    lines = [line for line in plan.output.splitlines() if line.startswith(_SHOWN)]
    held = f"held {mebibytes(plan.own_bytes)} MiB"
    return [f"`sagann plan`, in the same limit: {plan.outcome}, {plan.seconds:.0f} s, {held}.", *lines]


def run_peer(asked: argparse.Namespace, name: str) -> Result:
    """PyG in one of its forms, or DGL by its own Python."""
    files = {"dataset": str(asked.dataset.absolute()), "weights": str(asked.made.absolute())}
    told = specification_of("gcn", variant=name.partition(":")[2], classes=CLASSES, **files)
    told |= {option: getattr(asked, option) for option in ("hidden", "epochs", "lr", "threads")}
    python = asked.dgl if name == "dgl" else sys.executable
    (ended,) = _run(asked, [python, *PEERS[name], json.dumps(told)])
    said = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    return Result(name=name, ended=ended, epochs=[each for each in said if "loss" in each], loaded=bool(said))


def _shared(asked: argparse.Namespace) -> list[str]:
    """Options of ``sagann train`` and ``sagann plan``."""
    model = ["--model", "gcn", "--layers", "2", "--hidden", str(asked.hidden), "--dropout", "0"]
    return ["--data", str(asked.dataset), *model, "--memory", asked.memory]


def _run(asked: argparse.Namespace, command: list[str], *places: Mapping[str, str]) -> list[Ended]:
    limit_bytes = UNLIMITED if asked.limit == "none" else parse_bytes(asked.limit, where="--limit")
    return run_limited(command, asked.dataset, limit_bytes, asked.threads, *places)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    asked = parser_of(
        __doc__,
        {"hidden": 64, "threads": 2, "epochs": 3, "machine": None, "dgl": None},
        work=(Path(gettempdir()), "folder for the graph, which stays, and what is spilled", Path),
        scale=(1.0, "part of the shape's vertices and edges"),
        limit=("6GiB", "of each control group; 'none' for no limit"),
        memory=("3GiB", "budget of each process of sagann"),
        workers=(1, "processes of sagann"),
        lr=(0.01, "of Adam"),
    ).parse_args(given)
    asked.work.mkdir(parents=True, exist_ok=True)
    return asked


if __name__ == "__main__":
    raise SystemExit(main())
