"""Reads script files: `command argument key=value key=(a,b)`, input lines, `----`, expected output.

The output ends at an empty line, or, if it begins with a second `----`, at a pair of them.
"""

import re
from dataclasses import dataclass, field

SEPARATOR = "----"
_ARGUMENT = re.compile(r"([^\s=]+)(?:=(?:\(([^)]*)\)|(\S*)))?")


class ScriptError(Exception):
    """The file itself is wrong; nothing was compared."""


@dataclass
class Argument:
    key: str
    values: list[str] = field(default_factory=list)
    given: bool = False
    """Whether there was an equals sign, if only with an empty list after it."""


@dataclass
class Command:
    line_number: int
    name: str
    arguments: list[Argument]
    input: str
    expected: str

    def positional(self) -> list[str]:
        return [argument.key for argument in self.arguments if not argument.given]

    def nodes(self) -> list[int]:
        return [int(key) for key in self.positional()]

    def values(self, key: str) -> list[str]:
        return [
            value for argument in self.arguments if argument.key == key for value in argument.values
        ]

    def value(self, key: str, default: str = "") -> str:
        return next(iter(self.values(key)), default)


def parse_line(line: str) -> tuple[str, list[Argument]]:
    name, _, rest = line.strip().partition(" ")
    arguments = []
    for match in _ARGUMENT.finditer(rest):
        key, several, one = match.groups()
        if several is not None:
            values = [value for value in re.split(r"[,\s]+", several) if value]
            arguments.append(Argument(key, values, given=True))
        else:
            arguments.append(Argument(key, [] if one is None else [one], given=one is not None))
    return name, arguments


def parse_script(text: str) -> list[Command]:
    lines = text.splitlines()
    position = 0
    commands = []
    while position < len(lines):
        line = lines[position].strip()
        number = position + 1
        position += 1
        if not line or line.startswith("#"):
            continue
        while line.endswith("\\") and position < len(lines):
            line = line[:-1].rstrip() + " " + lines[position].strip()
            position += 1
        start = position
        while position < len(lines) and lines[position] != SEPARATOR:
            position += 1
        if position == len(lines):
            raise ScriptError(f"line {number}: no {SEPARATOR} after the command")
        given = "\n".join(lines[start:position]).strip()
        expected, position = _expected(lines, position + 1)
        name, arguments = parse_line(line)
        commands.append(Command(number, name, arguments, given, expected))
    return commands


def _expected(lines: list[str], position: int) -> tuple[str, int]:
    start = position
    if position < len(lines) and lines[position] == SEPARATOR:
        while lines[position + 1 : position + 3] != [SEPARATOR, SEPARATOR]:
            position += 1
            if position + 2 >= len(lines):
                raise ScriptError(f"line {start + 1}: the doubled {SEPARATOR} is not closed")
        return "".join(f"{line}\n" for line in lines[start + 1 : position + 1]), position + 3
    while position < len(lines) and lines[position].strip():
        position += 1
    return "".join(f"{line}\n" for line in lines[start:position]), position
