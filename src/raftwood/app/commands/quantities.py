"""Sizes and durations as options of commands."""

from raftwood.base.errors import InvalidInput
from raftwood.base.quantities import parse_quantity


def quantity_of(option: str, text: str, units: dict[str, int]) -> int:
    """A number with one of the units; what is wrong names the option."""
    try:
        return parse_quantity(text, units)
    except ValueError as error:
        raise InvalidInput(f"{option} {text[:60]!r}: {error}") from error
