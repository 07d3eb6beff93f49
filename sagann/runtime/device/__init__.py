"""Streaming to a CUDA device: pinned memory, lanes for copies beside the lane that computes, and marks between lanes."""
