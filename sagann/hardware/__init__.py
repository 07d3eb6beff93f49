"""Hardware kernels of HyScale-GNN (IV-C): their design, programs, arithmetic and cycles. :mod:`sagann.hardware.rtl` has the circuits."""

from sagann.hardware.clock import Cycles, cycles_of
from sagann.hardware.design import KernelDesign
from sagann.hardware.program import ScatterProgram, first_use, scatter_program

__all__ = ["Cycles", "KernelDesign", "ScatterProgram", "cycles_of", "first_use", "scatter_program"]
