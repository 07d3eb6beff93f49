"""What the system does where a page of a mapped file is gone: it sends SIGBUS, and by default the process dies at once.

A function in Python cannot help: the instruction that failed would run again and fail again. The compiled handler here does what
a reader can survive: it puts memory in the place of the lost pages and notes that it did. The reader goes on with wrong numbers,
and whoever watches the map looks at the note before the numbers are used.

Only maps that are being watched are mended (:mod:`sagann.storage.whole_files`). Any other SIGBUS goes to the handler that was there
before. The numbers below are those of Linux on 64-bit x86 and ARM.
"""

from __future__ import annotations

import ctypes
import mmap
import signal
from threading import Lock
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from sagann.jit import compiled_callback

# Columns of the table: the addresses of a watched map in whole pages, the word that fills lost pages, and whether there are any.
_BEGIN, _END, _FILL, _LOST = range(4)
_COLUMNS = 4
_MOST_MAPS = 4096
# struct sigaction of the C library: handler, 128 bytes of mask, flags, restorer.
_ACTION_WORDS = 19
_FLAGS_WORD = 17
_SA_SIGINFO, _SA_ONSTACK, _SA_RESTART = 0x4, 0x0800_0000, 0x1000_0000
# Positions in siginfo_t: of the address in words of 64 bits, of the code in words of 32.
_ADDRESS_WORD, _CODE_WORD = 2, 2
_PAGE = mmap.PAGESIZE
_FRESH = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_MAY_MOVE_TO = 3  # MREMAP_MAYMOVE | MREMAP_FIXED
_FAILED = -1
_SIGNAL = int(signal.SIGBUS)

_WORDS = np.zeros(_MOST_MAPS * _COLUMNS + _ACTION_WORDS, np.int64)
"The table, and after it the handler that was there before."
_TABLE = _WORDS[: _MOST_MAPS * _COLUMNS].reshape(_MOST_MAPS, _COLUMNS)
_BEFORE = _WORDS[_MOST_MAPS * _COLUMNS :]
_SYMBOL = "sagann_watched_maps"
binding.add_symbol(_SYMBOL, _WORDS.ctypes.data)

_free = list(reversed(range(_MOST_MAPS)))
_lock = Lock()

_mmap: Any = types.ExternalFunction(
    "mmap", types.intp(types.intp, types.intp, types.intc, types.intc, types.intc, types.intp)
)
_mremap: Any = types.ExternalFunction(
    "mremap", types.intp(types.intp, types.intp, types.intp, types.intc, types.intp)
)
_sigaction: Any = types.ExternalFunction("sigaction", types.intc(types.intc, types.intp, types.intp))
_raise: Any = types.ExternalFunction("raise", types.intc(types.intc))


def _type_address_of_words(context: Any) -> Any:
    """The address of _WORDS, by name: kept machine code is loaded by processes in which it lies elsewhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        known = builder.module.globals.get(_SYMBOL)
        form = ir.ArrayType(ir.IntType(64), len(_WORDS))
        words = known or ir.GlobalVariable(builder.module, form, _SYMBOL)
        return builder.ptrtoint(words, ir.IntType(64))

    return types.intp(), generate


def _type_pointer(context: Any, address: Any) -> Any:
    """The pointer to an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.intp), generate


_address_of_words: Any = intrinsic(_type_address_of_words)
_pointer: Any = intrinsic(_type_pointer)


def _on_bus_error(number, information, context):  # type: ignore[no-untyped-def]
    at = _address_of_words()
    address = carray(information, (_ADDRESS_WORD + 1,), np.int64)[_ADDRESS_WORD]
    table = carray(_pointer(at), (_MOST_MAPS, _COLUMNS), np.int64)
    for slot in range(_MOST_MAPS):
        if table[slot, _BEGIN] <= address < table[slot, _END]:
            lost = address & ~(_PAGE - 1)
            num_bytes = table[slot, _END] - lost
            fresh = _mmap(0, num_bytes, _READ_WRITE, _FRESH, -1, 0)
            if fresh != _FAILED:
                if table[slot, _FILL] != 0:
                    words = carray(_pointer(fresh), (num_bytes >> 3,), np.int64)
                    for position in range(len(words)):
                        words[position] = table[slot, _FILL]
                table[slot, _LOST] = 1
                # In one step, so that no thread finds the pages missing.
                if _mremap(fresh, num_bytes, num_bytes, _MAY_MOVE_TO, lost) != _FAILED:
                    return
    # The instruction runs again, and the handler before takes it. What a process has sent is sent again.
    _sigaction(_SIGNAL, at + _MOST_MAPS * _COLUMNS * 8, 0)
    if carray(information, (_CODE_WORD + 1,), np.int32)[_CODE_WORD] <= 0:
        _raise(_SIGNAL)


_HANDLER: Any = compiled_callback(_on_bus_error, types.void(types.intc, types.voidptr, types.voidptr))


class Watch:
    """Pages that are watched, until :meth:`end`.

    Args:
        begin: address of the first byte of a map.
        end: address after its last byte.
        fill: 64-bit word that takes the place of lost ones.
    """

    def __init__(self, begin: int, end: int, fill: int) -> None:
        first, last = begin & ~(_PAGE - 1), (end + _PAGE - 1) & ~(_PAGE - 1)
        with _lock:
            _install()
            self._row = _TABLE[_free.pop()] if _free else np.zeros(_COLUMNS, np.int64)
            # Another thread may be in the handler: until its end is written, the range is empty.
            self._row[:] = first, 0, fill, 0
            self._row[_END] = last

    def is_lost(self) -> bool:
        """Whether pages were lost, and replaced."""
        return bool(self._row[_LOST])

    def end(self) -> bool:
        """End the watch; whether pages were lost."""
        with _lock:
            is_lost = self.is_lost()
            self._row[_END] = 0
            slot = (self._row.ctypes.data - _TABLE.ctypes.data) // _TABLE.strides[0]
            if 0 <= slot < _MOST_MAPS:
                _free.append(slot)
        return is_lost


def _install() -> None:
    """Make the handler that of the process, unless it is."""
    libc = ctypes.CDLL(None)
    action = np.zeros(_ACTION_WORDS, np.int64)
    libc.sigaction(_SIGNAL, None, ctypes.c_void_p(action.ctypes.data))
    if action[0] == _HANDLER.address:
        return
    _BEFORE[:] = action
    action[:] = 0
    action[0], action[_FLAGS_WORD] = _HANDLER.address, _SA_SIGINFO | _SA_ONSTACK | _SA_RESTART
    libc.sigaction(_SIGNAL, ctypes.c_void_p(action.ctypes.data), None)
