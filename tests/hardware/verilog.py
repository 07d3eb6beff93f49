"""The accelerator's Verilog in Icarus and in Verilator."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np

from sagann.hardware import KernelDesign, Pass
from sagann.hardware.rtl.streams import (
    beat_layout,
    encoded_pass,
    parameters_layout,
    pass_layout,
    payloads_of,
    word_layout,
)
from sagann.hardware.yosys import verilog_of
from tests.hardware.simulated import Array, PassRun

BENCH, MAIN = (Path(__file__).with_name(name) for name in ("bench.v", "main.cpp"))
# Parts that Verilator compiles once and links several times: without them it compiles 2,048 multiply-accumulators.
_BLOCKS = ("ArrayRow", "GatherPe", "ScatterPe")


def icarus(folder: Path) -> list[str]:
    """The command of the compiled simulation."""
    # As of 2005, what depends on constants alone is computed when a simulation begins.
    _run(folder, ["iverilog", "-g2005", "-o", "bench", "-s", "bench", str(BENCH), "accelerator.v"])
    return ["vvp", "-n", "bench"]


def verilator(folder: Path) -> list[str]:
    """The command of the compiled simulation."""
    blocks = "".join(f'hier_block -module "{each}"\n' for each in _BLOCKS)
    (folder / "blocks.vlt").write_text("`verilator_config\n" + blocks)
    given = ["--cc", "--exe", "--build", "--timing", "--hierarchical", "-j", "2", "-O3", "-Wno-fatal"]
    _run(
        folder, ["verilator", *given, "--top-module", "bench", "blocks.vlt", str(BENCH), "accelerator.v", str(MAIN)]
    )
    return ["obj_dir/Vbench", "+verilator+rand+reset+2"]


_LAYOUTS = {"rows": beat_layout, "words": word_layout, "parameters": parameters_layout, "passes": pass_layout}
SIMULATORS = {"iverilog": icarus, "verilator": verilator}


def _run(folder: Path, command: list[str]) -> str:
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, f"{' '.join(command)}:\n{run.stderr[-2000:]}"
    return run.stdout


def run_verilog(
    passes: list[Pass],
    rows: dict[int, Array],
    design: KernelDesign,
    build: Callable[[Path], list[str]],
    folder: Path,
) -> list[PassRun]:
    """Run passes, as :func:`tests.hardware.simulated.run_passes` does."""
    (folder / "accelerator.v").write_text(verilog_of(design))
    payloads = payloads_of(passes, rows, design)
    payloads["passes"] = [(number, encoded_pass(each, design)) for number, each in enumerate(passes)]
    sizes = {"BITS_RESULTS": 33 * design.array_columns}
    layouts = {name: layout(design) for name, layout in _LAYOUTS.items()}
    for name, layout in layouts.items():
        # One more, which is not given any more.
        values = [*(layout.const(payload).as_bits() for _, payload in payloads[name]), 0]
        (folder / f"{name}.hex").write_text("".join(f"{value:x}\n" for value in values))
        sizes |= {f"BITS_{name.upper()}": layout.size, f"NUM_{name.upper()}": len(payloads[name])}
    (folder / "sizes.v").write_text("".join(f"localparam {name} = {size};\n" for name, size in sizes.items()))
    output = _run(folder, build(folder))
    size = 4 * design.array_columns
    results = [int(line, 16) >> design.array_columns for line in (folder / "results.hex").read_text().split()]
    values = np.frombuffer(b"".join(each.to_bytes(size, "little") for each in results), dtype=np.float32)
    values = values.reshape(-1, design.array_columns)
    num_bytes = np.array([-(-layouts[name].size // 8) for name in ("rows", "words", "parameters")])
    # Cycle, stalls by cause, and what each stream has given, at the start of each pass.
    taken = np.array([list(map(int, line.split()[1:])) for line in output.splitlines() if line.startswith("pass ")])
    return [
        PassRun(
            values[before[-1] : after[-1]],
            after[0] - before[0],
            tuple(after[1:4]),
            ((after - before)[4:7] @ num_bytes, (after - before)[-1] * size),
        )
        for before, after in pairwise(taken)
    ]
