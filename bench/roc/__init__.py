"""ROC's experiments on its cluster by simulation; see :mod:`bench.roc.__main__`."""
