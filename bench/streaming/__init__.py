"""Training epochs streamed inside a memory budget, against the same without one and against the engine."""
