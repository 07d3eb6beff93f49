"""Compiles kernels for an H100 or H200 down to machine code, which needs no device; run by test_run.py.

The interpreter accepts what the compiler does not, so this is a program of its own, without TRITON_INTERPRET.

    python -m tests.kernels.edge.gpu.compile_driver [NAME...]

Compiles the kernels of these names, by default all. Prints a line for each kernel: its name, registers of a thread, spilled bytes, widest load in bits.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.knobs import nvidia

from sagann.kernels import edge_picks
from sagann.kernels.edge.function import EdgeFunction
from sagann.kernels.edge.gpu import merge
from sagann.kernels.edge.gpu.run import kernel_of
from sagann.kernels.edge.source import canonical_names, renamed
from sagann.kernels.row_dropout import gpu as row_dropout
from sagann.kernels.row_gather import BANKS, gpu as row_gather
from tests.kernels.edge import cases
from tests.kernels.edge.functions import POSITIVE_UNARY, SMOOTH_UNARY, Builder, attention, gated

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i32",
    None: "i64",
}


def signature_of(function: EdgeFunction, names: list[str], results: tuple) -> dict[str, str]:
    """Types of a kernel's parameters, for ids of 32 bits."""
    inputs = {given.name: given for given in function.inputs}
    types = {"p_items": "*i64", "p_indptr": "*i64", "p_indices": "*i32", "p_edge_ids": "*i32", "p_seed": "*i64"}
    types["edge_offset"] = "i64"
    for name in names:
        if name.startswith("stride_"):
            types[name] = "i32"
        elif re.match(r"p_(out|slots|known|known_slots)_\d+$", name):
            types[name] = "*" + TYPES[results[int(name.rsplit("_", 1)[1])].dtype]
        elif name not in types:
            types[name] = "*" + TYPES[inputs[name[2:]].dtype]
    return {name: types[name] for name in names}


def report(
    name: str, entry: object, types: dict[str, str], constants: dict[str, object], aligned: set[str], warps: int = 1
) -> None:
    if len(sys.argv) > 1 and name not in sys.argv[1:]:
        return
    names = entry.arg_names
    attrs = {(at,): [["tt.divisibility", 16]] for at, arg in enumerate(names) if arg in aligned}
    types = {arg: "constexpr" if arg in constants else types[arg] for arg in names}
    at = {(names.index(arg),): value for arg, value in constants.items()}
    source = ASTSource(fn=entry, signature=types, constexprs=at, attrs=attrs)
    ptx = triton.compile(source, target=TARGET, options={"num_warps": warps}).asm["ptx"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [nvidia.ptxas.path, "-v", "-arch=sm_90a", str(path), "-o", f"{path}.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = max(map(int, re.findall(r"Used (\d+) registers", said)))
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill stores", said)))
    widths = [
        int(many or 1) * int(bits) for many, bits in re.findall(r"ld\.global(?:\.v(\d))?(?:\.nc)?\.[a-z](\d+)", ptx)
    ]
    sys.stdout.write(f"{name}\t{registers}\t{spilled}\t{max(widths)}\n")


def compile_function(name: str, function: EdgeFunction, *, continued: bool = False) -> None:
    """Compile a function's kernel as it is launched for contiguous arrays."""
    function = renamed(function, canonical_names(function))
    kernel = kernel_of(function, continued=continued)
    types = signature_of(function, kernel.kernel.arg_names, function.results)
    aligned = {arg for arg, kind in types.items() if kind.startswith("*")}
    rows = [given for given in function.inputs if given.side != "param"]
    aligned |= {f"stride_{given.name}" for given in rows if math.prod(given.shape) % 16 == 0}
    report(name, kernel.kernel, types, {}, aligned, kernel.WARPS)


def moved_lanes() -> EdgeFunction:
    """Every op that moves lanes, over padding."""
    make = Builder(torch.float32)
    x = make.input("src", (5, 7))
    turned = make.op("permute", x, dims=(1, 0))
    flat = make.op("reshape", turned, shape=(35,))
    joined = make.op("cat", flat, flat, dim=0)
    part = make.op("slice", joined, shape=(33,), dim=0, start=2, step=2)
    masks = make.op("slice", make.op("gt", joined, 0.0), shape=(33,), dim=0, start=0, step=1, dtype=torch.bool)
    kept = make.op("where", masks, part, -1.0)
    largest = make.op("amax", x, dims=(0,))
    return make.function(("sum", kept), ("sum", largest), ("edge", make.op("sum", x, dims=(0, 1))))


def every_unary(dtype: torch.dtype) -> EdgeFunction:
    make = Builder(dtype)
    value = make.input("src", (32,))
    total = make.op("pow", value, 2.5)
    for name in (*SMOOTH_UNARY, *POSITIVE_UNARY, "floor"):
        total = make.op("div", make.op("maximum", total, make.op(name, value)), 3.0)
    drawn = make.op("random", shape=(32,), p=0.1, salt=1)
    return make.function(("sum", make.op("mul", total, drawn)))


def main() -> None:
    functions = {
        "gated": gated(128),
        "gated, odd": gated(41),
        "gated, half": gated(256, torch.float16),
        "heads": attention(8, 8),
        "heads, odd": attention(5, 7),
        "all reductions": cases.all_reductions("dst"),
        "all reductions of out-edges": cases.all_reductions("src"),
        "wide heads": attention(4, 256),
        "moved lanes": moved_lanes(),
        "float32": every_unary(torch.float32),
        "float64": every_unary(torch.float64),
    }
    for name, function in functions.items():
        compile_function(name, function)
    functions["one head"] = attention(1, 256)
    for name in ("gated", "heads, odd", "wide heads", "all reductions of out-edges", "one head"):
        compile_function(f"{name}, continued", functions[name], continued=True)
    sum_types = {"p_groups": "*i64", "p_slots": "*fp32", "p_out": "*fp32", "num_lanes": "i32"}
    report("merge_sum", merge.sum_of_slots, sum_types, {"adds": True, "tile": 128}, set())
    where_types = sum_types | {"p_slots_where": "*i32", "p_out_where": "*i32"}
    report("merge_extremum", merge.extremum_of_slots, where_types, {"tile": 128, "largest": True}, set())
    scores = [f"p_{end}_{of}" for end in ("slots", "out") for of in ("top", "weight")]
    softmax_types = sum_types | dict.fromkeys(scores, "*fp32") | {"num_scores": "i32"}
    row_types = {"p_ids": "*i64", "p_places": "*i32", "p_addresses": "*i64", "p_out": "*i32"}
    row_types |= dict.fromkeys(["num_ids", "num_rows", "width", "span", "shift"], "i32") | {"p_counts": "*i64"}
    sizes = {"rows": 4, "tile": 128, "line": 32, "word_bytes": 4, "num_banks": BANKS}
    sizes |= {"num_counts": 4, "num_dealt": 2, "dealt_bits": 12}
    report("gather_rows", row_gather.copy_rows, row_types, sizes, {"p_out", "width"}, warps=4)
    sizes |= {"p_places": None, "p_counts": None}
    report("gather_rows of one source", row_gather.copy_rows, row_types, sizes, {"p_out"}, warps=4)
    pick_types = dict.fromkeys(["p_begins", "p_degrees", "p_vertices", "p_indptr", "p_key"], "*i64")
    pick_types |= {"p_positions": "*i32"} | dict.fromkeys(["num_rows", "num_picks", "fanout"], "i32")
    for rows, width in ((16, 32), (1, edge_picks.MOST_DIFFERENT)):
        of_tile = {"rows": rows, "width": width}
        report(f"pick {width} different", edge_picks.pick_tile, pick_types, of_tile, set(), warps=4)
    report("draw", edge_picks.draw_tile, pick_types, {"tile": edge_picks.LANES}, set(), warps=4)
    drop_types = {"p_x": "*fp32", "p_out": "*fp32", "p_ids": "*i64", "p_seed": "*i64"}
    drop_types |= dict.fromkeys(["num_values", "width", "first"], "i32")
    sizes = {"threshold": 1 << 23, "scale": 2.0, "tile": row_dropout.TILE, "has_ids": False}
    report("drop_rows", row_dropout._drop_tile, drop_types, sizes, {"p_x", "p_out"}, warps=4)
    lowest = torch.finfo(torch.float32).min
    report("merge_softmax", merge.softmax_of_slots, softmax_types, {"tile": 128, "lowest": lowest}, set())


if __name__ == "__main__":
    main()
