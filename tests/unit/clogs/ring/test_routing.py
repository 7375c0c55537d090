"""A file goes to its pin's server, else where the ring of the live servers has it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftwood.clogs import ring as module
from raftwood.clogs.configuration import RingConfiguration
from raftwood.clogs.ring import Ring, Routing, hashed_part
from tests.kits.clogs.ketama_vectors import CASES, KEYS, named

NAMES = ("log-a", "log-b", "log-c")
CONFIGURATION = RingConfiguration(servers=tuple(named(*NAMES)))


def test_files_go_where_the_ring_has_them() -> None:
    case = CASES["named_equal3"]
    routing = Routing(RingConfiguration(servers=tuple(case.log_servers)), set(NAMES))
    for vector in case.vectors:
        expected = case.log_servers[vector.server]
        assert routing.server_of(vector.key) == expected
        assert routing.ring_name_of(vector.key) == expected.ring_name
        assert routing.server_of(vector.key) == expected, "once more, from the cache"
    assert not routing.is_panic


def test_without_a_server_the_ring_is_that_of_the_others() -> None:
    routing = Routing(CONFIGURATION, {"log-a", "log-c"})
    case = CASES["named_two_after_isolating_b"]
    ring = Ring(case.log_servers)
    for key in KEYS:
        assert routing.ring_name_of(key) == ring.servers[ring.server_of(key)].name


def test_where_no_server_is_live_all_are_used() -> None:
    whole = Routing(CONFIGURATION, set(NAMES))
    for live in (set[str](), {"unknown"}):
        routing = Routing(CONFIGURATION, live)
        assert routing.is_panic
        assert routing.servers_of(KEYS) == whole.servers_of(KEYS)


def test_a_pin_comes_before_the_ring() -> None:
    own = Routing(CONFIGURATION, set(NAMES)).ring_name_of(KEYS[0])
    for name in NAMES:
        pinned = RingConfiguration(servers=CONFIGURATION.servers, pins={KEYS[0]: name})
        routing = Routing(pinned, set(NAMES))
        assert routing.ring_name_of(KEYS[0]) == name
        assert routing.servers_of(KEYS)[0].name == name
        assert [each.name for each in routing.servers_of([f"{KEYS[0]}x"])] == [
            Routing(CONFIGURATION, set(NAMES)).ring_name_of(f"{KEYS[0]}x")
        ]
    assert own in NAMES


def test_a_pin_to_a_server_that_is_not_live_counts_for_nothing() -> None:
    rest = set(NAMES) - {"log-b"}
    for server in ("log-b", "unknown"):
        pinned = RingConfiguration(servers=CONFIGURATION.servers, pins={KEYS[0]: server})
        for live in (rest, rest | {"unknown"}):
            expected = Routing(CONFIGURATION, rest).ring_name_of(KEYS[0])
            assert Routing(pinned, live).ring_name_of(KEYS[0]) == expected


def test_a_pin_counts_where_no_server_is_live() -> None:
    pinned = RingConfiguration(servers=CONFIGURATION.servers, pins=dict.fromkeys(KEYS, "log-b"))
    routing = Routing(pinned, ())
    assert {each.name for each in routing.servers_of(KEYS)} == {"log-b"}
    assert routing.ring_name_of(KEYS[7]) == "log-b"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("a{b}c", "b"),
        ("{b}", "b"),
        ("a{b}{c}", "b"),
        ("a{{b}}c", "{b"),
        ("}a{b}", "b"),
        ("plain", "plain"),
        ("a{}c", "a{}c"),
        ("a{}{b}", "a{}{b}"),
        ("a{b", "a{b"),
        ("a}b{c", "a}b{c"),
        ("", ""),
    ],
)
def test_what_the_tag_encloses_is_hashed(name: str, part: str) -> None:
    assert hashed_part(name, "{}") == part
    assert hashed_part(name, "") == name


def test_both_characters_of_a_tag_may_be_the_same() -> None:
    assert hashed_part("a$b$c", "$$") == "b"
    assert hashed_part("a$b", "$$") == "a$b"
    assert hashed_part("a$$b", "$$") == "a$$b"


def test_files_of_one_tag_share_a_server() -> None:
    names = [f"/var/log/{{shop}}/{number}.log" for number in range(200)]
    routing = Routing(CONFIGURATION, set(NAMES))
    assert len({each.name for each in routing.servers_of(names)}) == 1
    assert len({routing.ring_name_of(name) for name in names}) == 1
    apart = RingConfiguration(servers=CONFIGURATION.servers, hash_tag="")
    assert len({each.name for each in Routing(apart, set(NAMES)).servers_of(names)}) == 3


def test_a_pin_names_the_whole_file_and_not_its_tag() -> None:
    own = Routing(CONFIGURATION, set(NAMES)).ring_name_of("{shop}1")
    other = next(name for name in NAMES if name != own)
    pins = {"{shop}1": other, "shop": other}
    routing = Routing(RingConfiguration(servers=CONFIGURATION.servers, pins=pins), set(NAMES))
    assert routing.ring_name_of("{shop}1") == other
    assert routing.ring_name_of("{shop}2") == own


@given(st.lists(st.text("ab{}", max_size=6), max_size=80), st.sets(st.sampled_from(NAMES)))
def test_many_are_answered_as_one_by_one(names: list[str], live: set[str]) -> None:
    pins = dict.fromkeys(names[::5], "log-b")
    routing = Routing(RingConfiguration(servers=CONFIGURATION.servers, pins=pins), live)
    assert routing.servers_of(names) == [routing.server_of(name) for name in names]


def test_only_so_many_names_are_kept_in_mind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHED_NAMES_MAX", 10)
    routing = Routing(CONFIGURATION, set(NAMES))
    expected = [each.name for each in routing.servers_of(KEYS)]
    for _ in range(2):
        for key, name in zip(KEYS, expected, strict=True):
            assert routing.ring_name_of(key) == name
            assert len(routing._cache) <= 10
