"""Batches: what the batches of vertices, of links and of graphs have in common.

A batch depends on the arguments, the number of its epoch and its own number alone. So a loop may start at any batch of any epoch, and the
number of threads does not matter.

Threads suffice, where PyTorch's DataLoader starts processes: sampling and loading run without Python's lock for nearly all of the time.
So nothing is pickled, and graph and features are in memory once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NoReturn, TypeVar

import torch
from torch import Tensor

from sagann.errors import InputError, require_type
from sagann.graph import Answers, Graph
from sagann.graph.checks import require_distinct, wrong_form
from sagann.graph.feature_store import feature_store, require_no_gradient
from sagann.graph.rows import row_arrays
from sagann.ranges import require_integer
from sagann.runtime.loading.pipeline import Pipeline, Size, Stage
from sagann.runtime.processor import num_cores
from sagann.runtime.team import SOLO, Team
from sagann.sampling.arguments import as_ids
from sagann.sampling.batches import cut_seeds
from sagann.storage.mapped import is_at_hand

B = TypeVar("B")

AHEAD = 4
"Number of batches that are made ahead, where that gains time."
# With so few cores, a training step keeps them all busy, and threads beside it delay it by more than they make.
_FEW_CORES = 2


class Batches(ABC, Generic[B]):
    """An iterable that has new batches in every epoch: ``for batch in batches`` goes through the next one, the first time through epoch 0.

    Batches are cut from ``items``, whose name in errors is ``units``; other arguments are those of
    :class:`sagann.runtime.loading.MiniBatches`.
    """

    def __init__(
        self,
        graph: Graph,
        items: Tensor,
        units: str,
        *,
        batch_size: int,
        shuffle: bool,
        seed: int,
        drop_last: bool,
        ahead: int | None,
        device: torch.device,
    ) -> None:
        kind = type(self).__name__
        if ahead is None:
            ahead = useful_ahead(graph, device)
        for name, value in (("batch_size", batch_size), ("ahead", ahead), ("seed", seed)):
            require_integer(value, name, where=f"{kind}.{name}")
        for name, flag in (("shuffle", shuffle), ("drop_last", drop_last)):
            require_type(flag, bool, where=f"{kind}.{name}", hint="Pass True or False.")
        self.graph = graph
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        # Where edge data learn, a batch must have the numbers that the optimizer's last step leaves.
        learns = any(rows.requires_grad for rows in graph.topology.edge_data.values())
        self.ahead = 0 if learns else ahead
        self.team: Team = SOLO
        "The processes that divide every batch among them; this one makes its share."
        self.is_exchanged = False
        "Whether the processes make a batch together: then all have the same ``ahead``, and finish batches that they have begun."
        self._features = None if graph.features is None else feature_store(graph.features)
        self._items = items
        self._next_epoch = 0
        if not len(self):
            raise InputError(
                f"an epoch has no batch: {len(items)} {units}, batch_size {batch_size} (in {kind}.{units})",
                hint="Leave drop_last out, or lower batch_size."
                if len(items)
                else f"Pass at least one {units.removesuffix('s')}.",
            )

    def __len__(self) -> int:
        whole, rest = divmod(len(self._items), self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Have the next loop go through this epoch."""
        require_integer(epoch, "epoch", where=f"{type(self).__name__}.set_epoch")
        self._next_epoch = epoch

    def __getitem__(self, number: object) -> NoReturn:
        """Refuse to be indexed, as PyTorch's DataLoader does with a data set."""
        kind = type(self).__name__
        raise InputError(
            "batches are not rows of a data set: a batch was asked for by its number, as "
            f"torch.utils.data.DataLoader does (in {kind})",
            hint=f"Leave the DataLoader out, and write `for batch in batches: ...`: {kind} makes the batches of a new epoch each time, ahead of the "
            "loop, on threads of its own (threads=, ahead=).",
        )

    def __iter__(self) -> Iterator[B]:
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return self.batches(epoch)

    def batches(self, epoch: int, *, first: int = 0) -> Pipeline[B]:
        """The batches of an epoch from a given one on: ``first`` is the number of batches that are done already.

        The result is an iterator with ``counters`` of its stages and ``close``.
        """
        where = f"{type(self).__name__}.batches"
        require_integer(epoch, "epoch", where=f"{where}, epoch")
        require_integer(first, "batch", where=f"{where}, first")
        if first > len(self):
            raise InputError(
                f"the epoch has fewer batches: first is {first}, there are {len(self)} (in {where})",
                hint="Start with a batch of the epoch, or with the next epoch.",
            )
        stages, receive = self.stages(epoch)
        numbers, item = range(first, len(self)), f"epoch {epoch}, batch"
        ahead = self.ahead + self.window
        return Pipeline(numbers, stages, ahead=ahead, item=item, receive=receive, drains=self.is_exchanged)

    @property
    def window(self) -> int:
        """Number of batches that pass the first stages ahead of those that are loaded."""
        return 0

    def items_of(self, epoch: int) -> Sequence[Tensor]:
        """The items of each batch of an epoch, of all processes together, int64."""
        return cut_seeds(
            self._items,
            self.batch_size,
            shuffle=self.shuffle,
            seed=self.seed,
            epoch=epoch,
            drop_last=self.drop_last,
        )

    def num_items(self, number: int) -> int:
        """Number of items of a batch of an epoch, of all processes together."""
        return min(self.batch_size, len(self._items) - number * self.batch_size)

    def share(self, number: int) -> float:
        """The part of a batch that is this process's, from 0 to 1."""
        count = self.num_items(number)
        own = self.team.share_of(count)
        return (own.stop - own.start) / count

    @abstractmethod
    def stages(self, epoch: int) -> tuple[tuple[Stage, ...], Callable[[Any], B]]:
        """What makes the batches of an epoch: the stages, and what makes a batch of the last one's result on the thread that trains."""


def useful_ahead(graph: Graph, device: torch.device) -> int:
    """How many batches to make ahead: :data:`AHEAD`, or 0 where that would only take cores from the training step.

    That is on a processor of one or two cores, if no thread waits for a disk or a device: all arrays that batches are made of are
    in memory or in the page cache.
    """
    if device.type != "cpu" or num_cores() > _FEW_CORES:
        return AHEAD
    arrays = [graph.topology.indptr, graph.topology.indices, graph.features]
    return 0 if all(array is None or is_at_hand(array) for array in arrays) else AHEAD


def require_graph(graph: object, kind: str) -> None:
    """Refuse what no batches are made of: no graph, or features that require a gradient."""
    require_type(
        graph, Graph, where=f"{kind}.graph", hint="Open it with sagann.load_graph, or make a sagann.Graph."
    )
    assert isinstance(graph, Graph)
    require_no_gradient(graph.features, where=f"{kind}.graph, features")


def chosen(answers: Answers, wanted: str | Tensor | Sequence[int], *, where: str) -> Tensor:
    """Ids of vertices, or of graphs, int64 [n]: those of a split whose answers are known, those of a mask, or distinct ids."""
    unit = answers.unit
    if isinstance(wanted, str):
        if wanted not in answers.splits:
            raise InputError(
                f"the {answers.units} have no such split: '{wanted}', there are "
                f"{', '.join(answers.splits) or 'none'} (in {where})",
                hint=f"Name a split of the {answers.units}, or pass a mask or ids; random_split and random_graph_split make splits.",
            )
        return answers.known(answers.splits[wanted])
    wanted = as_ids(wanted, where=where)
    if wanted.dtype == torch.bool:
        if wanted.shape != (answers.count,):
            expected = f"torch.bool [{answers.count}]"
            raise wrong_form(wanted, expected, where=where, hint=f"Pass a mask with a value for each {unit}.")
        return wanted.nonzero().squeeze(1)
    require_distinct(wanted, answers.count, where=where, unit=unit)
    return wanted


def size_of_rows(rows: Tensor | None, count: int) -> Size:
    """The size of a batch with so many rows of features."""
    return Size(rows=count, num_bytes=0 if rows is None else sum(part.nbytes for part in row_arrays(rows)))
