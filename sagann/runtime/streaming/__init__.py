"""Models that run interval by interval inside a budget: capture, executor, and the calls that users make."""
