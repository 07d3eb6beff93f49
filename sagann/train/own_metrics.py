"""Metrics of the user's: functions of outputs and answers, or objects that gather them slab by slab, as those of torchmetrics do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.train.metrics import METRICS, Metrics, Rows

MetricFunction: TypeAlias = Callable[[Tensor, Tensor], Any]
"""Gives a number from outputs [n, C] of the model for the vertices of a split, and answers: class ids int64 [n], 0 and 1 uint8 [n, C], or
targets float [n, T]. Both are on the CPU."""


@runtime_checkable
class GatheredMetric(Protocol):
    """A metric that gathers slabs of outputs and answers, such as a ``torchmetrics.Metric``."""

    def reset(self) -> None:
        """Forget what was gathered."""

    def update(self, outputs: Tensor, answers: Tensor, /) -> None:
        """Gather the vertices of a slab."""

    def compute(self) -> Any:
        """The metric of all that was gathered, a number."""


OwnMetrics: TypeAlias = Mapping[str, MetricFunction | GatheredMetric]
"Metrics of the user's by name."


def check_own_metrics(metrics: Mapping[Any, Any], *, where: str) -> None:
    """Refuse names that other metrics have or that are no words, and values that cannot be called."""
    require_type(metrics, Mapping, where=where, hint="Pass a mapping of name to function.")
    for name, metric in metrics.items():
        if not isinstance(name, str) or not name.isidentifier() or name in METRICS:
            raise InputError(
                f"name of a metric cannot be used: {name!r}, expected a word other than {', '.join(METRICS)} "
                f"(in {where})",
                hint="Choose another name.",
            )
        if not callable(metric) and not isinstance(metric, GatheredMetric):
            hint = "Pass a function of outputs and answers, or an object with reset, update and compute."
            raise InputError(f"a metric cannot be called: '{name}' is {metric!r:.80} (in {where})", hint=hint)


def measure_own(metrics: OwnMetrics, rows: Rows, answers: Tensor) -> Metrics:
    """Each metric of some rows of outputs; one that is NaN or infinite is left out, as undefined."""
    found: Metrics = {}
    for name, metric in metrics.items():
        with torch.no_grad():
            value = _value(metric, rows, answers)
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if not isinstance(value, int | float):
            raise InputError(
                f"a metric must give a number: {type(value).__name__} "
                f"{list(value.shape) if isinstance(value, Tensor) else value!r:.80} (in metric '{name}')",
                hint="Return a float, or a tensor with one element.",
            )
        if math.isfinite(value):
            found[name] = float(value)
    return found


def _never() -> bool:
    return False


def _value(metric: MetricFunction | GatheredMetric, rows: Rows, answers: Tensor) -> Any:
    if isinstance(metric, GatheredMetric):
        if hasattr(metric, "distributed_available_fn"):
            # Every worker has the rows of all. torchmetrics would add them up once more.
            metric.distributed_available_fn = _never
        metric.reset()
        for part, outputs in rows.slabs():
            metric.update(outputs.cpu(), answers[part].cpu())
        return metric.compute()
    return metric(torch.cat([outputs.cpu() for _, outputs in rows.slabs()]), answers.cpu())
