"""apollo-sandbox: compare, inspect, check, list and show variants.  Only the standard library and tyro at import."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import tyro
from tyro.conf import OmitSubcommandPrefixes, subcommand

from sandbox.cli.catalogue import Show, Tasks, Variants
from sandbox.cli.check import Check
from sandbox.cli.compare import Compare
from sandbox.cli.curvature import Curvature
from sandbox.cli.screen import INTERRUPTED
from sandbox.cli.study import Study
from sandbox.cli.sweep import Sweep

BAD_USAGE = 2

Command = (
    Annotated[Compare, subcommand("compare")]
    | Annotated[Variants, subcommand("variants")]
    | Annotated[Show, subcommand("show")]
    | Annotated[Tasks, subcommand("tasks")]
    | Annotated[Check, subcommand("check")]
    | Annotated[Sweep, subcommand("sweep")]
    | Annotated[Curvature, subcommand("curvature")]
    | Annotated[Study, subcommand("study")]
)

ABOUT = """Optimizers as recipes of blocks, around Apollo (arXiv 2009.13586).

First steps:
  apollo-sandbox compare apollo adamw --task digits-mlp
  apollo-sandbox show apollo
"""


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code: 0, 2 for bad usage, 130 when interrupted."""
    command: Any = tyro.cli(Command, prog="apollo-sandbox", description=ABOUT, args=arguments, config=(OmitSubcommandPrefixes,))
    try:
        return command.main()
    except (ValueError, TypeError, OSError) as error:
        if os.environ.get("APOLLO_SANDBOX_TRACEBACK"):
            raise
        sys.stderr.write(f"apollo-sandbox: {error}\n")
        return BAD_USAGE


def run() -> None:
    """Entry point of the installed command."""
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("apollo-sandbox: interrupted\n")
        sys.exit(INTERRUPTED)
