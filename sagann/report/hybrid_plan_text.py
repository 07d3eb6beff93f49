"""The text that ``sagann plan --sample --devices`` prints: hybrid training as the performance model predicts it."""

from __future__ import annotations

from collections.abc import Mapping

from sagann.byte_size import format_bytes
from sagann.hybrid.assignment import HOST
from sagann.hybrid.forecast import Prediction


def hybrid_plan_text(prediction: Prediction, *, machine: str, more: Prediction | None) -> str:
    """Describe the split, the seconds of every stage, the bottleneck, and what one more accelerator would bring.

    Args:
        prediction: training with the best split.
        machine: name of the machine.
        more: the same with one more accelerator and as many seeds an iteration; None if there can be none.
    """
    assignment, times = prediction.assignment, prediction.times
    threads = assignment.threads
    stages = [
        f"sampling {_told(times.sample)}",
        f"loading features {_told(times.load)}",
        *_each("copies", times.transfer),
        *_each("propagation", times.train),
    ]
    iterations = "1 iteration" if prediction.num_iterations == 1 else f"{prediction.num_iterations:,} iterations"
    lines = [
        f"Machine: {machine}.",
        f"Seeds of an iteration: {_seeds(assignment.seeds)}; {assignment.total:,} in all, {iterations} an epoch.",
        f"Threads of the processor: {threads.sample} sample, {threads.load} load, {threads.train if assignment.seeds[HOST] else 0} train.",
        f"Memory: at most {format_bytes(prediction.peak_bytes)} of mini-batches and gradients in one place.",
        f"Expected: {_told(prediction.iteration_s)} an iteration, {prediction.epoch_s:.3g} s an epoch, "
        f"{prediction.edges_per_s / 1e6:.3g} million edges a second, without evaluation; nothing was trained.",
        f"Of that, each alone: {', '.join(stages)}. The bottleneck is {times.bottleneck}.",
    ]
    if more is not None:
        times_as_fast = prediction.iteration_s / more.iteration_s
        lines.append(
            f"Expected with one more accelerator: {_told(more.iteration_s)} an iteration, {times_as_fast:.2f} times as fast; the bottleneck is then "
            f"{more.times.bottleneck}."
        )
    return "\n".join(lines)


def _seeds(seeds: Mapping[str, int]) -> str:
    named = [f"{count:,} on {_place(name)}" for name, count in seeds.items() if name != HOST or count]
    return ", ".join(named)


def _each(what: str, seconds: Mapping[str, float]) -> list[str]:
    """A stage of every trainer that has work; accelerators that take the same are one entry."""
    found: dict[str, list[str]] = {}
    for name, each in seconds.items():
        if each:
            found.setdefault(_told(each), []).append(_place(name))
    return [f"{what} {told} on {' and '.join(names)}" for told, names in found.items()]


def _place(name: str) -> str:
    return "the processor" if name == HOST else name


def _told(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
