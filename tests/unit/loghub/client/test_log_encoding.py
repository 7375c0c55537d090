"""Records that are put together by hand are what protobuf makes of them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftwood.base.errors import InvalidInput
from raftwood.loghub.client.log_encoding import encode_record, encode_shared
from raftwood.loghub.log_groups import LogGroup

_values = st.text(max_size=20) | st.binary(max_size=200) | st.just("x" * 20_000)


@settings(max_examples=100)
@given(
    st.dictionaries(st.text(max_size=10), _values, max_size=5),
    st.integers(0, (1 << 32) * 1_000_000_000 - 1),
)
def test_protobuf_reads_what_was_encoded(contents: dict[str, str | bytes], time_ns: int) -> None:
    shared = encode_shared(topic="t", source="ß", tags=[("a", "b"), ("", "")])
    group = LogGroup.FromString(encode_record(contents, time_ns) + shared)
    (log,) = group.Logs
    assert log.Time * 1_000_000_000 + log.Time_ns == time_ns
    assert [(each.Key, each.Value) for each in log.Contents] == [
        (key.encode(), value.encode() if isinstance(value, str) else value)
        for key, value in contents.items()
    ]
    assert (group.Topic, group.Source) == (b"t", "ß".encode())
    assert [(tag.Key, tag.Value) for tag in group.LogTags] == [(b"a", b"b"), (b"", b"")]


def test_escaped_bytes_go_back_to_what_they_were() -> None:
    text = b"caf\xe9".decode("utf-8", "surrogateescape")
    (log,) = LogGroup.FromString(encode_record({text: text}, 0)).Logs
    assert (log.Contents[0].Key, log.Contents[0].Value) == (b"caf\xe9", b"caf\xe9")


@pytest.mark.parametrize("odd", [{"a": 5}, {"a": None}, {5: "a"}, {"a": "\ud800"}, {"\ud800": ""}])
def test_what_is_no_text_is_refused(odd: Any) -> None:
    with pytest.raises(InvalidInput):
        encode_record(odd, 0)


def test_many_keys_and_sizes_are_encoded_without_being_remembered_for_ever() -> None:
    for number in range(70_000):
        assert encode_record({f"key-{number}": "x"}, 0)[-1:] == b"x"
