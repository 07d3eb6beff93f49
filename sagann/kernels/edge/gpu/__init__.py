"""Edge functions on CUDA devices: generated Triton kernels. Needs triton, which the rest of sagann does not."""

from sagann.kernels.edge.gpu.compiled_files import keep_in_private_folder
from sagann.kernels.edge.gpu.cut import Cut as Cut, cut_of as cut_of
from sagann.kernels.edge.gpu.layout import supports as supports
from sagann.kernels.edge.gpu.run import run as run, set_cut as set_cut

# Triton asks for its folder at each compilation.
keep_in_private_folder()
