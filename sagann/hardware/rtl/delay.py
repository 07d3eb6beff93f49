"""Delay lines."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Signal, Value


def delayed(m: Module, value: Value, cycles: int, *, resets: bool = False) -> Value:
    """A value as it was some clock cycles ago. Only a line that ``resets`` is zero after a reset."""
    if cycles == 0:
        return value
    width = len(value)
    # One wide register: a register for each cycle makes ten times as many lines of Verilog.
    line = Signal(width * cycles, reset_less=not resets)
    m.d.sync += line.eq(Cat(value, line)[: len(line)])
    oldest = line[-width:]
    return oldest.as_signed() if value.shape().signed else oldest
