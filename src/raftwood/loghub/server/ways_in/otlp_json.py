"""OTLP's JSON: not quite protobuf's, for ids are hexadecimal and 64-bit numbers may be texts.

The structs have the names of the protobuf messages' fields, so that both are walked alike.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import msgspec

from raftwood.loghub.decode_bounds import DecodeBounds, check_json
from raftwood.loghub.server.ways_in.json_records import UNREADABLE, refused

_Whole = Annotated[str, msgspec.Meta(pattern=r"\A-?[0-9]{1,20}\Z")] | int
_Id = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-fA-F]*\Z", max_length=64)]


class _Message(msgspec.Struct, frozen=True, rename="camel"):
    """What OTLP sends; fields that are not known are skipped."""


class _Values(_Message, frozen=True):
    """A list."""

    values: "list[_Any]" = []


class _Pairs(_Message, frozen=True):
    """A map."""

    values: "list[_Pair]" = []


class _Any(_Message, frozen=True):
    """A value of some kind."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: _Whole | None = None
    double_value: float | str | None = None
    array_value: _Values | None = None
    kvlist_value: _Pairs | None = None
    bytes_value: str | None = None


class _Pair(_Message, frozen=True):
    """An attribute."""

    key: str = ""
    value: _Any | None = None


class _Resource(_Message, frozen=True):
    """Who made the records."""

    attributes: list[_Pair] = []


class _Scope(_Message, frozen=True):
    """By which library."""

    name: str = ""
    version: str = ""
    attributes: list[_Pair] = []


class _Record(_Message, frozen=True):
    """One record."""

    time_unix_nano: _Whole = 0
    observed_time_unix_nano: _Whole = 0
    severity_number: int = 0
    severity_text: str = ""
    body: _Any | None = None
    attributes: list[_Pair] = []
    flags: int = 0
    trace_id: _Id = ""
    span_id: _Id = ""
    event_name: str = ""


_EMPTY: Final = msgspec.Raw(b"{}")


class _OfScope(_Message, frozen=True):
    """Records of one scope; what is in it is decoded a slice at a time."""

    scope: msgspec.Raw = _EMPTY
    log_records: list[msgspec.Raw] = []


class _OfResource(_Message, frozen=True):
    """Records of one resource."""

    resource: msgspec.Raw = _EMPTY
    scope_logs: list[_OfScope] = []


class _Request(_Message, frozen=True):
    """An export request."""

    resource_logs: list[_OfResource] = []


_decode_request: Final = msgspec.json.Decoder(_Request).decode
_decode_resource: Final = msgspec.json.Decoder(_Resource).decode
_decode_scope: Final = msgspec.json.Decoder(_Scope).decode
_decode_records: Final = msgspec.json.Decoder(list[_Record]).decode


class JsonRequest:
    """A request taken apart, or `InvalidInput` that names the field."""

    def __init__(self, data: bytes, bounds: DecodeBounds) -> None:
        self._bounds = bounds
        try:
            self._request = _decode_request(data)
        except UNREADABLE as error:
            raise refused("the export request", error) from error

    def resources(self) -> Iterator[tuple[msgspec.Raw, list[_OfScope]]]:
        return ((each.resource, each.scope_logs) for each in self._request.resource_logs)

    def scopes(self, scopes: list[_OfScope]) -> Iterator[tuple[msgspec.Raw, list[msgspec.Raw]]]:
        return ((each.scope, each.log_records) for each in scopes)

    @staticmethod
    def size_of(record: msgspec.Raw) -> int:
        return len(memoryview(record))

    def resource(self, data: msgspec.Raw) -> Any:
        return self._decoded(_decode_resource, data, "a resource of the export request")

    def scope(self, data: msgspec.Raw) -> Any:
        return self._decoded(_decode_scope, data, "a scope of the export request")

    def records(self, part: list[msgspec.Raw]) -> Any:
        """Decoded together; those that are not small are judged before."""
        encoded = [bytes(each) for each in part]
        for data in encoded:
            if len(data) > self._bounds.keys_max:
                check_json(data, self._bounds, "a record of the export request")
        try:
            return _decode_records(b"[%b]" % b",".join(encoded))
        except UNREADABLE as error:
            raise refused("a record of the export request", error) from error

    def _decoded(self, decode: Callable[[bytes], Any], raw: msgspec.Raw, name: str) -> Any:
        data = bytes(raw)
        check_json(data, self._bounds, name)
        try:
            return decode(data)
        except UNREADABLE as error:
            raise refused(name, error) from error


def plain(value: _Any | None) -> Any:
    """What JSON has for it; None for one that is not set."""
    if value is None:
        return None
    if value.string_value is not None:
        return value.string_value
    if value.int_value is not None:
        return int(value.int_value)
    if value.array_value is not None:
        return [plain(each) for each in value.array_value.values]
    if value.kvlist_value is not None:
        return {each.key: plain(each.value) for each in value.kvlist_value.values}
    for other in (value.bool_value, value.double_value, value.bytes_value):
        if other is not None:
            return other
    return None
