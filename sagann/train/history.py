"""History: the epochs of a run as rows, which plot themselves and become a table of pandas."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, overload

from sagann.did_you_mean import closest
from sagann.errors import InputError, MissingDependencyError, require_type, shown
from sagann.storage.picture import new_figure, write_figure
from sagann.train.reporter import EpochRecord

_DASHES = {"val": "--", "test": ":"}
"Lines of the splits that a model is not trained on."


class History(Sequence[EpochRecord]):
    """The epochs of a run: their records. By the name of a value in their lines of metrics.jsonl, as ``history["loss"]``, the values of all epochs.

    Metrics have names such as 'val/accuracy', and are absent where the epoch was not evaluated.

    Args:
        records: the epochs, in order. A list that grows is a history that grows.

    Example:
        >>> record = EpochRecord(epoch=1, loss=0.5, epoch_s=0.1, lr=0.01, metrics={"val": {"accuracy": 0.75}})
        >>> history = History([record])
        >>> history[-1]["val/accuracy"], history[-1].loss, history["loss"]
        (0.75, 0.5, [0.5])
        >>> history
        History(1 epoch: loss, epoch_s, lr, num_edges, val/accuracy)
    """

    def __init__(self, records: Sequence[EpochRecord]) -> None:
        self._records = records

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and list(self) == list(other)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> EpochRecord: ...
    @overload
    def __getitem__(self, index: slice) -> History: ...
    @overload
    def __getitem__(self, index: str) -> list[Any]: ...
    def __getitem__(self, index: int | slice | str) -> EpochRecord | History | list[Any]:
        """An epoch, some of them, or the values of a name, with None for an epoch that has none.

        Raises:
            InputError: no epoch has a value of that name.
        """
        if isinstance(index, int):
            return self._records[index]
        if isinstance(index, slice):
            return History(self._records[index])
        rows = self.rows()
        names = dict.fromkeys(name for row in rows for name in row)
        if index not in names:
            raise InputError(
                f"no epoch has a value of that name: {shown(index)} (in history)",
                hint=closest(index, names) if names else "Call fit first: no epoch has ended.",
            )
        return [row.get(index) for row in rows]

    def rows(self) -> list[dict[str, Any]]:
        """A dict for each epoch, of the values that its line of metrics.jsonl has."""
        return [record.to_json() for record in self._records]

    def __repr__(self) -> str:
        names = ", ".join(_names(self.rows()))
        noun = "epoch" if len(self) == 1 else "epochs"
        return f"History({len(self)} {noun}{': ' if names else ''}{names})"

    def to_pandas(self) -> Any:
        """A DataFrame of pandas with a row for each epoch and a column for each value; the index is the epoch's number.

        Raises:
            MissingDependencyError: pandas is not installed. ``history.rows()`` is the same table without it.
        """
        if find_spec("pandas") is None:
            raise MissingDependencyError("pandas", extra="pandas", feature="History.to_pandas")
        import pandas

        rows = self.rows()
        return pandas.DataFrame(rows, columns=["epoch", *_names(rows)]).set_index("epoch")

    def plot(self, target: Any = None) -> Any:
        """Draw the losses over the epochs, and the other metrics on an axis of their own.

        Args:
            target: path of a PNG file to write, or Axes of matplotlib to draw into. None makes a new figure, which a notebook shows.
        Returns:
            the figure of matplotlib.
        Raises:
            InputError: there is no epoch yet, or ``target`` is something else.
            MissingDependencyError: matplotlib is not installed.
        """
        rows = self.rows()
        if not rows:
            raise InputError(
                "there is nothing to draw: no epoch has ended (in History.plot)", hint="Call fit first."
            )
        is_axes = hasattr(target, "twinx")
        if not is_axes:
            hint = "Pass a path of a PNG file, or axes, as those of plt.subplots()."
            require_type(target, (str, os.PathLike), where="History.plot", hint=hint, optional=True)
        axes = target if is_axes else new_figure(7, 4, feature="a picture of a history").subplots()
        _draw(axes, rows)
        if target is not None and not is_axes:
            write_figure(Path(target), axes.figure)
        return axes.figure


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the values, in the order in which they come first; the epoch's number is not among them."""
    return [name for name in dict.fromkeys(name for row in rows for name in row) if name != "epoch"]


def _draw(axes: Any, rows: Sequence[dict[str, Any]]) -> None:
    names = ["loss", *(name for name in _names(rows) if "/" in name)]
    scores = [name for name in names if not name.endswith("loss")]
    of_scores = axes.twinx() if scores else axes
    for number, name in enumerate(names):
        split = name.rpartition("/")[0]
        points = [(row["epoch"], row[name]) for row in rows if name in row]
        style = {"linestyle": _DASHES.get(split, "-"), "color": f"C{number}", "label": name}
        # One epoch is a point, which a line does not show.
        marker = "." if len(points) == 1 else ""
        (of_scores if name in scores else axes).plot(*zip(*points, strict=True), marker=marker, **style)
    axes.set(xlabel="epoch", ylabel="loss")
    lines = [*axes.get_lines()]
    if scores:
        of_scores.set_ylabel(", ".join(dict.fromkeys(name.rpartition("/")[2] for name in scores)))
        lines += of_scores.get_lines()
    # Above the picture, because lines of two axes leave no free corner.
    axes.legend(handles=lines, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, fontsize=8, frameon=False)
