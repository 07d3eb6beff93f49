"""The state of a run as what ``torch.save`` writes of numbers, texts, tensors and plain containers: reading it runs no code."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from sagann.errors import CheckpointError
from sagann.interop.torch_file import load_plain


def pack(state: Mapping[str, Any]) -> bytes:
    """The state as a file. A value that is neither a number, a text, a plain container nor a tensor is a CheckpointError, which names it."""
    file = BytesIO()
    try:
        torch.save({name: _plain(part, name) for name, part in state.items()}, file)
    except RecursionError as error:
        raise _unsaved("containers that lie in each other too deeply", ", ".join(state)) from error
    return file.getvalue()


def unpack(content: bytes) -> dict[str, Any]:
    """The inverse of :func:`pack`; a ValueError says what is wrong with ``content``."""
    state: dict[str, Any] = load_plain(BytesIO(content))
    return state


def _plain(value: Any, name: str) -> Any:
    """A copy without views and classes of other libraries, on the host."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Tensor):
        # Of a view, torch.save would write all that lies behind it.
        return value.detach().as_subclass(Tensor).to("cpu", copy=True, memory_format=torch.contiguous_format)
    if isinstance(value, str):
        return str.__str__(value)
    for number in (int, float):
        if isinstance(value, number):
            return number(value)
    # A default factory is a function.
    kind = dict if isinstance(value, defaultdict) else type(value)
    if kind in (dict, OrderedDict, Counter):
        return kind({_plain(key, f"{name}.key"): _plain(item, f"{name}.{key}") for key, item in value.items()})
    if kind in (list, tuple, set):
        return kind(_plain(item, f"{name}.{at}") for at, item in enumerate(value))
    raise _unsaved(f"a {kind.__module__}.{kind.__qualname__}", name)


def _unsaved(value: str, name: str) -> CheckpointError:
    return CheckpointError(
        f"training state cannot be saved: {value} (in {name})",
        hint="Use an optimizer, scheduler and model whose state_dict holds tensors, numbers, strings and plain containers of these.",
    )
