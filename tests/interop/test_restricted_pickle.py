"""Pickles as data: plain ones are read as Python reads them; nothing that one names is imported or called."""

from __future__ import annotations

import collections
import os
import pickle
import pickletools
import random
import struct
from typing import Any

import pytest

from sagann.interop.restricted_pickle import STORED, ForbiddenGlobalError, Global, Made, read_pickle

LISTED = ("collections.OrderedDict", "fractions.Fraction")


def dumped(value: Any) -> bytes:
    return pickle.dumps(value, protocol=2)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        [],
        {},
        (),
        0,
        -1,
        255,
        65535,
        -(2**31),
        2**40,
        -(2**70),
        10**700,
        1.5,
        float("inf"),
        "",
        "ä\n\x1b[31m",
        "x" * 70000,
        (1,),
        (1, 2),
        (1, 2, 3),
        (1, 2, 3, 4),
        [1, [2, [3, "a"]]],
        {"a": {"b": (1, None)}, 3: [False]},
        list(range(3000)),
        {str(n): n for n in range(3000)},
    ],
    ids=lambda value: f"{value!r:.20}",
)
def test_plain_values_are_those_of_python(value: Any) -> None:
    assert read_pickle(dumped(value), []) == value


def test_what_is_shared_stays_shared() -> None:
    inner: list[Any] = [1]
    outer = read_pickle(dumped([inner, inner]), [])
    assert outer[0] is outer[1]
    inner.append(inner)
    circle = read_pickle(dumped(inner), [])
    assert circle[1] is circle
    pair: list[Any] = []
    pair.append((1, pair))
    again = read_pickle(dumped(pair), [])
    assert again[0][1] is again


class Plain:
    """An object of a class; its module's name is in the pickle."""


def test_objects_are_records_of_how_they_are_made() -> None:
    ordered = read_pickle(dumped(collections.OrderedDict(a=1)), LISTED)
    assert isinstance(ordered, Made)
    assert (ordered.of, ordered.args, ordered.items) == ("collections.OrderedDict", (), {"a": 1})
    plain = Plain()
    plain.a = 3  # type: ignore[attr-defined]
    name = f"{Plain.__module__}.Plain"
    made = read_pickle(dumped(plain), [name])
    assert (made.of, made.args, made.state) == (name, (), {"a": 3})
    assert read_pickle(dumped(Plain), [name]) == Global(name)


def test_what_is_stored_beside_the_pickle_is_named_by_its_key() -> None:
    assert read_pickle(b"\x80\x02K\x05Q.", []).args == (5,)
    assert read_pickle(b"\x80\x02K\x05K\x06\x86Q.", []).of == STORED


class Call:
    """A pickle that calls a function where Python loads it."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.args


TOUCH = ("touch owned",)
HOSTILE = {
    "os.system": (Call(os.system, *TOUCH), "posix.system"),
    "nested in data": ({"x": [1, ({"y": Call(os.system, *TOUCH)},)]}, "posix.system"),
    "in an object's state": (collections.OrderedDict(a=Call(os.system, *TOUCH)), "posix.system"),
    "eval": (Call(eval, "open('owned', 'w')"), "__builtin__.eval"),
    "exec": (Call(exec, "open('owned', 'w')"), "__builtin__.exec"),
    "getattr": (Call(getattr, "", "join"), "__builtin__.getattr"),
    "pickle in a pickle": (Call(pickle.loads, dumped(Call(os.system, *TOUCH))), "pickle.loads"),
    "a class": (Call(os._Environ, {}, 1, 2, 3, 4), "os._Environ"),
    "bytes": (b"abc", "_codecs.encode"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_listed_is_refused_by_name(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    value, named = HOSTILE[name]
    with pytest.raises(ForbiddenGlobalError) as refused:
        read_pickle(dumped(value), LISTED)
    assert refused.value.name == named
    assert not list(tmp_path.iterdir())


def test_a_listed_class_is_not_called_either() -> None:
    """A class whose constructor acts: the machine notes the call, and makes it not."""
    made = read_pickle(dumped(Call(os.system, "touch owned")), ["posix.system"])
    assert (made.of, made.args) == ("posix.system", ("touch owned",))
    assert not os.path.exists("owned")


def test_globals_are_looked_through_before_anything_is_made() -> None:
    """A forbidden name after the end of what a reader would use, and one in an instruction that is dropped."""
    with pytest.raises(ForbiddenGlobalError, match=r"it names 'os\.system'"):
        read_pickle(b"\x80\x02cos\nsystem\n0K\x01.", LISTED)


@pytest.mark.parametrize("protocol", [0, 4, 5])
def test_another_protocol_is_refused(protocol: int) -> None:
    with pytest.raises(ValueError, match=r"which torch\.save does not write by default|damaged|names"):
        read_pickle(pickle.dumps(["a", 1, {"b": 2}], protocol=protocol), [])


def test_every_other_instruction_is_refused() -> None:
    """Instructions that import by another way (INST, OBJ, EXT1, STACK_GLOBAL) among them."""
    from sagann.interop.restricted_pickle import _STEPS

    refused = {operation.name for operation in pickletools.opcodes} - set(_STEPS)
    assert {"INST", "OBJ", "EXT1", "EXT2", "EXT4", "STACK_GLOBAL", "NEWOBJ_EX", "PERSID", "NEXT_BUFFER"} <= refused
    for content in (
        b"(ios\nsystem\n.",
        b"(cos\nsystem\no.",
        b"\x82\x01.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    ):
        with pytest.raises(ValueError, match=r"instruction|names"):
            read_pickle(content, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged pickle"),
        (b"\x80\x02", "damaged pickle"),
        (b"\x80\x02.", "STOP finds too little"),
        (b"\x80\x02K\x01.garbage", "7 bytes after the end"),
        (b"\x80\x02X\xff\xff\xff\xffab.", "damaged pickle"),
        (b"\x80\x02X\xff\xff\xff\x7fab.", "damaged pickle"),
        (b"\x80\x02\x8b\xff\xff\xff\x7fab.", "damaged pickle"),
        (b"\x80\x02\x8b\xff\xff\xff\xffab.", "damaged pickle"),
        (b"\x80\x02X\x02\x00\x00\x00\xff\xff.", "damaged pickle"),
        (b"\x80\x02j\xff\xff\xff\x7f.", "LONG_BINGET finds too little"),
        (b"\x80\x02K\x01t.", "TUPLE finds too little"),
        (b"\x80\x02K\x01K\x02a.", "appended to a int"),
        (b"\x80\x02K\x01K\x02K\x03s.", "items are set in a int"),
        (b"\x80\x02}(K\x01u.", "items are set in a dict"),
        (b"\x80\x02K\x01K\x02R.", "something is called"),
        (b"\x80\x02K\x01)\x81.", "something is called"),
        (b"\x80\x02K\x01}b.", "a int is given a state"),
        (b"\x80\x02})K\x01s.", "a mapping with a tuple as a key"),
    ],
)
def test_damaged_pickles_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_pickle(content, LISTED)


def test_a_number_of_a_place_to_remember_takes_no_memory() -> None:
    assert read_pickle(b"\x80\x02K\x07r" + struct.pack("<I", 2**32 - 1) + b".", []) == 7


def test_what_grows_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tuples of tuples of tuples: small, and of 2^60 numbers. As a key, its hash would take for ever.
    bomb = b")q\x000" + b"h\x00h\x00\x86q\x000" * 60 + b"h\x00"
    value = read_pickle(b"\x80\x02" + bomb + b".", [])
    assert type(value) is tuple
    with pytest.raises(ValueError, match="a tuple as a key"):
        read_pickle(b"\x80\x02}" + bomb + b"K\x01s.", [])
    monkeypatch.setattr("sagann.interop.restricted_pickle.MOST_INSTRUCTIONS", 100)
    with pytest.raises(ValueError, match="more than 100 instructions"):
        read_pickle(dumped(list(range(1000))), [])
    monkeypatch.setattr("sagann.interop.restricted_pickle.MOST_BYTES", 100)
    with pytest.raises(ValueError, match="at most 100 are read"):
        read_pickle(dumped("x" * 1000), [])


def test_mutated_pickles_are_read_or_refused() -> None:
    draw = random.Random(0)
    sound = dumped({"a": [1, 2.5, "b", (None, True)], "c": collections.OrderedDict(x=2**70)})
    kept = 0
    for _ in range(3000):
        content = bytearray(sound)
        for _ in range(draw.randint(1, 3)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        del content[draw.choice([len(content), draw.randrange(len(content))]) :]
        try:
            read_pickle(bytes(content), LISTED)
            kept += 1
        except ValueError:
            pass
    assert 0 < kept < 3000
