"""Metrics of predictions on one split, by torchmetrics, on the CPU.

Metrics run over labelled vertices only. ROC-AUC is defined for a class that has both a positive and a negative
vertex in the split: for two classes it is the area of class 1, otherwise the mean over the classes for which
it is defined (one against the rest). Where there is none, the metric is left out of the mapping, so that no
mapping ever holds a NaN. macro-F1 averages over the classes that occur among labels or predictions
(single-label), or over all classes, an empty one counting 0 (multi-label).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

METRICS = ("loss", "accuracy", "micro_f1", "macro_f1", "roc_auc")
"Every metric there is; 'loss' is the training loss on the split, without dropout."

Metrics = dict[str, float]


def compute_metrics(
    logits: Tensor, labels: Tensor, *, multi_label: bool, names: Collection[str] = METRICS
) -> Metrics:
    """Measure ``logits`` against ``labels``.

    Args:
        logits: float [n, C].
        labels: int64 [n] class ids, all known; or uint8 [n, C] of 0/1 for multi-label.
        multi_label: whether a vertex may have several labels; a class is then predicted where its logit is
            above 0 (probability 0.5), and accuracy is over all n * C decisions.
        names: which of :data:`METRICS`; those undefined on these labels are left out.
    Returns:
        Metric to value; empty for n = 0.
    """
    if len(labels) == 0:
        return {}
    measure = _multi_label if multi_label else _single_label
    found: Metrics = {}
    if "loss" in names:
        found["loss"] = float(loss_of(logits, labels, multi_label=multi_label))
    return found | measure(logits, labels, [name for name in names if name != "loss"])


def loss_of(logits: Tensor, labels: Tensor, *, multi_label: bool) -> Tensor:
    """Mean cross-entropy, or mean binary cross-entropy with logits over all n * C decisions: a scalar."""
    if multi_label:
        return F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
    return F.cross_entropy(logits, labels)


def predict_classes(logits: Tensor, *, multi_label: bool) -> Tensor:
    """Class ids int64 [n], or uint8 [n, C] of 0/1 for multi-label."""
    return (logits > 0).to(torch.uint8) if multi_label else logits.argmax(dim=1)


def _single_label(logits: Tensor, labels: Tensor, names: Collection[str]) -> Metrics:
    # Imported here: torchmetrics takes longer to import than torch.
    from torchmetrics.functional.classification import multiclass_accuracy, multiclass_f1_score

    num_classes = logits.shape[1]
    # Class ids are small; logits leave the device only for ROC-AUC.
    predicted, labels = predict_classes(logits, multi_label=False).cpu(), labels.cpu()

    def score(function: Callable[..., Tensor], average: str) -> float:
        return float(function(predicted, labels, num_classes, average=average, validate_args=False))

    found: Metrics = {}
    if "accuracy" in names:
        found["accuracy"] = score(multiclass_accuracy, "micro")
    if "micro_f1" in names:
        found["micro_f1"] = score(multiclass_f1_score, "micro")
    if "macro_f1" in names:
        found["macro_f1"] = score(multiclass_f1_score, "macro")
    if "roc_auc" in names:
        # float64, because in float32 confident predictions would all round to 1 and tie.
        scores = logits.cpu().double().softmax(dim=1)
        # For two classes both areas are the same: class 1's.
        first = 1 if num_classes == 2 else 0
        found |= _roc_auc((scores[:, number], (labels == number).long()) for number in range(first, num_classes))
    return found


def _multi_label(logits: Tensor, labels: Tensor, names: Collection[str]) -> Metrics:
    from torchmetrics.functional.classification import multilabel_accuracy, multilabel_f1_score

    num_classes = logits.shape[1]
    predicted, labels = predict_classes(logits, multi_label=True).long().cpu(), labels.long().cpu()

    def score(function: Callable[..., Tensor], average: str) -> float:
        return float(function(predicted, labels, num_classes, average=average, validate_args=False))

    found: Metrics = {}
    if "accuracy" in names:
        found["accuracy"] = score(multilabel_accuracy, "micro")
    if "micro_f1" in names:
        found["micro_f1"] = score(multilabel_f1_score, "micro")
    if "macro_f1" in names:
        found["macro_f1"] = score(multilabel_f1_score, "macro")
    if "roc_auc" in names:
        found |= _roc_auc(zip(logits.cpu().unbind(dim=1), labels.unbind(dim=1), strict=True))
    return found


def _roc_auc(columns: Iterable[tuple[Tensor, Tensor]]) -> Metrics:
    """Mean area over the columns that hold both a 0 and a 1; empty where no column does.

    Args:
        columns: scores [n] and truth int64 [n] of each class; one after the other, as one alone takes a lot of memory.
    """
    from torchmetrics.functional.classification import multilabel_auroc

    areas = []
    for scores, truth in columns:
        if not 0 < int(truth.sum()) < len(truth):
            continue
        # The area depends on the order alone. Ranks hand the order on exactly; torchmetrics would take the sigmoid,
        # whose last bit depends on where in the array an element stands, so that equal scores no longer tie.
        ranks = _ranks(scores)[:, None]
        areas.append(multilabel_auroc(ranks, truth[:, None], 1, average="macro", validate_args=False))
    return {"roc_auc": float(torch.stack(areas).mean())} if areas else {}


def _ranks(scores: Tensor) -> Tensor:
    """Ranks of [n] scores from 0 to 1, equal for equal scores: float64 [n]."""
    distinct, ranks = scores.unique(return_inverse=True)
    return ranks.double() / max(1, len(distinct) - 1)
