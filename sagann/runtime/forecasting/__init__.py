"""Forecasts of an epoch: rates of the machine, rehearsed steps, and files that show timelines."""
