"""Netlists in which circuits that occur many times have one module, where Amaranth itself writes one for each occurrence; delay lines."""

from __future__ import annotations

from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Cat, ClockDomain, ClockSignal, Fragment, Instance, Module, ResetSignal, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory


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


class Part(wiring.Component):
    """A circuit that occurs many times, equal each time. Subclasses have ``circuit`` in place of ``elaborate``."""

    def circuit(self) -> Module:
        raise NotImplementedError

    def elaborate(self, platform: object) -> Module | Instance:
        return platform.instance(self) if isinstance(platform, _Netlist) else self.circuit()


class _Netlist:
    """The platform of a module, for which its parts are instances of modules of their own, by the names of their classes."""

    def __init__(self, top: wiring.Component) -> None:
        self.top = top
        self.parts: dict[str, Part] = {}

    def get_memory(self, memory: Memory) -> Instance:
        """An instance of :data:`sagann.hardware.yosys.RAM`; Amaranth calls it."""
        (write,), (read,) = memory.write_ports, memory.read_ports
        width, address = len(Value.cast(read.data)), max(1, len(read.addr))
        sizes = {"p_WIDTH": width, "p_DEPTH": memory.depth, "p_ADDRESS": address, "p_PARTS": len(write.en)}
        return Instance(
            "Ram",
            **sizes,
            i_clk=ClockSignal(),
            i_write_en=write.en,
            i_write_addr=Cat(write.addr, 0)[:address],
            i_write_data=write.data,
            i_read_en=read.en,
            i_read_addr=Cat(read.addr, 0)[:address],
            o_read_data=read.data,
        )

    def instance(self, part: Part) -> Module | Instance:
        if part is self.top:
            return part.circuit()
        name = type(part).__name__.lstrip("_")
        self.parts.setdefault(name, part)
        ports = {
            f"{'i' if member.flow == wiring.In else 'o'}_{'__'.join(map(str, path))}": value
            for path, member, value in part.signature.flatten(part)
        }
        return Instance(name, i_clk=ClockSignal(), i_rst=ResetSignal(), **ports)


def netlist_of(circuit: wiring.Component, name: str) -> str:
    """A circuit in RTLIL, the language of Yosys, for use with :data:`sagann.hardware.yosys.RAM`. Each kind of its parts has one module."""
    parts: dict[str, Any] = {name: circuit}
    texts: dict[str, str] = {}
    while new := parts.keys() - texts.keys():
        for each in sorted(new):
            netlist, clock = _Netlist(parts[each]), ClockDomain("sync")
            # Instances have clock and reset, so a part without registers has their ports, too.
            fragment = Fragment.get(parts[each], netlist)
            fragment.add_domains(clock)
            # The ready signal of a stream that is always ready is a constant.
            values = [Value.cast(value) for *_, value in parts[each].signature.flatten(parts[each])]
            ports = [*(value for value in values if isinstance(value, Signal)), clock.clk, clock.rst]
            texts[each] = rtlil.convert(fragment, name=each, platform=netlist, ports=ports, emit_src=False)
            parts = netlist.parts | parts
    first, *others = texts.values()
    return "\n".join([first, *(text.replace("attribute \\top 1\n", "") for text in others)])
