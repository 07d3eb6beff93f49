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
_NOT_FINITE = ("nan", "inf", "-inf")
_MOST_LEVELS = 30
"Largest number of containers in each other. Each is written as up to three, and JSON is read up to MOST_LEVELS of :mod:`sagann.documents`."


def encode(value: Any, tensors: dict[str, Tensor], *, name: str, level: int = 0) -> Any:
    """Turn ``value`` into JSON values, and copy its tensors into ``tensors`` under names that begin with ``name``.

    A value that is neither a number, a string, a container nor a tensor is a CheckpointError, which names the value; so is one in more than
    30 containers, of which ``level`` lie around ``value``.
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
    if level == _MOST_LEVELS:
        raise _unsaved(f"nested in more than {_MOST_LEVELS} containers", name)
    if type(value) is list:
        return [encode(item, tensors, name=f"{name}.{at}", level=level + 1) for at, item in enumerate(value)]
    for kind, sequence in _SEQUENCES.items():
        if type(value) is sequence:
            items = [encode(item, tensors, name=f"{name}.{at}", level=level + 1) for at, item in enumerate(value)]
            return {f"{_SPECIAL}{kind}": items}
    if isinstance(value, dict):
        return _encode_mapping(value, tensors, name, level + 1)
    raise _unsaved(_kind(value), name)


def _encode_mapping(value: dict[Any, Any], tensors: dict[str, Tensor], name: str, level: int) -> Any:
    is_plain = type(value) is dict and all(isinstance(key, str) and not key.startswith(_SPECIAL) for key in value)
    if is_plain:
        return {key: encode(item, tensors, name=f"{name}.{key}", level=level) for key, item in value.items()}
    # A default factory is a function, which JSON cannot hold: a plain dictionary takes the place of a defaultdict.
    kind = next((kind for kind, mapping in _MAPPINGS.items() if type(value) is mapping), None)
    if kind is None and isinstance(value, defaultdict):
        kind = "dict"
    if kind is None:
        raise _unsaved(_kind(value), name)
    pairs = [
        [
            encode(key, tensors, name=f"{name}.key{at}", level=level),
            encode(item, tensors, name=f"{name}.{key}", level=level),
        ]
        for at, (key, item) in enumerate(value.items())
    ]
    return {f"{_SPECIAL}{kind}": pairs}


def _kind(value: object) -> str:
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _unsaved(value: str, name: str) -> CheckpointError:
    return CheckpointError(
        "training state cannot be saved",
        value=value,
        where=name,
        fix="Use an optimizer, scheduler and model whose state_dict holds tensors, numbers, strings and plain containers of these; "
        "nothing is pickled.",
    )


class Decoder:
    """The inverse of :func:`encode`, over the tensors of one file.

    What :func:`encode` cannot have written is a ValueError that names the entry: a tensor that stands under another name
    than its own, a kind that is not known, a float that is not finite, keys that are equal.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._taken: set[str] = set()

    def decode(self, value: Any, *, name: str) -> Any:
        """The value of JSON values that were written under ``name``."""
        if isinstance(value, list):
            return self._items(value, name)
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, which JSON does not have")
        if not isinstance(value, dict):
            return value
        special = [key for key in value if key.startswith(_SPECIAL)]
        if not special:
            return {key: self.decode(item, name=f"{name}.{key}") for key, item in value.items()}
        kind, content = special[0].removeprefix(_SPECIAL), value[special[0]]
        found: Any
        if kind == "tensor":
            found = self._tensor(content, name)
        elif kind == "float" and content in _NOT_FINITE:
            found = float(content)
        elif kind in _SEQUENCES and isinstance(content, list):
            found = self._made(_SEQUENCES[kind], self._items(content, name), name)
        elif kind in _MAPPINGS and isinstance(content, list):
            # A Counter would count the pairs.
            found = _MAPPINGS[kind](self._made(dict, self._pairs(content, name), name))
        else:
            raise ValueError(f"{name} is {value!r:.80}, which is no value of a checkpoint")
        if len(value) > 1:
            raise ValueError(f"{name} has keys beside '{special[0]}'")
        return found

    def require_all_taken(self) -> None:
        """Raise a ValueError where a tensor is left that no entry has named."""
        left = sorted(self._tensors.keys() - self._taken)
        if left:
            raise ValueError(f"tensor '{left[0]}' belongs to no entry")

    def _items(self, content: list[Any], name: str) -> list[Any]:
        return [self.decode(item, name=f"{name}.{at}") for at, item in enumerate(content)]

    def _pairs(self, content: list[Any], name: str) -> list[tuple[Any, Any]]:
        pairs = []
        for at, pair in enumerate(content):
            if not isinstance(pair, list) or len(pair) != 2:
                raise ValueError(f"{name}.key{at} is {pair!r:.80}, expected a key and a value")
            key = self.decode(pair[0], name=f"{name}.key{at}")
            pairs.append((key, self.decode(pair[1], name=f"{name}.{key}")))
        return pairs

    def _made(self, kind: Callable[[Any], Any], content: list[Any], name: str) -> Any:
        try:
            made = kind(content)
        except TypeError as error:
            raise ValueError(f"{name}: {error}") from error
        if len(made) != len(content):
            raise ValueError(f"{name} has keys that are equal")
        return made

    def _tensor(self, content: Any, name: str) -> Tensor:
        while name in self._taken:
            name += "'"
        if content != name or name not in self._tensors:
            raise ValueError(f"{name} is tensor {content!r:.80}, expected tensor '{name}'")
        self._taken.add(name)
        return self._tensors[name]
