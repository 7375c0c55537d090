"""`raftwood completion`: the completion of commands and options, as a script for a shell."""

import os
from typing import Annotated, Literal

from cyclopts import App, Parameter

from raftwood.base.errors import InvalidInput
from raftwood.cli.command_line import application
from raftwood.cli.output import write_line

app = App(name="completion", help_format="plaintext")
_Shell = Literal["bash", "zsh", "fish"]


@app.default
def completion(
    shell: Annotated[_Shell | None, Parameter(help="Which shell; else the one of SHELL.")] = None,
    /,
) -> None:
    """Print a script by which a shell completes commands and options.

    bash: raftwood completion bash > ~/.local/share/bash-completion/completions/raftwood;
    zsh: raftwood completion zsh > _raftwood, in a folder of fpath;
    fish: raftwood completion fish > ~/.config/fish/completions/raftwood.fish
    """
    write_line(application().generate_completion(prog_name="raftwood", shell=shell or _shell()))


def _shell() -> _Shell:
    name = os.path.basename(os.environ.get("SHELL", ""))
    for known in ("bash", "zsh", "fish"):
        if name == known:
            return known
    raise InvalidInput("SHELL names no shell that is known here: give bash, zsh or fish")
