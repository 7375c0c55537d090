"""Queries to a replicated metastore and their answers, as bytes; both are bounded in size."""

from typing import TypeVar

import msgspec

from raftwood.base.errors import InternalError, InvalidInput, RaftwoodError, error_class
from raftwood.base.seams import KeyChange, KeyRange, MetaStatus, Versioned
from raftwood.metastore.commands import MetastoreFailed, failed
from raftwood.metastore.rules import MetastoreState

ANSWER_BYTES_MAX = 1 << 20
"""Keys and values in one answer; a single value may be larger."""


class GetQuery(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Asks for one key."""

    key: str


class RangeQuery(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Asks for keys in order. An answer may end early, and then says where to read on."""

    prefix: str
    start: str
    end: str | None
    limit: int


class ChangesQuery(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Asks for about `limit` changes after a version; those of one version come together."""

    prefix: str
    after_version: int
    limit: int


class DescribeQuery(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Asks for the store's figures."""


Query = GetQuery | RangeQuery | ChangesQuery | DescribeQuery


class GetAnswer(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """A key's value, if it exists."""

    value: Versioned | None


class RangeAnswer(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A part of a range."""

    range: KeyRange


class ChangesAnswer(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Changes by version; nothing else below the prefix has changed up to `version`."""

    changes: tuple[tuple[KeyChange, ...], ...]
    version: int


class DescribeAnswer(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The store's figures."""

    status: MetaStatus


Answer = GetAnswer | RangeAnswer | ChangesAnswer | DescribeAnswer
AnswerType = TypeVar("AnswerType", GetAnswer, RangeAnswer, ChangesAnswer, DescribeAnswer)

_encoder = msgspec.msgpack.Encoder()
_queries: msgspec.msgpack.Decoder[Query] = msgspec.msgpack.Decoder(Query)
_answers: msgspec.msgpack.Decoder[Answer | MetastoreFailed] = msgspec.msgpack.Decoder(
    Answer | MetastoreFailed
)


def encode_query(query: Query) -> bytes:
    return _encoder.encode(query)


def answer(state: MetastoreState, query: bytes) -> bytes:
    """Answers a query from a state; an error is an answer too."""
    said: Answer | MetastoreFailed
    try:
        said = _answer(state, _queries.decode(query))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        said = failed(InvalidInput(f"not a question to the metastore: {error}"))
    except RaftwoodError as error:
        said = failed(error)
    return _encoder.encode(said)


def decode_changes(query: bytes) -> ChangesQuery | None:
    """Decodes a query for changes; None for any other."""
    try:
        asked = _queries.decode(query)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return asked if isinstance(asked, ChangesQuery) else None


def decode_answer(data: bytes, expected: type[AnswerType]) -> AnswerType:
    """Returns the answer; raises the error that it carries."""
    said = _answers.decode(data)
    if isinstance(said, MetastoreFailed):
        raise error_class(said.code)(said.message)
    if not isinstance(said, expected):
        raise InternalError(f"the metastore answered {said!r:.80} to another question")
    return said


def _answer(state: MetastoreState, query: Query) -> Answer:
    match query:
        case GetQuery(key):
            return GetAnswer(state.get(key))
        case RangeQuery(prefix, start, end, limit):
            found = state.range(prefix=prefix, start=start, end=end, limit=limit)
            return RangeAnswer(_first_part(found))
        case ChangesQuery(prefix, after_version, limit):
            return _changed(state, prefix, after_version=after_version, limit=limit)
        case DescribeQuery():
            return DescribeAnswer(state.status())


def _first_part(found: KeyRange) -> KeyRange:
    size = 0
    for position, entry in enumerate(found.entries):
        size += len(entry.key) + len(entry.value)
        if size > ANSWER_BYTES_MAX and position:
            return KeyRange(found.entries[:position], found.version, entry.key)
    return found


def _changed(
    state: MetastoreState, prefix: str, *, after_version: int, limit: int
) -> ChangesAnswer:
    groups = state.changes(prefix, after_version=after_version)
    count = size = 0
    for position, group in enumerate(groups):
        count += len(group)
        size += sum(len(change.key) + len(change.value or b"") for change in group)
        if position and (count > limit or size > ANSWER_BYTES_MAX):
            return ChangesAnswer(tuple(groups[:position]), groups[position - 1][0].version)
    return ChangesAnswer(tuple(groups), state.version)
