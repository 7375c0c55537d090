"""A configuration's text: one for each configuration, and every mistake is told with its remedy."""

import random
from typing import Any

import msgspec
import pytest

from raftwood.base.errors import InvalidConfiguration
from raftwood.clogs.configuration import (
    CONFIGURATION_BYTES_MAX,
    SERVERS_MAX,
    HaRules,
    LogServer,
    RingConfiguration,
    accepted,
    check_configuration,
    configuration_digest,
    decode_configuration,
    decode_file,
    encode_configuration,
)
from tests.kits.clogs.rings import ring

GOLDEN = (
    b'{"ha":{"check_gap_ms":5000,"invalid_checks_max":3,"isolated_percent_max":100,'
    b'"isolation_first_ms":1000,"isolation_longest_ms":300000},"hash_tag":"{}",'
    b'"pins":{"/a":"one","/b":"one"},'
    b'"servers":[{"host":"h","name":"one","port":1,"weight":1}]}'
)
_ONE = LogServer(host="h", port=1, name="one")
CONFIGURATION = RingConfiguration(servers=(_ONE,), pins={"/b": "one", "/a": "one"})


def test_the_canonical_text_has_keys_in_order_and_defaults_written_out() -> None:
    assert encode_configuration(CONFIGURATION) == GOLDEN
    assert configuration_digest(CONFIGURATION) == "4b5f0bd2fbefe708aea3ee849b1ce3b7"


def test_other_spellings_of_a_configuration_have_the_same_digest() -> None:
    servers = b' {"servers": [{"port": 1, "name": "one", "host": "h"}],'
    plain = servers + b'\n "pins": {"/a": "one", "/b": "one"}}'
    assert decode_configuration(plain) == decode_configuration(GOLDEN) == CONFIGURATION
    assert configuration_digest(decode_configuration(plain)) == configuration_digest(CONFIGURATION)
    assert configuration_digest(ring("a", "b")) != configuration_digest(ring("b", "a"))


def test_a_file_may_be_toml_and_say_its_version() -> None:
    toml = b'version = 7\n[[servers]]\nhost = "h"\nport = 1\nname = "one"\n'
    toml += b'[pins]\n"/a" = "one"\n"/b" = "one"\n'
    assert decode_file(toml, "ring.TOML") == (CONFIGURATION, 7)
    assert decode_file(GOLDEN, "ring.json") == (CONFIGURATION, None)
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        decode_file(toml, "ring.json")
    with pytest.raises(InvalidConfiguration, match="unknown field `version`"):
        decode_configuration(b'{"version": 7, ' + GOLDEN[1:])


@pytest.mark.parametrize("version", [b"0", b"-1", b'"7"', b"1.5", b"1e400", b"9" * 30])
def test_a_version_is_a_whole_number_above_zero(version: bytes) -> None:
    with pytest.raises(InvalidConfiguration, match="version"):
        decode_file(b'{"version": ' + version + b", " + GOLDEN[1:], "ring.json")


def _changed(**changes: Any) -> RingConfiguration:
    return msgspec.structs.replace(CONFIGURATION, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"servers": (), "pins": {}}, "the ring has 0 servers: name 1 to 4096"),
        (
            {"servers": tuple(LogServer(host=f"h{i}", port=1) for i in range(SERVERS_MAX + 1))},
            "the ring has 4097 servers",
        ),
        (
            {
                "servers": (
                    LogServer(host="h", port=1, name="one"),
                    LogServer(host="i", port=1, name="one"),
                )
            },
            "two servers are named 'one'",
        ),
        (
            {
                "servers": (
                    LogServer(host="h", port=1, name="one"),
                    LogServer(host="H", port=1, name="two"),
                )
            },
            "servers 'one' and 'two' are both at H:1",
        ),
        ({"servers": (LogServer(host="h", port=1, name="one\n"),)}, "a name that cannot be shown"),
        ({"servers": (LogServer(host="h", port=0, name="one"),)}, r"servers\[0\].port"),
        ({"servers": (LogServer(host="h", port=1, name="one", weight=0),)}, "weight"),
        ({"servers": (LogServer(host="h h", port=1, name="one"),)}, "host"),
        ({"hash_tag": "{{"}, "two different printable characters"),
        ({"hash_tag": "{"}, "hash_tag"),
        ({"pins": {"/a": "three"}}, "'/a' is pinned to 'three', which is no server"),
        ({"pins": {"": "one"}}, "cannot be a file's name"),
        ({"pins": {"a\nb": "one"}}, "cannot be a file's name"),
        ({"pins": {"x" * 1025: "one"}}, "cannot be a file's name"),
        (
            {"ha": HaRules(isolation_first_ms=2_000, isolation_longest_ms=1_000)},
            "isolation_longest_ms is 1000, less than",
        ),
        ({"ha": HaRules(check_gap_ms=1)}, "check_gap_ms"),
        ({"pins": {f"{i:0900}": "one" for i in range(600)}}, "bytes, more than 491520"),
    ],
)
def test_a_mistake_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    configuration = _changed(**changes)
    with pytest.raises(InvalidConfiguration, match=message):
        check_configuration(configuration)
    with pytest.raises(InvalidConfiguration, match=message):
        decode_configuration(encode_configuration(configuration))


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        check_configuration(_changed(hash_tag="xx", pins={f"/{i}": "nobody" for i in range(30)}))
    lines = caught.value.message.splitlines()
    assert len(lines) == 21
    assert lines[0].startswith("hash_tag")
    assert lines[-1] == "and 11 more"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b'{"servers": ' + b"[" * 100_000,
        b'{"servers": [{"host": "\\ud800", "port": 1}]}',
        b" " * (CONFIGURATION_BYTES_MAX + 1),
    ],
)
def test_what_is_no_configuration_is_refused_in_any_file(data: bytes) -> None:
    for name in ("ring.json", "ring.toml", "ring"):
        with pytest.raises(InvalidConfiguration):
            decode_file(data, name)
    with pytest.raises(InvalidConfiguration):
        decode_configuration(data)


def test_toml_that_nests_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="nested too deeply"):
        decode_file(b"servers = " + b"[" * 20_000, "ring.toml")


def test_a_text_that_was_changed_on_its_way_is_refused() -> None:
    digest = configuration_digest(CONFIGURATION)
    assert accepted(3, digest, GOLDEN).configuration == CONFIGURATION
    with pytest.raises(InvalidConfiguration, match=r"version 3 .* another text than its digest"):
        accepted(3, digest, GOLDEN.replace(b"5000", b"6000"))


def test_the_largest_ring_fits() -> None:
    source = random.Random(1)
    servers = tuple(
        LogServer(host=f"log-server-{i}.example.com", port=source.randint(1, 65_535), weight=i + 1)
        for i in range(SERVERS_MAX)
    )
    assert check_configuration(RingConfiguration(servers=servers)).servers == servers
