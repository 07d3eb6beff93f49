"""Edge functions on the CPU: generated Numba kernels over vector registers."""

from typing import TYPE_CHECKING

from sagann.kernels.edge.cpu.run import run as run, source_of as source_of
from sagann.registry import import_lazily

if TYPE_CHECKING:
    from sagann.kernels.edge.cpu.extremum import scatter_extremum as scatter_extremum

# Only layers whose gradient is scattered need it.
import_lazily(__name__, {"extremum": "scatter_extremum"})
