"""Codec: nested Python state (of optimizers, schedulers, modules) as JSON values plus named tensors.

State dictionaries hold tuples, integer keys, infinities and tensors, which JSON does not have. Each becomes an object
with one key, "$kind", and comes back bit for bit. Tensors go into a flat mapping for safetensors. Nothing is pickled, so
reading a file runs no code of the file.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sagann.errors import CheckpointError

_SPECIAL = "$"
# Plain dictionaries and lists come first: the common case.
_MAPPINGS: dict[str, type] = {"dict": dict, "counter": Counter, "ordered": OrderedDict}
_SEQUENCES: dict[str, Callable[[Iterable[Any]], Any]] = {"tuple": tuple, "deque": deque, "set": set}


def encode(value: Any, tensors: dict[str, Tensor], *, name: str) -> Any:
    """Turn ``value`` into JSON values, and copy its tensors into ``tensors`` under names that begin with ``name``.

    A value that is neither a number, a string, a container nor a tensor is a CheckpointError, which names the value.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Tensor):
        while name in tensors:
            # Two paths may read alike: {"a": {"b": ...}} and {"a.b": ...}, or the keys 1 and "1".
            name += "'"
        # safetensors needs contiguous tensors that share no memory.
        tensors[name] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return {f"{_SPECIAL}tensor": name}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {f"{_SPECIAL}float": str(float(value))}
    if type(value) is list:
        return [encode(item, tensors, name=f"{name}.{at}") for at, item in enumerate(value)]
    for kind, sequence in _SEQUENCES.items():
        if type(value) is sequence:
            items = [encode(item, tensors, name=f"{name}.{at}") for at, item in enumerate(value)]
            return {f"{_SPECIAL}{kind}": items}
    if isinstance(value, dict):
        return _encode_mapping(value, tensors, name)
    raise _unsaved(value, name)


def _encode_mapping(value: dict[Any, Any], tensors: dict[str, Tensor], name: str) -> Any:
    is_plain = type(value) is dict and all(isinstance(key, str) and not key.startswith(_SPECIAL) for key in value)
    if is_plain:
        return {key: encode(item, tensors, name=f"{name}.{key}") for key, item in value.items()}
    # A default factory is a function, which JSON cannot hold: a plain dictionary takes the place of a defaultdict.
    kind = next((kind for kind, mapping in _MAPPINGS.items() if type(value) is mapping), None)
    if kind is None and isinstance(value, defaultdict):
        kind = "dict"
    if kind is None:
        raise _unsaved(value, name)
    pairs = [
        [encode(key, tensors, name=f"{name}.key{at}"), encode(item, tensors, name=f"{name}.{key}")]
        for at, (key, item) in enumerate(value.items())
    ]
    return {f"{_SPECIAL}{kind}": pairs}


def _unsaved(value: object, name: str) -> CheckpointError:
    return CheckpointError(
        "training state cannot be saved",
        value=f"a {type(value).__module__}.{type(value).__qualname__}",
        where=name,
        fix="Use an optimizer, scheduler and model whose state_dict holds tensors, numbers, strings and plain containers of these; "
        "nothing is pickled.",
    )


def decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of :func:`encode`."""
    if isinstance(value, list):
        return [decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    special = next(iter(value)) if len(value) == 1 and next(iter(value)).startswith(_SPECIAL) else None
    if special is None:
        return {key: decode(item, tensors) for key, item in value.items()}
    kind, content = special[len(_SPECIAL) :], value[special]
    if kind == "tensor":
        return tensors[content]
    if kind == "float":
        return float(content)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(item, tensors) for item in content)
    return _MAPPINGS[kind]({decode(key, tensors): decode(item, tensors) for key, item in content})
