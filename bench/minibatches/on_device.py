"""Sampled epochs on a device, against PyG: ``python -m bench.minibatches --device cuda --out bench/results/minibatches_cuda.md``.

The graph lies in the host's memory. Contestants of one system share a process and take turns of one epoch; the first epoch of each is not
counted, and every epoch ends when the device is done. What fails is named on the page, and the others go on. The page is written anew
after each task. With ``--device cpu`` the same code trains on the processor, without hot rows, to try it out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.device.place import where
from bench.minibatches.device_page import Measured, page_of, summary_of, tables_of
from bench.minibatches.tasks import Task, described, specification_of, write_graph, write_task
from bench.origin import command_line
from bench.workers import Worker, WorkerEndedError
from sagann.errors import InputError
from sagann.runtime.places import device_named

MOST_WAIT_S = 240.0
"Longest wait for an answer of a process, in seconds."
MODULES = {"sagann": "bench.minibatches.device_worker", "pyg": "bench.minibatches.device_pyg_worker"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run on a device."""
    group = parser.add_argument_group("on a device")
    group.add_argument("--device", help="train there: cuda, cuda:N, or cpu to try it out")
    group.add_argument("--hot", nargs="*", default=["0%", "10%", "100%"], help="sizes of sagann's hot tier")
    group.add_argument("--sampling-threads", type=int, nargs="+", default=[1, 4], help="threads of sagann's stages")
    group.add_argument(
        "--device-edges",
        nargs="*",
        default=[],
        help="parts of the edges in the device's memory, such as 0%% 100%%: the device samples too",
    )
    group.add_argument("--workers", type=int, nargs="*", default=[4, 8, 16], help="processes of PyG's loader")
    group.add_argument("--out", type=Path, help="write the page there too")


def main(options: argparse.Namespace, given: Sequence[str]) -> int:
    """Measure all tasks; 0 where every contestant of sagann ran."""
    try:
        device = device_named(options.device)
    except InputError as error:
        sys.stderr.write(f"There is nothing to measure. {error}\n")
        return 1
    contestants = contestants_of(options)
    measured: list[Measured] = []
    with TemporaryDirectory(prefix="sagann_minibatches_", dir=options.work) as name, ExitStack() as stack:
        folder = Path(name)
        write_graph(folder, options)
        tasks = {}
        for number, task in enumerate(options.tasks):
            # Models of one name have a file of weights of one name.
            write_task(folder / str(number), task, options)
            tasks[task.name] = specification_of(task, options, folder / str(number))
        contest = Contest(contestants, tasks, folder, device, options.threads, stack)
        header = [
            f"`{command_line('bench.minibatches', given)}`; {where(device)}",
            described(options),
        ]
        for task in options.tasks:
            found = contest.measure(task, options.rounds)
            measured.append(found)
            page = page_of(measured, header)
            print("\n".join(tables_of(found)), flush=True)
            if options.out is not None:
                options.out.write_text(page)
    print("\n".join(summary_of(measured)))
    return int(any(name.startswith("sagann") for each in measured for name in each.failures))


def contestants_of(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """For each contestant's name, its options for the worker. The first one of sagann is what it does by default."""
    found: dict[str, dict[str, Any]] = {}
    for threads in options.sampling_threads:
        for hot in (None, *options.hot):
            name = "copied" if hot is None else f"hot {hot}"
            name += "" if threads == 1 else f", {threads} threads"
            found[f"sagann:{name}"] = {"hot": hot, "threads": threads}
    for edges in options.device_edges:
        for hot in (None, *options.hot):
            name = f"{'copied' if hot is None else f'hot {hot}'}, edges {edges}"
            found[f"sagann:{name}"] = {"hot": hot, "threads": 1, "edges": edges}
    for workers in options.workers:
        for is_resident in (False, True):
            name = f"{workers} workers{', resident' if is_resident else ''}"
            found[f"pyg:{name}"] = {"workers": workers, "is_resident": is_resident}
    return found


class Contest:
    """The processes of the systems, which run until the stack is closed.

    Args:
        contestants: for each name, the options for the worker.
        tasks: for each name, what a worker is told of it.
        folder: of the graph.
        device: where models are trained.
        threads: of every process.
        stack: ends the processes.
    """

    def __init__(
        self,
        contestants: Mapping[str, dict[str, Any]],
        tasks: Mapping[str, dict[str, Any]],
        folder: Path,
        device: torch.device,
        threads: int,
        stack: ExitStack,
    ) -> None:
        self._contestants = contestants
        self._workers: dict[str, Worker] = {}
        self._ended: dict[str, str] = {}
        "Why a system has no process."
        for system, module in MODULES.items():
            own = {name: each for name, each in contestants.items() if _system(name) == system}
            if not own:
                continue
            specification = {
                "device": str(device),
                "tasks": dict(tasks),
                "contestants": own,
                "threads": threads,
                "folder": str(folder),
            }
            try:
                worker = Worker([sys.executable, "-m", module], specification, timeout_s=MOST_WAIT_S)
                self._workers[system] = stack.enter_context(worker)
            except WorkerEndedError as end:
                self._ended[system] = _noted(system, end)

    def measure(self, task: Task, rounds: int) -> Measured:
        """Epochs of all contestants in alternation, after one that is not counted; then sagann's stages, each alone."""
        found = Measured(caption=task.caption)

        def ask(what: str, name: str) -> dict[str, Any] | None:
            answer = self._ask(what, f"{task.name}/{name}", _system(name))
            if "failed" not in answer:
                return answer
            found.failures[name] = answer["failed"]
            return None

        for _ in range(1 + rounds):
            for name in self._contestants:
                if name not in found.failures and (turn := ask("epoch", name)) is not None:
                    found.turns.setdefault(name, []).append(turn)
        # Of who failed, no epoch counts, and of the others not the first one.
        found.turns = {name: turns[1:] for name, turns in found.turns.items() if name not in found.failures}
        for name in found.turns:
            if self._contestants[name].get("threads") == 1 and (seconds := ask("alone", name)) is not None:
                found.alone[name] = seconds
        found.failures = {name: found.failures[name] for name in self._contestants if name in found.failures}
        for system in list(self._workers):
            self._ask("forget", f"{task.name}/", system)
        return found

    def _ask(self, what: str, name: str, system: str) -> dict[str, Any]:
        if system not in self._workers:
            return {"failed": self._ended[system]}
        try:
            answer = self._workers[system].ask({what: name})
        except WorkerEndedError as end:
            del self._workers[system]
            self._ended[system] = _noted(f"{name}: its process", end)
            return {"failed": self._ended[system]}
        if "failed" in answer:
            sys.stderr.write(f"{name} failed: {answer['detail']}\n")
        return answer


def _system(name: str) -> str:
    return name.partition(":")[0]


def _noted(who: str, end: WorkerEndedError) -> str:
    """Write how a process ended; gives the outcome and its last line."""
    sys.stderr.write(f"{who} does not run: {end}\n")
    return f"{end.outcome}: {_last_line(end.detail)}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].replace("|", "/")
