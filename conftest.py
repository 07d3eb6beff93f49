"""What `pytest --doctest-modules sagann` cannot import here: the CUDA kernels, where Triton is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("triton") else ["sagann/kernels/edge/gpu/*"]
