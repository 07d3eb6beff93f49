"""Float32 operators, bit for bit :mod:`sagann.hardware.arithmetic`. Each takes operands in every clock cycle."""

from __future__ import annotations

from typing import NamedTuple

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib.wiring import In, Out

from sagann.hardware.design import ADD_STAGES, MUL_STAGES
from sagann.hardware.rtl.netlist import Part, delayed

_NAN = 0x7FC00000
_BIAS = 127
_SPECIAL = 255
# A mantissa of 24 bits, followed by guard, round and sticky bit.
_GUARDED = 27


class _Unpacked(NamedTuple):
    sign: Value
    exponent: Value
    mantissa: Value
    is_zero: Value
    is_infinite: Value
    is_nan: Value


def _unpack(value: Value) -> _Unpacked:
    fraction, exponent, sign = value[:23], value[23:31], value[31]
    is_zero, is_special = exponent == 0, exponent == _SPECIAL
    mantissa = Mux(is_zero, 0, Cat(fraction, Const(1, 1)))
    return _Unpacked(sign, exponent, mantissa, is_zero, is_special & (fraction == 0), is_special & (fraction != 0))


def _registered(m: Module, value: Value, name: str) -> Signal:
    """The value one clock cycle later."""
    register = Signal.like(value, name=name, reset_less=True)
    m.d.sync += register.eq(value)
    return register


def _packed(sign: Value, exponent: Value, rounded: Value, special: Value) -> Value:
    """A result.

    Args:
        exponent: biased, signed, before the carry of rounding.
        rounded: mantissa of 25 bits, of which the highest is that carry.
        special: bits that say that it is NaN, infinite, or zero, whatever the rest says.
    """
    is_nan, is_infinite, is_zero = special
    carried = exponent + rounded[24]
    fraction = Mux(rounded[24], rounded[1:24], rounded[:23])
    infinity = Cat(Const(0, 23), Const(_SPECIAL, 8), sign)
    finite = Mux(carried >= _SPECIAL, infinity, Cat(fraction, carried[:8], sign))
    finite = Mux(is_zero | (carried <= 0), Cat(Const(0, 31), sign), finite)
    return Mux(is_nan, Const(_NAN, 32), Mux(is_infinite, infinity, finite))


class _Operator(Part):
    """``result`` is that of the operands ``a`` and ``b`` some clock cycles ago."""

    def __init__(self) -> None:
        super().__init__({"a": In(32), "b": In(32), "result": Out(32)})


class Mul(_Operator):
    """Product, after ``MUL_STAGES`` clock cycles."""

    def circuit(self) -> Module:
        m = Module()
        a, b = _unpack(self.a), _unpack(self.b)
        # 1: the product of 48 bits.
        product = _registered(m, a.mantissa * b.mantissa, "product")
        exponent = _registered(m, a.exponent + b.exponent - _BIAS, "exponent")
        is_nan = a.is_nan | b.is_nan | (a.is_infinite & b.is_zero) | (a.is_zero & b.is_infinite)
        special = Cat(is_nan, a.is_infinite | b.is_infinite, a.is_zero | b.is_zero)
        # 2: one bit to the right, if the product is 2 or more.
        is_two = product[47]
        kept = Mux(is_two, product[24:48], product[23:47])
        guard, sticky = Mux(is_two, product[23], product[22]), product[:22].any() | (is_two & product[22])
        normal = _registered(m, Cat(sticky, guard, kept), "normal")
        scaled = _registered(m, exponent + is_two, "scaled")
        # 3: rounded.
        rounded = normal[2:] + (normal[1] & (normal[0] | normal[2]))
        result = _packed(delayed(m, a.sign ^ b.sign, 2), scaled, rounded[:25], delayed(m, special, 2))
        m.d.comb += self.result.eq(_registered(m, result, "output"))
        assert MUL_STAGES == 3
        return m


class Add(_Operator):
    """Sum, after ``ADD_STAGES`` clock cycles."""

    def circuit(self) -> Module:
        m = Module()
        a, b = _unpack(self.a), _unpack(self.b)
        # 1: the operand of the larger magnitude first.
        swaps = self.a[:31] < self.b[:31]
        big = _registered(m, Mux(swaps, b.mantissa, a.mantissa), "big")
        small = _registered(m, Mux(swaps, a.mantissa, b.mantissa), "small")
        high = Mux(swaps, b.exponent, a.exponent)
        exponent = _registered(m, high, "exponent")
        distance = _registered(m, high - Mux(swaps, a.exponent, b.exponent), "distance")[:8]
        subtracts = a.sign ^ b.sign
        sign = Mux(swaps, b.sign, a.sign)
        is_nan = a.is_nan | b.is_nan | (a.is_infinite & b.is_infinite & subtracts)
        special = Cat(is_nan, a.is_infinite | b.is_infinite)
        # 2: the smaller one is shifted; what falls off sets the sticky bit.
        wide = Cat(Const(0, _GUARDED), Const(0, 3), small)
        shifted = wide >> Mux(distance > _GUARDED, _GUARDED, distance)[:5]
        aligned = _registered(m, Cat(shifted[: _GUARDED + 1].any(), shifted[_GUARDED + 1 :])[:_GUARDED], "aligned")
        larger = delayed(m, big, 1)
        # 3: sum or difference.
        extended = Cat(Const(0, 3), larger)
        total = _registered(
            m, Mux(delayed(m, subtracts, 2), extended - aligned, extended + aligned)[: _GUARDED + 1], "total"
        )
        # 4: zeros in front of it.
        zeros = Signal(5)
        m.d.comb += zeros.eq(_GUARDED)
        for position in range(_GUARDED):
            with m.If(total[position]):
                m.d.comb += zeros.eq(_GUARDED - 1 - position)
        counted = _registered(m, Cat(total, zeros, total[_GUARDED]), "counted")
        total, zeros, overflows = counted[:28], counted[28:33], counted[33]
        # 5: one bit to the right, or so many to the left.
        left = (total[:_GUARDED] << zeros)[:_GUARDED]
        normal = _registered(m, Mux(overflows, Cat(total[:2].any(), total[2:]), left), "normal")
        base = delayed(m, exponent, 3)
        scaled = _registered(m, Mux(overflows, base + 1, base - zeros), "scaled")
        is_zero = _registered(m, ~total.any(), "is_zero")
        # 6: rounded.
        rounded = _registered(m, normal[3:] + (normal[2] & (normal[:2].any() | normal[3])), "rounded")
        # 7: a difference of nothing is plus zero.
        is_zero, (is_nan, is_infinite) = delayed(m, is_zero, 1), delayed(m, special, 6)
        positive = is_zero & delayed(m, subtracts, 6)
        result = _packed(
            delayed(m, sign, 6) & ~positive, delayed(m, scaled, 1), rounded, Cat(is_nan, is_infinite, is_zero)
        )
        m.d.comb += self.result.eq(_registered(m, result, "output"))
        assert ADD_STAGES == 7
        return m
