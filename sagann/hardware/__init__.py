"""Hardware kernels of HyScale-GNN (IV-C): their design, programs, arithmetic and cycles. :mod:`sagann.hardware.rtl` has the circuits."""

from sagann.hardware.clock import Cycles, Traffic, cycles_of, traffic_of
from sagann.hardware.design import KernelDesign
from sagann.hardware.passes import Hop, Pass, Region, SubBatch, Training
from sagann.hardware.program import ScatterProgram, first_use, scatter_program

__all__ = [
    "Cycles",
    "Hop",
    "KernelDesign",
    "Pass",
    "Region",
    "ScatterProgram",
    "SubBatch",
    "Traffic",
    "Training",
    "cycles_of",
    "first_use",
    "scatter_program",
    "traffic_of",
]
