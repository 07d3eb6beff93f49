"""Mini-batches by two workers, each with a part of the graph: ``python -m bench.minibatches.together``. Prints a page.

One process with two threads and two workers with one thread each take turns on this machine. Then the workers run on two hosts, network
namespaces that a link of a limited rate joins, without and with a hot tier; bytes are those that the hosts' interfaces count. Needs root, ``ip`` and ``tc``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import sagann
from bench.epochs.graphs import graph_of, power_law
from bench.pages import command_line, head, parser_of, ranged, row
from bench.timing import median_ratio
from bench.workers import THREAD_VARIABLES, places_of
from sagann.runtime.processor import processor_name
from tests.hosts import Host, hosts

NUM_CLASSES, SIZE = 40, 2
RATE = "1gbit"
"Of the link between the hosts, as tc takes it."


def main(given: Sequence[str] | None = None) -> int:
    options = parsed(given)
    print(
        f"# Mini-batches by two workers\n\n`{command_line('bench.minibatches.together', given)}`; {processor_name()}.\n"
    )
    with TemporaryDirectory(prefix="sagann_together_", dir=options.work) as name:
        folder = Path(name)
        sizes = int(options.vertices), int(options.edges), options.features
        stored = power_law(*sizes, NUM_CLASSES, train=int(options.seeds))
        sagann.save_graph(graph_of(stored), folder / "graph")
        print(
            f"R-MAT, {sizes[0]:,} vertices, {sizes[1]:,} edges, {sizes[2]} features; {int(options.seeds):,} seeds in batches of "
            f"{options.batch_size}; sage, hidden {options.hidden}, fanouts 25, 10. Epochs after the first one; runs take turns.\n"
        )
        print("\n".join(of_one_machine(folder, options)), end="\n\n", flush=True)
        with hosts(folder / "hosts") as pair:
            print("\n".join(of_a_link(folder, options, pair)), flush=True)
    return 0


def of_one_machine(folder: Path, options: argparse.Namespace) -> list[str]:
    """Seconds of epochs, by one process and by two."""
    alone, together = list[float](), list[float]()
    for _ in range(options.rounds):
        for seconds, size in ((alone, 1), (together, SIZE)):
            seconds.append(median(train(folder, options, size, options.epochs)))
    ratio = median_ratio(together, alone)
    return [
        head("who | s / epoch | it / one process"),
        row(["one process, 2 threads", ranged(alone, ".3f"), "1.00"]),
        row(["2 workers, 1 thread each", ranged(together, ".3f"), f"{ratio:.2f}"]),
    ]


def of_a_link(folder: Path, options: argparse.Namespace, pair: Sequence[Host]) -> list[str]:
    """Seconds and bytes of epochs by two hosts, without and with a hot tier."""
    for host in pair:
        limit = ("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", RATE)
        subprocess.run([*host.inside(), *limit, "burst", "512kb", "latency", "50ms"], check=True)
    lines, least = [head("rows of others in memory | s / epoch | MB / epoch on the link | of no tier")], 0.0
    for hot in ("none", "10%"):
        given = () if hot == "none" else ("--hot", hot)
        found = []
        # What comes before and after the epochs is the same in both.
        for epochs in (2, 2 + options.epochs):
            before = sum(map(sent_bytes, pair))
            seconds = train(folder, options, SIZE, epochs, *given, pair=pair)
            found.append(sum(map(sent_bytes, pair)) - before)
        epoch_bytes = (found[1] - found[0]) / options.epochs
        least = least or epoch_bytes
        cells = [hot, f"{median(seconds):.3f}", f"{epoch_bytes / 1e6:.1f}", f"{epoch_bytes / least:.0%}"]
        lines.append(row(cells))
    return [f"Two hosts, a link of {RATE}:", "", *lines]


def sent_bytes(host: Host) -> int:
    """Bytes that a host has sent through its interface."""
    read = [*host.inside(), "cat", "/proc/net/dev"]
    text = subprocess.run(read, check=True, capture_output=True, text=True).stdout
    (line,) = (line for line in text.splitlines() if line.strip().startswith("eth0:"))
    return int(line.split()[9])


def train(
    folder: Path, options: argparse.Namespace, size: int, epochs: int, *given: str, pair: Sequence[Host] = ()
) -> list[float]:
    """Train a run by so many processes, of two threads in all; seconds of its epochs, without the first one."""
    words = ["train", "--model", "sage", "--sample", "25,10", "--device", "cpu", "--overwrite"]
    named = {"data": folder / "graph", "out": folder / "run", "epochs": epochs, "eval-every": epochs}
    named |= {"hidden": options.hidden, "batch-size": options.batch_size}
    words += [*(f"--{name}={value}" for name, value in named.items()), *given]
    places = places_of(size, pair[0].name) if pair else places_of(size)
    processes = []
    for rank, place in enumerate(places):
        environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(SIZE // size)) | place
        command = [*(pair[rank].inside() if pair else ()), sys.executable, "-m", "sagann", *words]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
    codes = [process.wait(1800) for process in processes]
    if any(codes):
        raise RuntimeError("a process failed")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["epoch_s"] for line in lines[1:]]


def parsed(given: Sequence[str] | None) -> argparse.Namespace:
    return parser_of(
        __doc__,
        {"vertices": 1e6, "edges": 2e7, "features": 100, "hidden": 256, "batch_size": 1024}
        | {"rounds": 3, "epochs": 4, "work": None},
        seeds=(16_384.0, "training vertices"),
    ).parse_args(given)


if __name__ == "__main__":
    raise SystemExit(main())
