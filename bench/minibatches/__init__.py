"""Sampled epochs in memory, against PyG and DGL."""
