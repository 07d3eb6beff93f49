"""IterationWork: bytes and seconds of every stage of one iteration, whoever knows them; and how stages share a processor that has no core to spare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sagann.plan.hybrid.assignment import HOST, Assignment

Prefetch = Literal["none", "one stage", "two stages"]
"How loading and copying work ahead of propagation."
TASKS = 3
"Tasks of the processor: sampling, loading and training."


@dataclass(frozen=True, kw_only=True, slots=True)
class IterationWork:
    """Bytes and seconds of every stage of one iteration; all iterations are alike."""

    sample_s: float
    "Seconds of sampling."
    load_bytes: float
    "Bytes of features that are loaded, for all trainers."
    load_bytes_per_s: float
    "Rate of loading with the threads that load."
    copied_bytes: Mapping[str, float]
    "Bytes that each accelerator with seeds gets."
    copy_core_s: float
    "Seconds for which the copies keep a core of the processor busy."
    propagate_s: Mapping[str, float]
    "Seconds of propagation of each trainer with seeds."
    num_edges: float
    "Edges of all mini-batches."
    copy_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
    "Rates of the copies to accelerators, where a rehearsal knows them; else the machine's links have rates."
    synchronise_bytes_per_s: float | None = None
    "Bytes of gradients and weights per second while trainers synchronise and the optimizer steps; None for the rates of the links."
    synchronise_core_s: float = 0.0
    "Seconds for which synchronising keeps a core of the processor busy, where no propagation can be beside it."
    host_is_full: bool = False
    "Whether the processor has fewer cores than tasks. Its trainer's seconds, or those of loading, then include what all tasks take of its cores."


def on_full_processor(work: IterationWork, assignment: Assignment, *, num_cores: int) -> IterationWork:
    """The work on a processor with fewer cores than tasks: its trainer, or loading without one, ends when all tasks have had their seconds.

    Args:
        work: of stages that each have their threads' cores for themselves.
        assignment: who has how many seeds and threads.
        num_cores: cores of the processor.
    """
    threads, propagate_s = assignment.threads, dict(work.propagate_s)
    load_s = work.load_bytes / work.load_bytes_per_s
    busy_s = threads.sample * work.sample_s + threads.load * load_s + work.copy_core_s
    if HOST in propagate_s:
        busy_s += threads.train * propagate_s[HOST]
        propagate_s[HOST] = max(propagate_s[HOST], busy_s / num_cores)
    else:
        # Nothing else of the processor waits while trainers synchronise.
        load_s = max(load_s, (busy_s + work.synchronise_core_s) / num_cores)
    return replace(work, load_bytes_per_s=work.load_bytes / load_s, propagate_s=propagate_s, host_is_full=True)
