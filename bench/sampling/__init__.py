"""Sampled edges per second and core, against PyG and DGL."""
