"""python -m sandbox: the command line without an installed script."""

from sandbox.cli import run

if __name__ == "__main__":
    run()
