"""Streaming to a CUDA device: pinned memory, streams for copies beside the one that computes, and events between them."""
