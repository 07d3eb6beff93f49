"""The command line. ``sagann --help`` must be quick, so a module with a command imports PyTorch only when the command runs.

The work of a large command is in a module of its own, as ``train_run`` for ``train``.
"""
