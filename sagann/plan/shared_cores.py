"""Shared cores: how fast operations run that want more cores together than a processor has.

Every thread gets the same share of the cores, but no more than the thread wants. What a thread leaves over is shared by the others
(max-min fairness). So do schedulers of operating systems treat threads of one priority.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def core_speeds(wanted: Sequence[float], num_cores: int) -> list[float]:
    """The speed of each operation, as a share of its full speed.

    Args:
        wanted: for each operation, the number of cores that it keeps busy at full speed, above 0. Its threads are the next whole number.
        num_cores: number of cores.
    Returns:
        numbers above 0, at most 1.
    Example:
        >>> core_speeds([1.0, 1.0], num_cores=2)
        [1.0, 1.0]

        Three threads share two cores; an operation that mostly waits for a disk keeps its tenth of a core:

        >>> [round(speed, 3) for speed in core_speeds([2.0, 1.0], num_cores=2)]
        [0.667, 0.667]
        >>> core_speeds([2.0, 0.1], num_cores=2)
        [0.95, 1.0]
    """
    threads = [math.ceil(each) for each in wanted]
    per_thread = [each / count for each, count in zip(wanted, threads, strict=True)]
    speeds = [1.0] * len(wanted)
    left, num_threads = float(num_cores), sum(threads)
    for number in sorted(range(len(wanted)), key=per_thread.__getitem__):
        share = left / num_threads
        granted = min(per_thread[number], share)
        speeds[number] = granted / per_thread[number]
        left -= granted * threads[number]
        num_threads -= threads[number]
    return speeds
