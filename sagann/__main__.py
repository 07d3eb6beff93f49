"""``python -m sagann``: the command line."""

from sagann.cli.main import run

if __name__ == "__main__":
    run()
