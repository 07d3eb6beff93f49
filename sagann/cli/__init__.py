"""The command line: what a person types. Modules named after a command only declare it; the work is one import away.

``sagann --help`` must be quick, so nothing that a declaration imports may import torch.
"""
