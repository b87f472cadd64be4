"""`pyromq completion`: what a shell needs to complete commands, options, and the names of topics and groups."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]

from pyromq.cli.app import COMPLETION


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell.", show_default=False)],
) -> None:
    """Print a script that makes a shell complete commands and the names of topics and groups.

    bash: put  eval "$(pyromq completion bash)"  into ~/.bashrc

    zsh: put  eval "$(pyromq completion zsh)"  into ~/.zshrc, behind compinit

    fish: pyromq completion fish > ~/.config/fish/completions/pyromq.fish
    """
    typer.echo(get_completion_script(prog_name="pyromq", complete_var=COMPLETION, shell=shell.value))
