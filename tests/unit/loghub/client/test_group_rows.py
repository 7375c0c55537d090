"""The records of a LogGroup, whichever way they are read."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from raftwood.base.errors import InvalidInput
from raftwood.loghub.client import pulled_batches
from raftwood.loghub.client.pulled_batches import rows_of
from raftwood.loghub.log_groups import LogGroup


def group(records: Sequence[Mapping[Any, str | bytes]]) -> bytes:
    made = LogGroup(Topic=b"topic", Source=b"\xff")
    made.LogTags.add(Key=b"host", Value=b"web")
    for number, record in enumerate(records):
        log = made.Logs.add(Time=1000 + number)
        log.Time_ns = number
        for key, value in record.items():
            log.Contents.add(
                Key=key.encode() if isinstance(key, str) else key,
                Value=value.encode() if isinstance(value, str) else value,
            )
    return bytes(made.SerializeToString())


GROUPS: dict[str, Sequence[Mapping[Any, str | bytes]]] = {
    "alike": [{"a": f"value {number}"} for number in range(100)],
    "two keys": [{"a": f"value {number}", "b": "€"} for number in range(100)],
    "some lack a key": [{"a": "x", **({"b": "y"} if number % 3 else {})} for number in range(100)],
    "not all is text": [{"a": b"\xff\xfe" if number == 50 else "x" * 20} for number in range(100)],
    "keys that are no text": [{b"\xff": "x" * 20} for _ in range(100)],
    "without contents": [{} for _ in range(300)],
    "few": [{"a": "b"}],
    "none": [],
}


@pytest.mark.parametrize("name", GROUPS)
def test_columns_and_protobuf_say_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = group(GROUPS[name])
    rows = rows_of(data)
    monkeypatch.setattr(pulled_batches, "_has_arrow", lambda: False)
    assert rows == rows_of(data)
    assert (rows.topic, rows.source, rows.tags) == ("topic", b"\xff", {"host": "web"})
    assert rows.times_ns == [
        (1000 + number) * 1_000_000_000 + number for number in range(len(GROUPS[name]))
    ]


def test_a_group_with_very_many_keys_is_read_as_well() -> None:
    records = [{f"key {number}": "x"} for number in range(1500)]
    assert rows_of(group(records)).contents == records


def test_what_is_no_group_is_refused() -> None:
    with pytest.raises(InvalidInput):
        rows_of(b"\xff" * 2000)
