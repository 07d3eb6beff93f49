"""The user's lines: which line of a layer or a model runs, or failed."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from functools import lru_cache
from pathlib import Path

import torch

_OURS = (Path(__file__).parents[1] / package for package in ("saga", "compiler", "kernels", "interop", "runtime"))
# With a separator: torch_geometric is none of these.
_NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, *_OURS))


def users_line() -> str:
    """The innermost line of the stack that is the user's: "file:line: code"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return _format_line(frame.f_code.co_filename, frame.f_lineno)


def line_of_error(error: BaseException, otherwise: str = "the layer") -> str:
    """The innermost line of an error that is the user's, or PyG's where all are; ``otherwise`` where there is none."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_USERS)
    ]
    frames = [frame for frame in frames if f"{os.sep}torch_geometric{os.sep}" not in frame.filename] or frames
    return _format_line(frames[-1].filename, frames[-1].lineno or 0) if frames else otherwise


@lru_cache(maxsize=1024)
def _format_line(filename: str, lineno: int) -> str:
    source = linecache.getline(filename, lineno).strip()
    return f"{Path(filename).name}:{lineno}: {source[:100]}"
