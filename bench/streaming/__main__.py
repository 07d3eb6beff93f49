"""Training epochs inside a memory budget: ``python -m bench.streaming``. Prints a Markdown table.

For every model on every graph: the engine's epoch, the streamed one with P = 1 (in the usual loop, and with the loss
folded into the last stage), and with a budget of an eighth of the dense working set, the host in memory and on disk.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import torch

from bench.contest import Rules, Turns, repetitions, take_turns
from bench.epochs.graphs import DATASETS, SHAPES, specification_of, write_task
from bench.pages import command_line, figure, head, mebibytes, parser_of, row
from bench.streaming.worker import SHARE, WAYS
from bench.timing import median_ratio
from sagann.nn import MODELS
from sagann.runtime.forecasting.probe import probe
from sagann.runtime.processor import processor_name

RULES = Rules(epochs=1)
CHECKED_EPOCHS = 3
"Losses are compared until after so many."
COLUMNS = (
    "dataset | model | epoch | s | times P = 1 folded | expected s | hidden | P | budget MiB | planned MiB | "
    "measured MiB | on host MiB | loaded MiB | stored MiB | loss differs by |  "
)
HEADER = head(COLUMNS, words=("model", "epoch", " "))
NOTES = f"""\
Seconds are the median over rounds in alternation; a ratio is the median of the rounds'. *Expected* is the forecast, made
before the first epoch from the machine's rates and steps timed on a part of the graph; *hidden* the part of copying or
computing, whichever is shorter, that ran beside the other in an epoch; within memory nothing does. The budget is 1/{SHARE} of what
the plan of P = 1 with the loss folded takes. *Planned* is the peak of blocks and temporaries; loaded and stored are an
epoch's, by plan. At P = 1 features and edges count as planned and loaded, though they are read where they lie. *Measured*
is the peak of the first {CHECKED_EPOCHS + 1} epochs above the moment before; gradients and Adam's moments are in it, and
what the C library keeps. With the host in RAM, what is *on host* (stored blocks, each once, and what is gathered once for all epochs) is in it as well. Losses are
compared with the engine's until after {CHECKED_EPOCHS} epochs. What is on disk is cached by the system as far as its memory allows."""


def main(given: Sequence[str] | None = None) -> int:
    arguments = _arguments(given)
    print(
        f"# Epochs inside a memory budget\n\n`{command_line('bench.streaming', given)}`; "
        f"{arguments.threads} threads, {processor_name()}, PyTorch {torch.__version__}.\n\n"
        "An epoch is forward, cross-entropy on the training vertices, backward, and a step of Adam: 2 layers, hidden "
        f"{arguments.hidden}, GAT 8 heads and 1 in the last layer, no dropout, no encoder (GG-NN: a linear one).\n{NOTES}\n\n{HEADER}",
        flush=True,
    )
    arguments.work.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(arguments.threads)
    # The machine's rates, as TOML.
    machine = arguments.machine.read_text() if arguments.machine else probe(arguments.work).to_toml()
    commands = dict.fromkeys(WAYS, (sys.executable, "-m", "bench.streaming.worker"))
    for dataset in arguments.datasets:
        with TemporaryDirectory(prefix="sagann_streaming_", dir=arguments.work) as folder:
            common = {name: vars(arguments)[name] for name in ("hidden", "threads")}
            common |= {"machine": machine, "folder": folder}
            write_task(Path(folder), dataset, arguments.models, arguments.hidden)
            for model in arguments.models:
                turns = take_turns(
                    commands,
                    lambda way, model=model, common=common: specification_of(model, way=way, **common),
                    first={"first": CHECKED_EPOCHS + 1},
                    request=lambda _, first: {"turn": repetitions(min(first["seconds"]), RULES)},
                    rounds=arguments.rounds,
                    timeout_s=3600.0,
                )
                print("\n".join(rows_of(dataset, model, turns)), flush=True)
    return 0


def rows_of(dataset: str, model: str, turns: Turns) -> list[str]:
    seconds = {way: [median(turn["seconds"]) for turn in each] for way, each in turns.answers.items()}
    engine, found = turns.first.get("engine"), []
    for way, name in WAYS.items():
        first: Mapping[str, Any] = turns.first.get(way, {})
        plan, hidden = first.get("planned") or {}, first.get("hidden")
        compared = "folded" in seconds and way in seconds
        cells = [
            figure(median(seconds[way]) if way in seconds else None, ".4g"),
            figure(median_ratio(seconds[way], seconds["folded"]) if compared else None),
            figure(plan.get("expected_s"), ".4g"),
            "-" if hidden is None or way == "ram" else f"{hidden:.0%}",
            figure(plan.get("P"), "d"),
            *(mebibytes(plan.get(key), ".1f") for key in ("budget", "peak")),
            mebibytes(first.get("peak_bytes"), ".1f"),
            *(mebibytes(plan.get(key), ".1f") for key in ("on host", "loaded", "stored")),
            f"{_largest_difference(first, engine):.1e}" if first and engine else "-",
        ]
        remarks = [turns.failures[way].outcome] if way in turns.failures else []
        if plan and plan["wanted"] != plan["budget"]:
            wanted = mebibytes(plan["wanted"], ".1f")
            remarks.append(f"1/{SHARE}, {wanted} MiB, cannot be met; this is the least that can")
        found.append(row([dataset, model, name, *cells, "; ".join(remarks)]))
    return found


def _largest_difference(ours: Mapping[str, Any], engine: Mapping[str, Any]) -> float:
    pairs = zip(ours["losses"], engine["losses"], strict=False)
    return max((abs(a - b) / abs(b) for a, b in pairs), default=math.nan)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    return parser_of(
        __doc__,
        {"hidden": 128, "rounds": 5, "threads": 2, "machine": None, "work": Path(gettempdir())},
        datasets=(["reddit-small", "reddit-middle"], "graphs", {*DATASETS, *SHAPES}),
        models=(["gcn", "gated-gcn", "gat", "ggnn"], "models", MODELS),
    ).parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
