"""The program as another version of it: what a host has that was not updated."""

import sagann
from sagann.__main__ import main as main

sagann.__version__ = "0.0.1"
