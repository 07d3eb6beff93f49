"""The worker's end of the pipe: one contestant in a process of its own, which runs on request.

Files in this folder import PyTorch and NumPy only, and neither sagann nor bench, so that they run in any peer's
environment. A worker script gives :func:`serve` two functions, ``load`` and ``build``. The order of things:

1. rehearse: load, build and run once on a graph of a few vertices, so that imports and compilation are over;
2. load the graph in the form that the contestant wants: from here on memory is counted;
3. build the contestant, answer ``{"ready": ...}``, and then one line for each request.

Requests are ``{"epochs": n}`` and ``{"memory": n}``, and those that a worker script adds.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory")
"Messages of PyTorch, DGL and the C library when an allocation fails."


class UnsupportedError(Exception):
    """The contestant does not exist here: a package is missing, or a layer does not take this input."""


Started = AbstractContextManager[tuple[dict, Callable[[dict], dict]]]
"A worker that is ready inside its ``with`` block: its message, and the function that answers requests."


def answer_requests(start: Callable[[dict], Started]) -> None:
    """Start the worker that the specification (the first argument, in JSON) describes, and answer the requests on standard input.

    Answers go to the pipe that the second argument names, apart from the output of libraries.
    """
    answers = os.fdopen(int(sys.argv[2]), "w")
    warnings.simplefilter("ignore")

    def answer(message: dict) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        specification = json.loads(sys.argv[1])
        torch.set_num_threads(specification["threads"])
        with start(specification) as (ready, answered):
            answer({"ready": ready})
            for line in sys.stdin:
                answer(answered(json.loads(line)))
    except UnsupportedError as error:
        answer({"unsupported": str(error)})
    except Exception as error:  # noqa: BLE001  (passed on to the parent, whole)
        kind = "out_of_memory" if _is_out_of_memory(error) else "error"
        answer({kind: traceback.format_exc()})


def serve(
    load: Callable[[dict, Path], Any],
    build: Callable[[dict, Any], Any],
    added: Mapping[str, Callable[[Any, Any], dict]] | None = None,
) -> None:
    """Serve a contestant, whose method ``run`` gives the loss of an epoch."""

    def start(specification: dict) -> Started:
        folder = Path(specification["folder"])
        began_s = time.perf_counter()
        rehearsal = build(specification, load(specification, folder / "rehearsal"))
        rehearsal.run()
        rehearsal_s = time.perf_counter() - began_s
        # A contestant may train in a thread of its own, for which the next one would wait.
        getattr(rehearsal, "close", lambda: None)()
        del rehearsal
        give_back()
        data = load(specification, folder)
        give_back()
        loaded_bytes = memory_bytes("VmRSS")
        runner = build(specification, data)
        ready = {"rehearsal_s": rehearsal_s, "loaded_bytes": loaded_bytes}
        return nullcontext((ready, lambda request: _obey(request, runner, loaded_bytes, added or {})))

    answer_requests(start)


def _obey(request: dict, runner: Any, loaded_bytes: int, added: Mapping[str, Callable[[Any, Any], dict]]) -> dict:
    for name, answered in added.items():
        if name in request:
            return answered(runner, request[name])
    if "epochs" in request:
        return timed(runner, request["epochs"])
    forget_peak()
    found = timed(runner, request["memory"])
    peak_bytes = memory_bytes("VmHWM")
    return {**found, "peak_bytes": peak_bytes - loaded_bytes, "process_bytes": peak_bytes}


def timed(runner: Any, epochs: int) -> dict[str, list[float]]:
    """Seconds and losses of epochs."""
    gc.collect()
    found: dict[str, list[float]] = {"seconds": [], "losses": []}
    for _ in range(epochs):
        start = time.perf_counter()
        found["losses"].append(runner.run())
        found["seconds"].append(time.perf_counter() - start)
    return found


def memory_bytes(field: str) -> int:
    """A field of /proc/self/status: VmRSS, what the process holds now, or VmHWM, the most since the last reset."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise UnsupportedError(f"this kernel has no {field} in /proc/self/status")


def forget_peak() -> None:
    """Make what the process holds now its peak."""
    with open("/proc/self/clear_refs", "w") as clear_refs:
        clear_refs.write("5")


def give_back() -> None:
    """Return freed memory to the system, so that it is not taken for memory in use."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        # Another C library: freed memory counts as loaded, which hides some of the peak from everyone alike.
        return


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)
