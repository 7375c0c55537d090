"""Settings from flags, environment, one TOML file and defaults; each value knows its origin.

Precedence: flag > environment (`RAFTWOOD_SECTION__KEY`) > file > default. A client without a file
reads its user's context in place of one (`contexts`). All mistakes in all sources are reported at
once, each with the setting, the value, its source, the allowed values, and the remedy.

    configuration = load_configuration(Settings, file="node.toml", environment=os.environ)
    configuration.settings.disk.segment_bytes
    configuration.origin("disk.segment_bytes")  # "file node.toml:disk.segment_bytes"
"""

import difflib
import functools
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from raftwood.base.contexts import Contexts
from raftwood.base.errors import InvalidConfiguration
from raftwood.base.settings import Scope, Setting, describe

FILE_VARIABLE: Final = "RAFTWOOD_CONFIG"
FILE_BYTES_MAX: Final = 1 << 20
DEFAULT_ORIGIN: Final = "default"
CONTEXT_ORIGIN: Final = "context "
"""The origin of a setting from a context begins so; its name follows."""
_VARIABLE: Final = re.compile(r"RAFTWOOD_([A-Z0-9_]+?)__([A-Z0-9_]+)")
_PLACE: Final = re.compile(r" ?\(at (?:line (\d+), column (\d+)|end of document)\)")

T = TypeVar("T", bound=msgspec.Struct)


class SettingValue(msgspec.Struct, frozen=True, kw_only=True):
    """The final value of one setting, fit to be shown."""

    name: str
    value: Any
    origin: str
    scope: Scope
    meaning: str
    allowed: str
    secret: bool


class Configuration(msgspec.Struct, Generic[T], frozen=True):
    """The settings, and the source of each."""

    settings: T
    values: tuple[SettingValue, ...]

    def origin(self, name: str) -> str:
        return next(value.origin for value in self.values if value.name == name)


class _Given(msgspec.Struct, frozen=True):
    """A value from one source, not yet checked."""

    value: Any
    origin: str
    text: bool


def load_configuration(
    kind: type[T],
    *,
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    reads_context: bool = False,
) -> Configuration[T]:
    """Reads every source and checks every value; raises one InvalidConfiguration for all mistakes.

    `kind` is a struct whose fields are sections. `assignments` are "section.key=value" from flags;
    the last one for a setting counts. `arguments` are values that a program gives, by
    "section.key", as a file would have them; they are the strongest. A client sets `reads_context`,
    a server must not.
    """
    environment = environment or {}
    file, context = _file_of(file, environment, reads_context=reads_context)
    data = _read(file, context, environment)
    return compose(
        kind,
        data=data,
        file=file,
        environment=environment,
        flags=assignments,
        arguments=arguments,
        context=context,
    )


def client_variable(variable: str, environment: Mapping[str, str]) -> str | None:
    """One setting of a client as text, by the name of its variable: from the environment, else from
    the file or the context that clients read. For programs that know none but these settings.
    """
    match = _VARIABLE.fullmatch(variable)
    if variable in environment or match is None:
        return environment.get(variable)
    file, context = _file_of(None, environment, reads_context=True)
    section = _parse(_read(file, context, environment), file).get(match[1].lower())
    value = section.get(match[2].lower()) if isinstance(section, dict) else None
    if value is None:
        return None
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _file_of(
    file: str | None, environment: Mapping[str, str], *, reads_context: bool
) -> tuple[str, str | None]:
    """The path of the file to read, empty if there is none, and its name if it is a context."""
    if file := file or environment.get(FILE_VARIABLE):
        return file, None
    if not reads_context:
        return "", None
    contexts = Contexts.of(environment)
    context = contexts.current()
    return ("", None) if context is None else (contexts.path(context), context)


def compose(
    kind: type[T],
    *,
    data: bytes = b"",
    file: str = "",
    environment: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
    arguments: Mapping[str, Any] | None = None,
    context: str | None = None,
) -> Configuration[T]:
    """Like `load_configuration`, with the file's contents at hand; `context` names the file if it
    is one.
    """
    known = {setting.name: setting for setting in describe(kind)}
    problems: list[str] = []
    given: dict[str, _Given] = {}
    # From the weakest source to the strongest, so that the strongest value remains.
    source = f"file {file}" if context is None else f"{CONTEXT_ORIGIN}{context}"
    given.update(_from_file(_parse(data, file), source, known, problems))
    given.update(_from_environment(environment or {}, known, problems))
    given.update(_from_flags(flags, known, problems))
    given.update(_from_arguments(arguments or {}, known, problems))

    resolved = {
        name: _resolve(setting, given.get(name), problems) for name, setting in known.items()
    }
    if problems:
        raise InvalidConfiguration("\n".join(problems))
    sections: dict[str, dict[str, Any]] = {}
    values: list[SettingValue] = []
    for name, (value, origin) in resolved.items():
        setting = known[name]
        sections.setdefault(setting.section, {})[setting.key] = value
        values.append(
            SettingValue(
                name=name,
                value=setting.show(value),
                origin=origin,
                scope=setting.scope,
                meaning=setting.meaning,
                allowed=setting.allowed,
                secret=setting.secret,
            )
        )
    return Configuration(_build(kind, sections), tuple(values))


@functools.cache
def _sections(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(kind)}


def _build(kind: type[T], sections: dict[str, dict[str, Any]]) -> T:
    built: dict[str, Any] = {}
    for name, section in _sections(kind).items():
        try:
            built[name] = section(**sections.get(name, {}))
        except ValueError as error:
            raise InvalidConfiguration(
                f"section {name}: {error}; see `raftwood config show` for where the values "
                "come from"
            ) from error
    return kind(**built)


def _resolve(setting: Setting, given: _Given | None, problems: list[str]) -> tuple[Any, str]:
    if given is None:
        return setting.default, DEFAULT_ORIGIN
    try:
        value = setting.parse_text(given.value) if given.text else setting.parse(given.value)
    except ValueError as error:
        shown = "the given value" if setting.secret else _shown(given.value)
        problems.append(
            f"setting {setting.name} cannot be {shown} (from {given.origin}): {error}; "
            f"give {setting.allowed_as_text if given.text else setting.allowed}"
        )
        return setting.default, given.origin
    return value, given.origin


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    text = repr(value) if isinstance(value, str | bool | int | float) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _read(file: str, context: str | None, environment: Mapping[str, str]) -> bytes:
    if context is not None:
        return Contexts.of(environment).read(context)
    if not file:
        return b""
    try:
        with open(file, "rb") as stream:
            return stream.read(FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidConfiguration(
            f"configuration file {file!r} cannot be read: {reason}; give the path of a TOML file "
            f"with --config or {FILE_VARIABLE}"
        ) from error


def _parse(data: bytes, file: str) -> dict[str, Any]:
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfiguration(
            f"configuration file {file!r} is above {FILE_BYTES_MAX} bytes: "
            "`raftwood config example` prints all there is to set"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise InvalidConfiguration(
            f"configuration file {file!r}, line {line}, column {column}: not UTF-8; save the file "
            "as UTF-8"
        ) from error
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        place = _PLACE.search(message)
        if place is not None and place[1]:
            line, column = int(place[1]), int(place[2])
        else:
            line, column = text.count("\n") + 1, len(text) - text.rfind("\n")
        reason = _PLACE.sub("", message)
        where = f"line {line}, column {column}"
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, and arrays nested thousands deep.
        reason, where = str(error), "somewhere"
    raise InvalidConfiguration(
        f"configuration file {file!r}, {where}: {reason}; "
        "`raftwood config example` prints a file that is right"
    )


def _from_file(
    tables: dict[str, Any], source: str, known: Mapping[str, Setting], problems: list[str]
) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    sections = {setting.section for setting in known.values()}
    for section, table in tables.items():
        if section not in sections:
            hint = _closest(section, sections)
            problems.append(f"unknown section {_shown(section)} (from {source}){hint}")
        elif not isinstance(table, dict):
            problems.append(
                f"section {section} cannot be {_shown(table)} (from {source}): "
                f"write it as a table, [{section}]"
            )
        else:
            for key, value in table.items():
                name = f"{section}.{key}"
                if _check_known(name, source, known, problems):
                    found[name] = _Given(value, f"{source}:{name}", text=False)
    return found


def _from_environment(
    environment: Mapping[str, str], known: Mapping[str, Setting], problems: list[str]
) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for variable, value in sorted(environment.items()):
        if (match := _VARIABLE.fullmatch(variable)) is not None:
            name = f"{match[1]}.{match[2]}".lower()
            origin = f"environment {variable}"
            if _check_known(name, origin, known, problems):
                found[name] = _Given(value, origin, text=True)
    return found


def _from_flags(
    flags: Sequence[str], known: Mapping[str, Setting], problems: list[str]
) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals:
            problems.append(f"flag --set {_shown(flag)} has no value: write section.key=value")
        elif not _check_known(name, "flag --set", known, problems):
            continue
        elif known[name].secret:
            problems.append(
                f"setting {name} is a secret, and flags show in the list of processes: give it in "
                f"the file or as {known[name].variable}"
            )
        else:
            found[name] = _Given(value, f"flag --set {name}", text=True)
    return found


def _from_arguments(
    arguments: Mapping[str, Any], known: Mapping[str, Setting], problems: list[str]
) -> dict[str, _Given]:
    return {
        name: _Given(value, f"argument {name}", text=False)
        for name, value in arguments.items()
        if _check_known(name, "arguments", known, problems)
    }


def _check_known(name: str, origin: str, known: Mapping[str, Setting], problems: list[str]) -> bool:
    if name not in known:
        problems.append(f"unknown setting {_shown(name)} (from {origin}){_closest(name, known)}")
    return name in known


def _closest(name: str, known: Iterable[str]) -> str:
    # Comparing takes time by length, and a typing mistake is never this long.
    near = difflib.get_close_matches(name[:100], sorted(known), n=1)
    if near:
        return f": did you mean {near[0]}?"
    return ": `raftwood config show` lists all there are"
