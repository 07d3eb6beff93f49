"""What `pytest --doctest-modules sagann` cannot import here: the CUDA kernels, where Triton is not installed."""

from importlib.util import find_spec

_KERNELS = ["sagann/kernels/edge/gpu/*", "sagann/kernels/*/gpu.py", "sagann/kernels/edge_picks.py"]
collect_ignore_glob = [] if find_spec("triton") else _KERNELS
