"""Answers: what is known about each vertex, each graph or each link: labels, targets and splits, with their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sagann.config import LINK_TASK, OF_GRAPHS
from sagann.errors import InputError, require_choice, require_type
from sagann.graph.checks import (
    AS_TENSOR,
    UNITS,
    Unit,
    check_finite,
    check_labels,
    first_true,
    mask_of_ids,
    numbered,
    require_array,
    unknown_target,
    wrong_form,
)
from sagann.graph.rows import mapped_arrays
from sagann.ranges import require_integer

SPLIT_NAMES = ("train", "val", "test")
TASKS = ("classification", "multi-label", "regression")
"""Tasks on vertices: one class for each vertex, any number of classes for each, or numbers for each."""
GRAPH_TASKS = tuple(OF_GRAPHS + task for task in TASKS)
"""Tasks on the graphs of several in one: one class for each graph, any number of classes for each, or numbers for each."""
ALL_TASKS = (*TASKS, *GRAPH_TASKS, LINK_TASK)
"Every task."

PREFIXES: Mapping[Unit, str] = MappingProxyType({"vertex": "", "graph": "graph_", "link": "links."})
"What the names of the arrays of each unit begin with."
SPLITTERS: Mapping[Unit, str] = MappingProxyType(
    {"vertex": "random_split", "graph": "random_graph_split", "link": "sagann.sampling.hold_out_links"}
)
"The function that draws splits of each unit."


def unit_of(task: str) -> Unit:
    """What a task has an answer for each of."""
    return "link" if task == LINK_TASK else "graph" if task in GRAPH_TASKS else "vertex"


def kind_of(task: str) -> str:
    """What a task learns about each vertex or graph, one of TASKS; or LINK_TASK."""
    return task.removeprefix(OF_GRAPHS)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Answers:
    """Labels, targets and splits of the vertices of a graph, of the graphs in it, or of links.

    Example:
        >>> answers = Answers(unit="vertex", count=3, owner="path", labels=torch.tensor([0, -1, 1]))
        >>> answers.num_classes, list(answers.tasks)
        (2, ['classification'])
        >>> answers.known(torch.tensor([True, True, False])).tolist()
        [0]
    """

    unit: Unit
    "What has an answer: 'vertex', 'graph' or 'link'."
    count: int
    "Number of units."
    owner: str
    "Name of the graph, for errors."
    labels: Tensor | None = None
    "int64 [count], -1 for unknown; or uint8 [count, num_classes] of 0 and 1."
    num_classes: int = 0
    "Number of classes, 0 without labels; by default one more than the largest label, or the number of columns."
    targets: Tensor | None = None
    "float32 [count], or [count, num_targets]; a single column is kept as [count]."
    splits: Mapping[str, Tensor] = field(default_factory=dict)
    "Disjoint masks, bool [count], by name: 'train', 'val', 'test'."

    def __post_init__(self) -> None:
        of = f"Graph.{self.prefix}"
        for name in ("labels", "targets"):
            require_type(getattr(self, name), Tensor, where=of + name, hint=AS_TENSOR, optional=True)
        require_integer(self.num_classes, "num_classes", where=f"Graph.num_{self.prefix}classes")
        require_type(self.splits, Mapping, where=f"{of}splits", hint="Pass a mapping of split to bool mask.")
        for name, mask in self.splits.items():
            require_type(mask, Tensor, where=f"{of}splits[{name!r}]", hint=AS_TENSOR)
        for name, rows in self.arrays().items():
            hint = f"Pass one row per {self.unit}" + (", and graph_ptr." if self.unit == "graph" else ".")
            if "split_" in name and self.unit == "vertex" and rows.dtype in (torch.int32, torch.int64):
                hint = mask_of_ids(self.count)
            require_rows(name, rows, self.count, self.units, owner=self.owner, hint=hint)
        labels, targets = self.labels, self.targets
        if targets is not None and targets.ndim == 2 and targets.shape[1] == 1:
            object.__setattr__(self, "targets", targets[:, 0])
        num_classes = int(self.num_classes)
        if not num_classes and labels is not None and not labels.is_floating_point() and len(labels):
            num_classes = max(0, 1 + (labels.shape[1] - 1 if labels.ndim == 2 else int(labels.max())))
        object.__setattr__(self, "num_classes", num_classes)

    @property
    def units(self) -> str:
        """The units in the plural."""
        return UNITS[self.unit]

    @property
    def prefix(self) -> str:
        """What the names of the arrays begin with."""
        return PREFIXES[self.unit]

    @property
    def multi_label(self) -> bool:
        """Whether there may be several labels each."""
        return self.labels is not None and self.labels.ndim == 2

    @property
    def num_targets(self) -> int:
        """Number of targets each; 0 without targets."""
        if self.targets is None:
            return 0
        return 1 if self.targets.ndim == 1 else self.targets.shape[1]

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a model each: one for each target where there are targets and no labels, else one for each class."""
        return self.num_targets if self.labels is None and self.targets is not None else self.num_classes

    @property
    def tasks(self) -> dict[str, str]:
        """The tasks that there are answers for, some of ALL_TASKS, each with its answers in words."""
        if self.unit == "link":
            return {LINK_TASK: f"{self.count} links to measure"}
        found, of = {}, OF_GRAPHS if self.unit == "graph" else ""
        if self.labels is not None:
            several = f", several per {self.unit}" if self.multi_label else ""
            classes = f"{self.num_classes} classes{' of graphs' if of else ''}"
            found[of + ("multi-label" if self.multi_label else "classification")] = f"labels of {classes}{several}"
        if self.targets is not None:
            s = "s" if self.num_targets != 1 else ""
            found[f"{of}regression"] = f"{self.num_targets} target{s} per {self.unit}"
        return found

    def only(self, task: str) -> Answers:
        """The answers without those for other tasks; all splits are kept."""
        is_own, is_regression = unit_of(task) == self.unit, kind_of(task) == "regression"
        return replace(
            self,
            labels=self.labels if is_own and not is_regression else None,
            num_classes=self.num_classes if is_own and not is_regression else 0,
            targets=self.targets if is_own and is_regression else None,
        )

    def arrays(self) -> dict[str, Tensor]:
        """The arrays, by the names that they have in files."""
        found = {"labels": self.labels, "targets": self.targets}
        found |= {f"split_{name}": mask for name, mask in sorted(self.splits.items())}
        return {self.prefix + name: rows for name, rows in found.items() if rows is not None}

    def fields(self) -> dict[str, Any]:
        """The fields of a Graph that these answers, of vertices or of graphs, are kept in."""
        values = {"labels": self.labels, "targets": self.targets, "splits": self.splits}
        return {
            **{self.prefix + name: value for name, value in values.items()},
            f"num_{self.prefix}classes": self.num_classes,
        }

    def mapped(self, change: Callable[[Tensor], Tensor], *, count: int | None = None) -> Answers:
        """The same answers with every array replaced by the result of ``change``, which may have another number of rows."""
        moved = {name: mapped_arrays(getattr(self, name), change) for name in ("labels", "targets", "splits")}
        return replace(self, count=self.count if count is None else count, **moved)

    def known(self, mask: Tensor | None = None) -> Tensor:
        """The units, of a mask bool [count], whose answer is known: int64 [n]. Graphs with targets need no label."""
        labels = self.labels
        if labels is not None and labels.ndim == 1 and (self.unit != "graph" or self.targets is None):
            mask = labels >= 0 if mask is None else mask & (labels >= 0)
        if mask is None:
            return torch.arange(self.count, device=answers_in(labels, self.targets).device)
        return mask.nonzero().squeeze(1)

    def rows(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The units of a mask with a known answer: int64 [n], and their labels [n] or [n, C], or without labels their targets [n, T]."""
        ids = self.known(mask)
        return ids, answers_in(self.labels, self.targets).index_select(0, ids)

    def validate(self) -> None:
        """Check every label, target and mask; an InputError names the first offender."""
        if self.labels is not None:
            self._check_labels(self.labels)
        if self.targets is not None:
            where, rows = self._where("targets"), f"[num_{self.units}"
            is_rows = self.targets.ndim == 1 or (self.targets.ndim == 2 and self.targets.shape[1] > 0)
            if self.targets.dtype != torch.float32 or self.targets.layout != torch.strided or not is_rows:
                expected = f"torch.float32 {rows}], or {rows}, num_{self.prefix}targets]"
                hint = f"Convert the targets with .float(), one row per {self.unit}."
                raise wrong_form(self.targets, expected, where=where, hint=hint)
            check_finite(self.targets, "target", where=numbered(where, self.unit), hint=unknown_target(self.unit))
        for name, mask in self.splits.items():
            self._check_split(name, mask)
        for (name, mask), (other_name, other) in combinations(self.splits.items(), 2):
            if (found := _first_in_both(mask, other)) is not None:
                raise InputError(
                    f"splits overlap: {self.unit} {found[0]} is in '{name}' and in '{other_name}', "
                    f"{found[1]} in all (in {self._where('splits')})",
                    hint=f"Put every {self.unit} into one split at most.",
                )

    def _where(self, array: str) -> str:
        return f"{self.prefix}{array} of graph '{self.owner}'"

    def _check_labels(self, labels: Tensor) -> None:
        where, state = self._where("labels"), f"and state num_{self.prefix}classes."
        if not self.multi_label:
            hint = f"Convert the labels with .long() (numbers to predict are targets), {state}"
            require_array(labels, (torch.int64,), f"[num_{self.units}]", where=where, hint=hint)
        elif labels.dtype != torch.uint8 or labels.shape[1] != self.num_classes:
            expected = f"torch.uint8 [num_{self.units}, {self.num_classes}] for several labels per {self.unit}"
            hint = "Convert the labels with .to(torch.uint8) (of one-hot rows take labels.argmax(1))"
            if labels.shape[1] == 1:
                hint = "Take the only column, labels[:, 0].long()"
            raise wrong_form(labels, expected, where=where, hint=f"{hint}, {state}")
        check_labels(labels, self.num_classes, where=numbered(where, self.unit))

    def _check_split(self, name: str, mask: Tensor) -> None:
        units, where = self.units, self._where(f"split '{name}'")
        require_choice(name, SPLIT_NAMES, what="unknown split", where=self._where("splits"))
        hint = f"Pass a mask, not {self.unit} ids."
        require_array(mask, (torch.bool,), f"[num_{units}]", where=where, hint=hint)
        if name == "train" and not mask.any():
            raise InputError(
                f"the training split is empty: 0 {units}, at least 1 is needed (in {where})",
                hint=f"Split again, with {SPLITTERS[self.unit]} for example.",
            )
        # A unit without a label may be in a split for its target.
        if self.labels is None or self.multi_label or self.targets is not None:
            return
        if (found := _first_in_both(mask, self.labels < 0)) is not None:
            raise InputError(
                f"a split holds {units} without a label: {self.unit} {found[0]} has label -1, "
                f"{found[1]} in all (in {where})",
                hint=f"Leave {units} of unknown label out of every split.",
            )


def _first_in_both(mask: Tensor, other: Tensor) -> tuple[int, int] | None:
    """The first row that two masks share, and the number of such rows."""
    both = mask & other
    at = first_true(both)
    return None if at is None else (at, int(both.sum()))


def answers_in(labels: Tensor | None, targets: Tensor | None) -> Tensor:
    """What outputs are compared with: labels [n] or [n, C]; without labels, targets with a column for each, [n, T]."""
    if labels is not None:
        return labels
    assert targets is not None
    return as_columns(targets)


def as_columns(targets: Tensor) -> Tensor:
    """Targets [n] or [n, T] with a column for each, [n, T]."""
    return targets if targets.ndim == 2 else targets.unsqueeze(1)


def require_rows(what: str, rows: Any, count: int, units: str, *, owner: str, hint: str) -> None:
    """Refuse an array that does not have ``count`` rows; a feature store has ``num_rows``."""
    is_number = isinstance(rows, Tensor) and rows.ndim == 0
    num_rows = None if is_number else rows.shape[0] if isinstance(rows, Tensor) else rows.num_rows
    if num_rows != count:
        raise InputError(
            f"{what} and {units} differ in number: {'a number without' if is_number else num_rows} rows, "
            f"{count} {units} (in graph '{owner}')",
            hint=hint,
        )
