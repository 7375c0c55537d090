"""The options by which every command finds its configuration."""

import os
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from raftwood.app.settings import Settings
from raftwood.base.configuration import FILE_VARIABLE, Configuration, load_configuration


@Parameter(name="*")
@dataclass(frozen=True)
class Source:
    """Where the settings come from; take it as a parameter, `source: Source = DEFAULTS`."""

    config: Annotated[
        str | None, Parameter(help="TOML file with settings; else RAFTWOOD_CONFIG names it.")
    ] = None
    assignments: Annotated[
        tuple[str, ...],
        Parameter(name="--set", negative="", help="One setting, section.key=value; repeatable."),
    ] = ()

    @property
    def file(self) -> str | None:
        """The TOML file, if there is one."""
        return self.config or os.environ.get(FILE_VARIABLE) or None

    def load(self) -> Configuration[Settings]:
        return load_configuration(
            Settings, file=self.file, environment=os.environ, assignments=self.assignments
        )


DEFAULTS = Source()
