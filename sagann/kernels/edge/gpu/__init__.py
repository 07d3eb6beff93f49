"""Edge functions on CUDA devices: generated Triton kernels. Needs triton, which the rest of sagann does not."""

import os

from sagann.jit import cache_folder
from sagann.kernels.edge.gpu.cut import Cut as Cut, cut_of as cut_of, cut_on_device as cut_on_device
from sagann.kernels.edge.gpu.layout import supports as supports
from sagann.kernels.edge.gpu.run import run as run, set_cut as set_cut

# Triton, which asks for its folder at each compilation, keeps machine code there too.
os.environ.setdefault("TRITON_CACHE_DIR", str(cache_folder()))
