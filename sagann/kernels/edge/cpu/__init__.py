"""Edge functions on the CPU: generated Numba kernels over vector registers."""

from sagann.kernels.edge.cpu.extremum import scatter_extremum as scatter_extremum
from sagann.kernels.edge.cpu.run import run as run, source_of as source_of
