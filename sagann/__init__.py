"""sagann trains graph neural networks on graphs larger than the memory of the device that computes."""
