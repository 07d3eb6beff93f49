"""Layers whose graph lies in memory: the engine, its passes over edges, and what it keeps from call to call."""
