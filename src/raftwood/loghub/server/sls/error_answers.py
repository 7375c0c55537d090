"""Errors as SLS clients expect them: a status, a code they know, and a message."""

from typing import Final

import msgspec

from raftwood.base.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidInput,
    NotFound,
    OutOfRange,
    PermissionDenied,
    RaftwoodError,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from raftwood.loghub.errors import SlsError
from raftwood.loghub.server.http.routes import Answer

_CODES: Final[tuple[tuple[type[RaftwoodError], int, str], ...]] = (
    (Unauthenticated, 401, "Unauthorized"),
    (PermissionDenied, 403, "Unauthorized"),
    (TooLarge, 413, "PostBodyTooLarge"),
    (OutOfRange, 400, "InvalidCursor"),
    (InvalidInput, 400, "ParameterInvalid"),
    (NotFound, 404, "ParameterInvalid"),
    (Conflict, 409, "ParameterInvalid"),
    # Clients try again after any 5xx, and after nothing else.
    (DeadlineExceeded, 504, "RequestTimeout"),
    (Unavailable, 503, "ServerBusy"),
)


class ErrorBody(msgspec.Struct, frozen=True, gc=False):
    """What a client reads."""

    errorCode: str  # noqa: N815
    errorMessage: str  # noqa: N815


def error_answer(error: RaftwoodError) -> Answer:
    status, code = _status_and_code(error)
    return Answer(status=status, body=msgspec.json.encode(ErrorBody(code, error.message)))


def _status_and_code(error: RaftwoodError) -> tuple[int, str]:
    if isinstance(error, SlsError):
        return error.http_status, error.sls_code
    for kind, status, code in _CODES:
        if isinstance(error, kind):
            return status, code
    return 500, "InternalServerError"
