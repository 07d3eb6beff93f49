"""TensorBoard events of a run (extra 'tensorboard')."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sagann.errors import MissingDependencyError
from sagann.train.reporter import EpochRecord, RunInfo, TrainResult

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def require_tensorboard() -> None:
    """Fail early where the package is missing.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """
    if find_spec("tensorboard") is None:
        raise MissingDependencyError("tensorboard", extra="tensorboard", feature="TrainConfig.tensorboard")


class TensorBoardReporter:
    """Writes loss, learning rate, epoch time and metrics of every epoch as scalars.

    Args:
        path: folder of the events.
    """

    def __init__(self, path: Path) -> None:
        require_tensorboard()
        self._path = path
        self._writer: SummaryWriter | None = None

    def on_start(self, info: RunInfo) -> None:
        """Open the events; those of epochs that a resume runs again are hidden."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._path), purge_step=info.first_epoch)

    def on_epoch(self, record: EpochRecord) -> None:
        """Write one epoch."""
        assert self._writer is not None
        for name, value in record.to_json().items():
            if name != "epoch":
                self._writer.add_scalar(name if "/" in name else f"run/{name}", value, record.epoch)

    def on_end(self, result: TrainResult) -> None:
        """Write what is left."""
        self.close()

    def on_message(self, text: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the events file; may be called again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
