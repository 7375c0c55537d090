"""Parameters and JSON bodies of SLS calls, read with errors that name what is wrong."""

from typing import Final, TypeVar

import msgspec

from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.sls.login import check_body

JSON_BYTES_MAX: Final = 1 << 20
_Body = TypeVar("_Body")


def project_of(request: Request) -> str:
    if not request.project:
        raise InvalidParameter("no project is named: send it in Host, as project.endpoint")
    return request.project


def text_parameter(request: Request, name: str) -> str:
    value = request.parameters.get(name)
    if not value:
        raise InvalidParameter(f"the parameter {name} is missing")
    return value


def number_parameter(request: Request, name: str, default: int | None = None) -> int:
    value = request.parameters.get(name, "")
    if not value and default is not None:
        return default
    return number(value, name)


def number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidParameter(f"{name} {text[:40]!r} is no number: give 0 or more")
    return int(text)


def flag_parameter(request: Request, name: str) -> bool:
    """Python's SDK writes `True`, others `true`."""
    value = request.parameters.get(name, "false").lower()
    if value not in ("true", "false"):
        raise InvalidParameter(f"{name} {value[:40]!r} is neither true nor false")
    return value == "true"


async def json_body(request: Request, kind: type[_Body]) -> _Body:
    """The body as a struct; what the struct does not know is left out."""
    body = await request.body(bytes_max=JSON_BYTES_MAX)
    check_body(request, body)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidParameter(f"the body cannot be read: {error}") from error
