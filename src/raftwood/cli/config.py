"""`raftwood config`: what is set and by whom, whether it is right, and files to start from."""

import secrets
from typing import Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from raftwood.base.configuration import DEFAULT_ORIGIN, compose
from raftwood.cli.options import DEFAULTS, Source, toml_of
from raftwood.cli.output import Format, write_line, write_rows
from raftwood.server.settings import Settings

app = App(name="config", help_format="plaintext")

COLUMNS = {
    "name": "setting",
    "value": "value",
    "origin": "origin",
    "scope": "scope",
    "meaning": "meaning",
}


@app.command
def show(
    *,
    source: Source = DEFAULTS,
    output: Annotated[
        Literal["text", "json", "toml"], Parameter(name="--format", help="How to print it.")
    ] = "text",
) -> None:
    """Print every setting: its value, where the value came from, and what it means."""
    values = source.load().values
    if output == "toml":
        write_line(toml_of(values, every=True))
    else:
        write_rows([msgspec.structs.asdict(value) for value in values], COLUMNS, output)


@app.command
def check(
    *,
    source: Source = DEFAULTS,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
) -> None:
    """Check every setting of every source; the exit status is 2 if one is wrong."""
    values = source.load().values
    given = [value for value in values if value.origin != DEFAULT_ORIGIN]
    row = {"valid": True, "settings": len(values), "given": len(given)}
    if output == "json":
        write_rows([row], {name: name for name in row}, output)
    else:
        write_line(f"valid: {len(values)} settings, {len(given)} of them not by default")


@app.command
def example() -> None:
    """Print a TOML file with every setting at its default, explained and commented out."""
    write_line(toml_of(compose(Settings).values, every=False))


@app.command
def secret() -> None:
    """Print new secrets for a cluster, as a section to add to its TOML file."""
    write_line("# Keep this to yourself: whoever knows it can act as a store or a client.")
    write_line("[secrets]")
    write_line(f'stores = "{secrets.token_urlsafe(32)}"')
    write_line(f'clients = "{secrets.token_urlsafe(32)}"')
    write_line(f'readers = "{secrets.token_urlsafe(32)}"')
    write_line(f'operators = "{secrets.token_urlsafe(32)}"')
    write_line(f'metrics = "{secrets.token_urlsafe(32)}"')
