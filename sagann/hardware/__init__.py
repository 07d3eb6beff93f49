"""Hardware kernels of HyScale-GNN (IV-C): their design, programs, arithmetic and cycles. :mod:`sagann.hardware.rtl` has the circuits."""

from sagann.hardware.blocks import Hop
from sagann.hardware.clock import Cycles, cycles_of
from sagann.hardware.design import KernelDesign
from sagann.hardware.passes import Pass, Region
from sagann.hardware.program import ScatterProgram, first_use, scatter_program
from sagann.hardware.training import SubBatch, Training

__all__ = [
    "Cycles",
    "Hop",
    "KernelDesign",
    "Pass",
    "Region",
    "ScatterProgram",
    "SubBatch",
    "Training",
    "cycles_of",
    "first_use",
    "scatter_program",
]
