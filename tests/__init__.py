"""Tests, and the programs that they start."""

import atexit
import gc

# The system takes back what is left when a process ends. Python would look for garbage among all of it, three times.
atexit.register(gc.freeze)
