"""`raftwood ship`: follow files and have each of their lines stored once, until told to stop."""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.source import DEFAULTS, Source

app = App(name="ship", help_format="plaintext")


@app.default
def ship(
    *paths: Annotated[
        str, Parameter(help="Files and globs, in quotes; else those of the settings file.")
    ],
    state: Annotated[
        str,
        Parameter(help="Folder that says how far each file is stored; of one process at a time."),
    ],
    settings: Annotated[
        str | None,
        Parameter(help="TOML file that says more: names, lines, masks, limits."),
    ] = None,
    name: Annotated[
        str | None,
        Parameter(help="What a file is shipped as: {path}, {base}, {stem} or {folder} in a text."),
    ] = None,
    once: Annotated[
        bool, Parameter(negative="", help="Ship what is there, and end once all of it is stored.")
    ] = False,
    ready_file: Annotated[
        str | None, Parameter(help="Written once files are followed: the process's number.")
    ] = None,
    source: Source = DEFAULTS,
) -> int:
    """Follow files that grow, are rotated, cut and replaced, and ship each line of them once.

    The servers and the access key are settings of `clogs_client`. `status.json` in the state folder
    tells each second how far it is. With --once the exit status is 1 if a file could not be read.
    """
    # They take a while to load, which whoever asks for help need not wait for.
    from raftwood.app.ship_running import ship_on, ship_once, tail_settings  # noqa: PLC0415

    tail = tail_settings(paths, file=settings, name=name)
    if once:
        return ship_once(source, tail, state)
    ship_on(source, tail, state, ready_file=ready_file)
    return 0
