"""The commands and their options, as tyro reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import tyro
from tyro.conf import OmitSubcommandPrefixes, subcommand

from sandbox.cli.calibrate import Calibrate
from sandbox.cli.catalogue import Show, Tasks, Variants
from sandbox.cli.check import Check
from sandbox.cli.compare import Compare
from sandbox.cli.curvature import Curvature
from sandbox.cli.report import Report
from sandbox.cli.roles import Roles
from sandbox.cli.same import Same
from sandbox.cli.source import Source
from sandbox.cli.study import Study
from sandbox.cli.sweep import Sweep

Command = (
    Annotated[Compare, subcommand("compare")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Variants, subcommand("variants")]
    | Annotated[Show, subcommand("show")]
    | Annotated[Source, subcommand("source")]
    | Annotated[Tasks, subcommand("tasks")]
    | Annotated[Roles, subcommand("roles")]
    | Annotated[Check, subcommand("check")]
    | Annotated[Sweep, subcommand("sweep")]
    | Annotated[Calibrate, subcommand("calibrate")]
    | Annotated[Curvature, subcommand("curvature")]
    | Annotated[Same, subcommand("same")]
    | Annotated[Study, subcommand("study")]
)

ABOUT = """Optimizers as recipes of blocks, around Apollo (arXiv 2009.13586).

First steps:
  apollo-sandbox compare apollo adamw --task digits-mlp
  apollo-sandbox show apollo
  apollo-sandbox --version
"""


def parse(arguments: Sequence[str] | None) -> Any:
    """The command that the arguments name, with its options set.  Exits with code 2 and a message for unknown ones."""
    return tyro.cli(Command, prog="apollo-sandbox", description=ABOUT, args=arguments, config=(OmitSubcommandPrefixes,))
