"""The fuzz target: files of every kind that sagann reads, damaged, and given to the commands that read them.

``python -m tests.fuzz --seconds 60`` damages files by bytes and by structure, with checksums made anew, and runs the
program on them in a process with limits of time and memory. A case passes if the program ends with exit code 0, or with
exit code 2 and one message. Cases that fail are kept in ``tests/fuzz/corpus``, which ``tests/fuzz/test_corpus.py`` runs.
"""
