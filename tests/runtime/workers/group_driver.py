"""Workers that talk, stop and die; run by test_group.py as a program of its own, which writes what happened into FOLDER.

python -m tests.runtime.workers.group_driver FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sagann.errors import WorkerError
from sagann.runtime.workers import Workers
from sagann.runtime.workers.carriers import DeviceCarrier
from tests.runtime.workers.processes import join, run_workers, start_workers

SIZE = 3
TIMEOUT_S = 2.0
"Seconds for which workers wait for the one that is stopped."
LONG_S = 200.0
"Seconds for which workers would wait for the one that is killed, if they did not see that it is gone."
EXPECTED_CODES = [3, -signal.SIGKILL, 3]


def talk(workers: Workers, folder: Path) -> None:
    rank = workers.rank
    torch.manual_seed(rank)
    # Terms whose sum depends on the order.
    terms = torch.tensor([1.0, 1e8, -1e8])[(torch.arange(7) + rank) % 3]
    bounds = (0, 2, 2, 5)
    own = torch.arange(bounds[rank], bounds[rank + 1]).reshape(-1, 1) + 0.5
    parameters = [
        torch.nn.Parameter(torch.ones(2, 2)),
        torch.nn.Parameter(torch.ones(3)),
        torch.nn.Parameter(torch.ones(1)),
    ]
    parameters[0].grad = torch.full((2, 2), float(rank))
    if rank == 2:
        parameters[2].grad = torch.ones(1)
    total = workers.add_gradients(parameters, torch.tensor([rank + 1.0]))
    before = workers.sent_bytes
    workers.share_random_numbers(torch.device("cpu"))
    found: dict[str, Any] = {
        "sum": workers.add_up(terms, "adding").tolist(),
        "rows": workers.rows_at(own, bounds, "gathering", first_only=False).flatten().tolist(),
        "rows at first": workers.rows_at(own, bounds, "gathering", first_only=True).flatten().tolist() or None,
        "texts": workers.texts(f"Grüße {rank}" * (rank + 1), "talking"),
        "empty texts": workers.texts("", "talking"),
        "any": [workers.any(False, "asking"), workers.any(rank == 1, "asking")],
        "bytes": workers.from_first(b"abc" if rank == 0 else None, "sharing").decode(),
        "total": total.tolist(),
        "gradients": [None if each.grad is None else each.grad.flatten().tolist() for each in parameters],
        "random": torch.rand(()).item(),
        "aside": [beside(workers, flag) for flag in (False, rank == 1)],
        "asides are kept": workers.aside("testing") is workers.aside("testing"),
        "begun": begun(workers),
        "sent bytes are counted": workers.sent_bytes > before,
    }
    (folder / f"talk-{rank}.json").write_text(json.dumps(found))


def beside(workers: Workers, flag: bool) -> bool:
    """Whether any worker has a flag, which travels beside arrays of 0, 4 and 8 MB: more than the system keeps for a connection."""
    mine = [torch.tensor([flag]), torch.full((1_000_000 * workers.rank, 1), workers.rank)]
    found = workers.aside("testing").exchange(dict.fromkeys(workers.others, mine), "asking")
    for rank, (_, rows) in found.items():
        assert rows.shape == (1_000_000 * rank, 1)
        assert (rows == rank).all()
    return flag or any(bool(each) for each, _ in found.values())


def begun(workers: Workers) -> list[list[float]]:
    """What comes by two transfers of different sizes that travel at the same time, and that end in another order."""
    found, finishes = [], []
    for number in range(2):
        mine = torch.full((1 + 1000 * number,), float(10 * workers.rank + number))
        found.append({rank: torch.empty_like(mine) for rank in workers.others})
        finishes.append(workers.begin(dict.fromkeys(workers.others, mine), found[-1], "exchanging"))
    for finish in reversed(finishes):
        finish()
    return [[float(rows.unique()) for rows in each.values()] for each in found]


def ask(workers: Workers) -> None:
    workers.any(False, "agreeing on the next epoch")


def exchange(workers: Workers) -> None:
    """Exchange a tensor with each other worker, and compute meanwhile."""
    mine = torch.ones(1 << 20)
    receives = {rank: torch.empty_like(mine) for rank in workers.others}
    finish = workers.begin(dict.fromkeys(workers.others, mine), receives, "exchanging rows of the halo")
    time.sleep(0.5)
    finish()


def sample(workers: Workers) -> None:
    """Exchange what mini-batches are made of."""
    workers.aside("sampling").exchange(
        {rank: [torch.ones(1 << 22)] for rank in workers.others}, "sampling neighbours"
    )


def die(workers: Workers, folder: Path, name: str, signum: int, wait: Callable[[Workers], None]) -> None:
    """Worker 1 gets a signal while the others wait for it."""
    workers.aside("sampling")
    if workers.rank == 1:
        os.kill(os.getpid(), signum)
        time.sleep(60)
    since_s = time.perf_counter()
    try:
        wait(workers)
    except WorkerError as error:
        found = {"text": str(error), "seconds": time.perf_counter() - since_s}
        (folder / f"{name}-{workers.rank}.json").write_text(json.dumps(found))
        sys.stdout.flush()
        # As the error of a command: the worker ends.
        os._exit(3)


def as_devices(workers: Workers) -> None:
    """Have tensors travel as between devices. The device is the processor, whose operations gloo carries."""
    workers._carriers["cpu"] = DeviceCarrier(dist.new_group())


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    for carrier, prepare in (("host", lambda workers: None), ("device", as_devices)):
        (folder / carrier).mkdir()

        def prepared(
            work: Callable[[Workers, Path], None],
            workers: Workers,
            prepare: Callable[[Workers], None] = prepare,
            folder: Path = folder / carrier,
        ) -> None:
            prepare(workers)
            work(workers, folder)

        run_workers(partial(prepared, talk), SIZE)
        for name, signum, wait, timeout_s in (
            ("killed", signal.SIGKILL, ask, LONG_S),
            ("stopped", signal.SIGSTOP, ask, TIMEOUT_S),
            ("killed in an exchange", signal.SIGKILL, exchange, LONG_S),
            ("killed while sampling", signal.SIGKILL, sample, LONG_S),
            ("stopped while sampling", signal.SIGSTOP, sample, TIMEOUT_S),
        ):
            work = partial(prepared, partial(die, name=name, signum=signum, wait=wait))
            pids = start_workers(work, SIZE, timeout_s=timeout_s)
            codes = join([pids[0], pids[2]])
            os.kill(pids[1], signal.SIGKILL)
            codes.insert(1, *join([pids[1]]))
            assert codes == EXPECTED_CODES, f"{carrier}, {name}: {codes}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
