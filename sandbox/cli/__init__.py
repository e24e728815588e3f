"""apollo-sandbox: compare, sweep and inspect variants, check theorems, list variants and tasks.

Only the standard library is imported here; `main` imports tyro, and a command what it needs, so that `--help` is fast.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import sandbox
from sandbox.cli import interrupt
from sandbox.utils import interrupts

FAILED, BAD_USAGE, CLOSED = 1, 2, 141
INTERRUPTED = interrupt.EXIT_CODE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code: 0, 1 where a check fails, 2 for bad usage, 130 when interrupted."""
    if list(sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        sys.stdout.write(f"apollo-sandbox {sandbox.__version__}\n")
        return 0
    with interrupts.postponed():
        from sandbox.cli import commands
    command = commands.parse(arguments)
    try:
        return command.main()
    except KeyboardInterrupt:
        sys.stdout.write(f"{command.interrupted()}\n")
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except (ValueError, TypeError, OSError, ImportError) as error:
        if os.environ.get("APOLLO_SANDBOX_TRACEBACK"):
            raise
        sys.stderr.write(f"apollo-sandbox: {error}\n")
        return BAD_USAGE
    except RuntimeError as error:
        if not hasattr(error, "failures"):
            raise
        sys.stderr.write("".join(f"apollo-sandbox: {failure}\n" for failure in error.failures))  # of a user's code
        return FAILED


def run() -> None:
    """Entry point of the installed command."""
    try:
        sys.exit(main())
    except BrokenPipeError:  # as of `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(CLOSED)
    except KeyboardInterrupt:
        sys.stderr.write("apollo-sandbox: interrupted\n")
        sys.exit(INTERRUPTED)
