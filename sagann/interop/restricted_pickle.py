"""Restricted pickles: a pickle is read as plain data, and whatever it names is refused unless it is on the caller's list.

A pickle is a program for a small stack machine. Python's machine imports what the program names, and calls it; the machine here
imports nothing and calls nothing. First the whole program is looked through, before anything is made: each instruction must be one
that ``torch.save`` writes, and each class or function that it names (a *global*) must be listed. Then it runs. Where the program
makes an object, or calls a function, a :class:`Made` notes what it was made of; the caller decides what that means.

References:
    CPython, Lib/pickletools.py: the instructions, and what each does to the stack.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from sagann.errors import shown

MOST_BYTES = 16 * 2**20
"Largest pickle that is read. The arrays of a file lie beside its pickle, which has names and shapes alone."
MOST_INSTRUCTIONS = 10**6
"Largest number of instructions of a pickle; a file of PyG has some hundred."
STORED = "stored"
"What a Made is made from that stands for something beside the pickle, such as an array: its arguments say which."


class ForbiddenGlobalError(ValueError):
    """A pickle names a class or function that is not listed."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"it names {shown(name)}")


@dataclass(slots=True)
class Global:
    """A class or function that a pickle names; nothing is imported."""

    name: str
    "Module and name, with a dot between them."


@dataclass(slots=True, eq=False, repr=False)
class Made:
    """An object that a pickle makes, as the record of how."""

    of: str
    "The class or function, module and name; or STORED."
    args: tuple[Any, ...]
    "Arguments of the call that the pickle asks for."
    state: Any = None
    "State that the object is given afterwards."
    items: dict[str | int, Any] = field(default_factory=dict)
    "Items that are put into the object, if it is a mapping."


def read_pickle(content: bytes, listed: Collection[str]) -> Any:
    """Read a pickle that names nothing but what is ``listed``.

    Args:
        content: the pickle, to its last byte.
        listed: names of classes and functions, as "collections.OrderedDict".
    Returns:
        numbers, strings, bytes, None, lists, tuples and dicts of these; and :class:`Global` and :class:`Made`.
    Raises:
        ForbiddenGlobalError: a global is not listed.
        ValueError: the content is damaged, has another form than that of ``torch.save``, or is too large.
    Example:
        >>> import collections, pickle
        >>> content = pickle.dumps({"a": [1, collections.OrderedDict()]}, protocol=2)
        >>> read_pickle(content, ["collections.OrderedDict"])["a"][1].of
        'collections.OrderedDict'
        >>> read_pickle(pickle.dumps(print, protocol=2), [])
        Traceback (most recent call last):
        ...
        sagann.interop.restricted_pickle.ForbiddenGlobalError: it names '__builtin__.print'
    """
    if len(content) > MOST_BYTES:
        raise ValueError(f"a pickle of {len(content)} bytes, at most {MOST_BYTES} are read")
    with warnings.catch_warnings():
        # The parser of names warns of strange ones, before they are refused.
        warnings.simplefilter("ignore")
        _look_through(content, listed)
        machine = _Machine()
        for name, argument, _ in _instructions(content):
            machine.step(name, argument)
    return machine.result


def _instructions(content: bytes) -> Iterator[tuple[str, Any, int]]:
    """Name, argument and position of each instruction; a ValueError for a damaged pickle."""
    try:
        for operation, argument, position in pickletools.genops(content):
            yield operation.name, argument, position or 0
    # Errors of the parsers of arguments: a text that is none, a length beyond the end, a number that is none.
    except (ValueError, EOFError, IndexError, OverflowError, MemoryError) as error:
        raise ValueError(f"damaged pickle: {error}") from error


def _look_through(content: bytes, listed: Collection[str]) -> None:
    """Refuse a pickle with an instruction or a global that is not known, before anything is made of it."""
    name, end = "", 0
    for number, (name, argument, position) in enumerate(_instructions(content)):
        if number == MOST_INSTRUCTIONS:
            raise ValueError(f"a pickle of more than {MOST_INSTRUCTIONS} instructions")
        if name == "GLOBAL" and _dotted(argument) not in listed:
            raise ForbiddenGlobalError(_dotted(argument))
        if name not in _STEPS:
            raise ValueError(f"instruction {name} at byte {position}, which torch.save does not write by default")
        end = position + 1
    if end != len(content):
        raise ValueError(f"{len(content) - end} bytes after the end of the pickle")


def _dotted(argument: str) -> str:
    """Module and name with a dot between. A pickle has a line for each, of which pickletools makes one with a space between."""
    return argument.replace(" ", ".", 1)


class _Machine:
    """The stack machine. An instruction that finds something else on the stack than it needs is a ValueError."""

    def __init__(self) -> None:
        self.result: Any = None
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []
        "Stacks below each mark."
        self._memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Run one instruction."""
        try:
            _STEPS[name](self, argument)
        except (IndexError, KeyError) as error:
            raise ValueError(f"damaged pickle: {name} finds too little to work with") from error

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def mark(self, _: Any) -> None:
        self._below.append(self._stack)
        self._stack = []

    def to_mark(self) -> list[Any]:
        """Take what lies above the last mark, and the mark."""
        above, self._stack = self._stack, self._below.pop()
        return above

    def pop(self, _: Any) -> None:
        self._stack.pop()

    def pop_mark(self, _: Any) -> None:
        self.to_mark()

    def put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def get(self, number: int) -> None:
        self.push(self._memo[number])

    def stop(self, _: Any) -> None:
        self.result = self._stack.pop()

    def make_tuple(self, count: int) -> None:
        """A tuple of the last ``count`` values; of all above the mark where that is -1."""
        values = self.to_mark() if count < 0 else [self._stack.pop() for _ in range(count)][::-1]
        self.push(tuple(values))

    def append(self, values: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list:
            raise ValueError(f"damaged pickle: values are appended to a {type(target).__name__}")
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self._stack[-1]
        items = target.items if isinstance(target, Made) else target
        if type(items) is not dict or len(values) % 2:
            raise ValueError(f"damaged pickle: items are set in a {type(target).__name__}")
        for key, value in zip(values[::2], values[1::2], strict=True):
            # Other keys are not needed, and the hash of tuples within tuples takes for ever.
            if type(key) not in (str, int):
                raise ValueError(f"a mapping with a {type(key).__name__} as a key, expected names")
            items[key] = value

    def make(self, _: Any) -> None:
        """Note what a class or function is called with."""
        args, function = self._stack.pop(), self._stack.pop()
        if not isinstance(function, Global) or type(args) is not tuple:
            raise ValueError("damaged pickle: something is called that is no class or function")
        self.push(Made(function.name, args))

    def build(self, _: Any) -> None:
        """Give an object its state."""
        state, target = self._stack.pop(), self._stack[-1]
        if not isinstance(target, Made):
            raise ValueError(f"damaged pickle: a {type(target).__name__} is given a state")
        target.state = state

    def stored(self, _: Any) -> None:
        """Something that lies beside the pickle."""
        key = self._stack.pop()
        self.push(Made(STORED, key if type(key) is tuple else (key,)))


_Step = Callable[[_Machine, Any], None]
_STEPS: dict[str, _Step] = {
    **dict.fromkeys(("PROTO",), lambda machine, _: None),
    **dict.fromkeys(
        ("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "NONE", "NEWTRUE", "NEWFALSE"),
        _Machine.push,
    ),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "TUPLE1": lambda machine, _: machine.make_tuple(1),
    "TUPLE2": lambda machine, _: machine.make_tuple(2),
    "TUPLE3": lambda machine, _: machine.make_tuple(3),
    "TUPLE": lambda machine, _: machine.make_tuple(-1),
    "MARK": _Machine.mark,
    "POP": _Machine.pop,
    "POP_MARK": _Machine.pop_mark,
    "BINPUT": _Machine.put,
    "LONG_BINPUT": _Machine.put,
    "BINGET": _Machine.get,
    "LONG_BINGET": _Machine.get,
    "APPEND": lambda machine, _: machine.append([machine._stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.to_mark()),
    "SETITEM": lambda machine, _: machine.set_items([machine._stack.pop(-2), machine._stack.pop()]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.to_mark()),
    "GLOBAL": lambda machine, name: machine.push(Global(_dotted(name))),
    "REDUCE": _Machine.make,
    "NEWOBJ": _Machine.make,
    "BUILD": _Machine.build,
    "BINPERSID": _Machine.stored,
    "STOP": _Machine.stop,
}
"""Each instruction that is obeyed, with what it does."""
