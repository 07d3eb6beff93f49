"""Layers on a graph in memory: the engine, its passes over edges, and the gathers that it keeps."""
