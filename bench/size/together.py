"""A graph larger than one worker's memory, in several workers: ``python -m bench.size.together``. Prints a page of Markdown.

The shape of ROC's Amazon graph, as in :mod:`bench.size`. Each worker trains a 2-layer GCN on its part, streamed within a budget, and
runs in a control group of its own, whose limit the kernel enforces. ``--check`` first trains a hundredth of the graph by one process
and by the workers, without a limit, and compares the losses.

References:
    Jia et al., ROC, MLSys 2020, Table 4: Amazon.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median

from bench.size.__main__ import CHECKED_SCALE, parser_of, task_of
from bench.size.contest import UNLIMITED, Result, Task, result_of, run_sagann, train_command
from bench.size.limit import Ended, Limit, drop_cached
from bench.size.report import checked
from bench.workers import ROOT, THREAD_VARIABLES, free_port
from sagann.byte_size import format_bytes, parse_bytes
from sagann.runtime.processor import processor_name

HEADER = "| worker | outcome | held MiB | limit hit | whole run s |\n|--:|---|--:|--:|--:|"
NOTES = """\
*Held* is the most memory of the worker's own, looked at twice a second; the rest of its group is the cache of files, which makes
way when the limit is *hit*. The whole run is with imports, checks, preparation, and the evaluation of all splits."""


@dataclass(frozen=True, kw_only=True)
class Together:
    """How a run of several workers ended."""

    workers: tuple[Ended, ...]
    "How each worker's process ended, in the order of the ranks."
    result: Result
    "Losses and seconds of epochs that the first worker has written."

    @property
    def lives(self) -> bool:
        """Whether every worker came to the end, and the loss fell."""
        losses = self.result.losses
        return all(each.outcome == "ok" for each in self.workers) and len(losses) > 1 and losses[-1] < losses[0]


def main(given: Sequence[str] | None = None) -> int:
    """Generate, train, report; 0 where all workers live and the loss falls."""
    arguments = _arguments(given)
    limit_bytes = UNLIMITED if arguments.limit == "none" else parse_bytes(arguments.limit, where="--limit")
    words = ["bench.size.together", *(sys.argv[1:] if given is None else given)]
    print(f"`python -m {' '.join(words)}`; {arguments.threads} threads each, {processor_name()}.\n")
    agreed = True
    if arguments.check:
        small = task_of(arguments, CHECKED_SCALE * arguments.scale, UNLIMITED)
        small = replace(small, memory=arguments.check_memory)
        agreed, text = checked([run_sagann(small), run_together(small, arguments.workers).result])
        print(f"A hundredth of it, in one process and in {arguments.workers} workers: {text}\n", flush=True)
    task = task_of(arguments, arguments.scale, limit_bytes)
    found = run_together(task, arguments.workers)
    print("\n".join(report(task, found)))
    for rank, ended in enumerate(found.workers):
        if ended.outcome != "ok":
            print(f"worker {rank}: {ended.errors.strip()}", file=sys.stderr)
    return 0 if agreed and found.lives else 1


def run_together(task: Task, num_workers: int) -> Together:
    """``sagann train`` by several workers of this machine, each in a control group of its own."""
    run = task.work / "together"
    command = [sys.executable, "-m", "sagann", *train_command(task, run)]
    drop_cached(task.dataset)
    port = free_port()
    with ExitStack() as stack:
        limits = [
            stack.enter_context(Limit(f"sagann-together-{task.work.name}-{rank}", task.limit_bytes))
            for rank in range(num_workers)
        ]
        threads = stack.enter_context(ThreadPoolExecutor(num_workers))
        started = [
            threads.submit(limit.run, command, _environment(task, rank, num_workers, port))
            for rank, limit in enumerate(limits)
        ]
        workers = tuple(each.result() for each in started)
    return Together(workers=workers, result=result_of("workers", run, workers[0]))


def report(task: Task, found: Together) -> list[str]:
    """The page: a line for each worker, and the sentence that says how it ended."""
    rows = [
        f"| {rank} | {ended.outcome} | {ended.own_bytes / 2**20:.0f} | {ended.hits} | {ended.seconds:.0f} |"
        for rank, ended in enumerate(found.workers)
    ]
    limit = "no limit" if task.limit_bytes == UNLIMITED else f"a limit of {format_bytes(task.limit_bytes)} each"
    losses, epoch_s = found.result.losses, found.result.epoch_s
    came_to = f"{found.result.got_to}, {median(epoch_s):.1f} s each (median)" if epoch_s else found.result.got_to
    changed = f"; loss {losses[0]:.4f} before the first step, {losses[-1]:.4f} before the last" if losses else ""
    verdict = "The workers train, and the loss falls" if found.lives else "The workers do not train"
    return [
        f"{len(found.workers)} workers, a budget of {task.memory} each, {limit}.\n",
        HEADER,
        *rows,
        f"\n{verdict}: they came to {came_to}{changed}.\n\n{NOTES}",
    ]


def _environment(task: Task, rank: int, num_workers: int, port: int) -> dict[str, str]:
    address = {"RANK": rank, "WORLD_SIZE": num_workers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    threads = dict.fromkeys(THREAD_VARIABLES, str(task.threads))
    return {**threads, **{name: str(value) for name, value in address.items()}, "PYTHONPATH": str(ROOT)}


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = parser_of(__doc__, limit="3.5GiB", memory="1.5GiB", threads=1, check_memory="32MiB")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args(given)
    arguments.work.mkdir(parents=True, exist_ok=True)
    return arguments


if __name__ == "__main__":
    raise SystemExit(main())
