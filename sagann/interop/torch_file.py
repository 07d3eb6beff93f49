"""Files of ``torch.save``, read by PyTorch's restricted unpickler: nothing in them is run.

What others have allowed for ``torch.load`` in this process, as PyG does when it is imported, is not allowed here: PyG's list has a
class that opens further files.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, BinaryIO

import torch
from torch.serialization import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    get_unsafe_globals_in_checkpoint,
)

from sagann.errors import DatasetError, in_one_line, shown
from sagann.storage.regular_file import reading

_ALLOWED = Lock()
"Held while the list of allowed classes, one of the whole process, is ours."
_HINT = "The file is damaged, truncated, or was not written by torch.save; fetch or make it again."
_AGAIN = "If you trust it, load it with PyTorch, and save it again with torch.save(data.to_dict(), FILE)."


class Saved:
    """Stands for an object of a class that is not imported."""

    state: Any = None
    "What the object was given."

    def __setstate__(self, state: Any) -> None:
        self.state = state


def read_torch_file(
    path: str | os.PathLike[str], allowed: Mapping[str, type[Saved]], *, advice: Mapping[str, str]
) -> Any:
    """Read what ``torch.save`` has written; tensors are mapped from the file.

    Args:
        path: the file.
        allowed: for the classes that it may name beside tensors and plain values, what stands for them.
        advice: what to do about other classes, by how their names begin.
    """
    path = os.fspath(path)
    forbidden: list[str] = []
    with reading(path, what="file of PyTorch", hint=_HINT):
        if not zipfile.is_zipfile(path):
            raise ValueError(f"no zip archive, as PyTorch 1.6 and later write. {_AGAIN}")
        _require_checksums(path)
        with _allowing([dict, defaultdict, *((each, name) for name, each in allowed.items())]):
            forbidden = sorted(get_unsafe_globals_in_checkpoint(path))
            if not forbidden:
                return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    known = [(name, text) for name in forbidden for start, text in advice.items() if name.startswith(start)]
    name, hint = known[0] if known else (forbidden[0], _AGAIN)
    raise DatasetError(
        f"the file names a class or function that is not read: {shown(name)} (in {path})",
        hint=f"To load it could run any code. {hint}",
    )


def load_plain(file: BinaryIO) -> Any:
    """Read what ``torch.save`` has written of tensors, numbers, texts and plain containers."""
    try:
        _require_checksums(file)
        file.seek(0)
        with _allowing([]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(in_one_line(error) if type(error) is not ValueError else str(error)) from error


def _require_checksums(file: str | BinaryIO) -> None:
    """Raise a ValueError where bytes of a zip archive do not match their checksum, which ``torch.load`` does not compare."""
    with zipfile.ZipFile(file) as archive:
        if (damaged := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {shown(damaged)} is not that of its bytes")


@contextmanager
def _allowing(classes: Sequence[Callable[..., Any] | tuple[Callable[..., Any], str]]) -> Iterator[None]:
    """Inside the block, ``torch.load`` makes objects of these classes alone, besides tensors and plain values."""
    with _ALLOWED:
        others = get_safe_globals()
        try:
            clear_safe_globals()
            add_safe_globals([*classes])
            yield
        except pickle.UnpicklingError as error:
            # PyTorch's text advises to run what the file says.
            text = str(error).rpartition("WeightsUnpickler error:")[2].partition(". Please use")[0].strip()
            raise ValueError(text or "damaged pickle") from None
        finally:
            clear_safe_globals()
            add_safe_globals(others)
