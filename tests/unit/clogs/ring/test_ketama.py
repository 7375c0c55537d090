"""The ring sends each key where the real twemproxy sends it."""

import hashlib
import importlib.util
import itertools
import struct
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftwood.base.errors import InvalidConfiguration, InvalidInput
from raftwood.clogs import ring as ring_module
from raftwood.clogs.configuration import SERVERS_MAX, LogServer
from raftwood.clogs.ring import Ring, key_hash
from tests.kits.clogs.ketama_vectors import CASES, KEYS, MEASURED, Case, digest, equal, named

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
def test_single_keys_go_where_twemproxy_sends_them(case: Case) -> None:
    ring = Ring(case.log_servers)
    for vector in case.vectors:
        assert key_hash(vector.key) == vector.hash
        assert ring.server_of(vector.key) == vector.server
        assert ring.server_of(vector.key.encode()) == vector.server


@every_case
def test_names_and_numbers_of_points_are_those_of_twemproxy(case: Case) -> None:
    ring = Ring(case.log_servers)
    assert [each.ring_name for each in ring.servers] == [each.ring_name for each in case.servers]
    assert list(ring.points) == [each.points for each in case.servers]


@every_case
def test_two_thousand_keys_go_where_twemproxy_sends_them(case: Case) -> None:
    ring = Ring(case.log_servers)
    assert digest(map(ring.server_of, KEYS)) == case.digest_of_2000
    assert digest(ring.servers_of(KEYS)) == case.digest_of_2000
    assert digest(ring.servers_of([key.encode() for key in KEYS])) == case.digest_of_2000


@every_case
def test_without_numpy_the_answers_are_the_same(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring_module, "_numpy", lambda: None)
    assert digest(Ring(case.log_servers).servers_of(KEYS)) == case.digest_of_2000


def test_without_pythons_own_md5_the_answers_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "_md5", None)
    specification = importlib.util.spec_from_file_location("other_ketama", ring_module.__file__)
    assert specification is not None
    assert specification.loader is not None
    other = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(other)
    assert other.md5.func is hashlib.md5
    case = CASES["weights_1_2_5"]
    assert digest(other.Ring(case.log_servers).servers_of(KEYS)) == case.digest_of_2000


def test_equal_servers_have_156_points_where_single_precision_rounds_down() -> None:
    def points(count: int) -> int:
        return 4 * ring_module.hashes_of_server(weight=1, total_weight=count, count=count)

    found = [count for count in range(1, 123) if points(count) == 156]
    assert found == MEASURED.equal_servers_with_156_points
    assert {points(count) for count in range(1, 123)} == {156, 160}


def _float64_points(*, weight: int, total_weight: int, count: int) -> int:
    return int(weight / total_weight * 160 / 4 * count + 1e-10)


def _big_endian(name: str | bytes) -> int:
    key = name if isinstance(name, bytes) else name.encode()
    return int.from_bytes(hashlib.md5(key).digest()[:4], "big")


def _points_with_weight(name: str, hashes: int) -> tuple[int, ...]:
    return _POINTS_OF(f"{name}:1", hashes)


_POINTS_OF = ring_module._points_of
MUTANTS: dict[str, tuple[str, Callable[..., object]]] = {
    "points in double precision": ("hashes_of_server", _float64_points),
    "a key's hash is big-endian": ("key_hash", _big_endian),
    "the weight is part of the name": ("_points_of", _points_with_weight),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_vectors_catch(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_module, *MUTANTS[mutant])
    wrong = [
        case.name
        for case in CASES.values()
        if digest(map(Ring(case.log_servers).server_of, KEYS)) != case.digest_of_2000
    ]
    if mutant == "points in double precision":
        assert wrong == ["equal_n25_float32_quirk"]
    else:
        assert wrong == [name for name in CASES if name != "single"]


def _with_points(monkeypatch: pytest.MonkeyPatch, points: dict[str, list[int]]) -> Ring:
    """A ring whose points are known."""

    def points_of(name: str, _hashes: int) -> tuple[int, ...]:
        return tuple(point << ring_module._OWNER_BITS for point in sorted(points[name]))

    monkeypatch.setattr(ring_module, "_points_of", points_of)
    return Ring(named(*points))


def _with_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is its own hash."""
    monkeypatch.setattr(ring_module, "key_hash", int)


def test_a_key_exactly_at_a_point_belongs_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = _with_points(monkeypatch, {"a": [10, 30], "b": [20, 40]})
    _with_hashes(monkeypatch)
    at = {hash_: ring.server_of(str(hash_)) for hash_ in (0, 10, 11, 20, 21, 30, 40)}
    assert at == {0: 0, 10: 0, 11: 1, 20: 1, 21: 0, 30: 0, 40: 1}


@pytest.mark.parametrize("later", [0, 1 << ring_module._OWNER_BITS])
def test_a_search_for_the_point_behind_a_key_would_be_seen(
    later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A point above the hash is looked for, instead of one at it: of the first server, or any."""
    monkeypatch.setattr(
        ring_module, "bisect_left", lambda circle, at: bisect_right(circle, at + later)
    )
    with pytest.raises(AssertionError):
        test_a_key_exactly_at_a_point_belongs_to_it(monkeypatch)


def test_a_key_behind_the_last_point_is_at_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = _with_points(monkeypatch, {"a": [20, 40], "b": [10, 30]})
    _with_hashes(monkeypatch)
    assert ring.server_of("41") == 1
    assert ring.server_of(str((1 << 32) - 1)) == 1


def test_a_key_exactly_at_a_point_belongs_to_it_in_batches_too() -> None:
    ring = Ring(equal(2))
    # One key's hash is a point of a server that has just this one.
    for key in KEYS[:100]:
        points = (key_hash(key), (key_hash(key) + 1) % (1 << 32))
        with pytest.MonkeyPatch.context() as monkeypatch:
            ring = _with_points(monkeypatch, {"at": [points[0]], "behind": [points[1]]})
        assert ring.server_of(key) == 0
        assert ring.servers_of([key] * 64) == [0] * 64


def test_of_equal_points_the_first_server_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [key_hash(KEYS[0]), 5]
    for names in (["a", "b"], ["b", "a"]):
        ring = _with_points(monkeypatch, dict.fromkeys(names, both))
        assert ring.server_of(KEYS[0]) == 0
        assert ring.servers_of(KEYS[:1] * 64) == [0] * 64
    ring = _with_points(monkeypatch, {"c": [7], "a": both, "b": both})
    assert ring.server_of(KEYS[0]) == 1


def test_the_empty_key_stands_at_zero() -> None:
    ring = Ring(equal(9))
    first = min(range(9), key=lambda number: min(_POINTS_OF(f"server{number}", 40)))
    assert key_hash("") == key_hash(b"") == 0
    assert ring.server_of("") == first
    assert ring.servers_of([""] * 100) == [first] * 100
    assert ring.servers_of([*KEYS, ""]) == [*ring.servers_of(KEYS), first]


def test_one_server_has_all_keys() -> None:
    ring = Ring(named("alone", weight=7))
    assert set(ring.servers_of(KEYS)) == {0}
    assert ring.points == (160,)


def test_what_was_no_utf_8_is_hashed_as_the_bytes_that_it_was() -> None:
    ring = Ring(equal(50))
    raw = [b"\xff%d.log" % number for number in range(100)]
    texts = [each.decode("utf-8", "surrogateescape") for each in raw]
    assert ring.servers_of(texts) == ring.servers_of(raw) == [ring.server_of(each) for each in raw]
    assert len(set(ring.servers_of(texts))) > 1
    with pytest.raises(InvalidInput, match="half of a character"):
        ring.server_of("\ud800")


@given(st.integers(2, 60), st.data())
def test_the_keys_of_other_servers_stay_when_one_is_isolated(
    count: int, data: st.DataObject
) -> None:
    servers = equal(count)
    gone = data.draw(st.integers(0, count - 1))
    ring, rest = Ring(servers), Ring(servers[:gone] + servers[gone + 1 :])
    keys = KEYS[:200]
    before = [ring.servers[number] for number in ring.servers_of(keys)]
    after = [rest.servers[number] for number in rest.servers_of(keys)]
    moved = {was.name for was, now in zip(before, after, strict=True) if was != now}
    if set(ring.points) == set(rest.points):
        assert moved <= {servers[gone].name}


def test_other_keys_move_where_the_number_of_points_changes() -> None:
    """As with twemproxy: 160 points of 26 servers become 156 of 25."""
    servers = equal(26)
    ring, rest = Ring(servers), Ring(servers[:25])
    moved = [key for key in KEYS if ring.server_of(key) not in (25, rest.server_of(key))]
    assert 0 < len(moved) < len(KEYS) / 10


@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 1_000_000), min_size=1, max_size=20),
    st.lists(st.text(max_size=40), max_size=100),
)
def test_a_batch_is_answered_as_its_keys_are_one_by_one(
    weights: list[int], keys: list[str]
) -> None:
    servers = [
        LogServer(host="h", port=1 + number, weight=weight) for number, weight in enumerate(weights)
    ]
    ring = Ring(servers)
    assert ring.servers_of(keys) == [ring.server_of(key) for key in keys]
    points = _plain_points(ring)
    assert ring.servers_of(keys) == [_plainly(points, key) for key in keys]


def _plain_points(ring: Ring) -> list[tuple[int, int]]:
    return [
        (point, number)
        for number, server in enumerate(ring.servers)
        for index in range(ring.points[number] // 4)
        for point in struct.unpack(
            "<4I", hashlib.md5(f"{server.ring_name}-{index}".encode()).digest()
        )
    ]


def _plainly(points: list[tuple[int, int]], key: str) -> int:
    """The rule as it is told, without anything that makes it fast."""
    place = int.from_bytes(hashlib.md5(key.encode()).digest()[:4], "little") if key else 0
    return min([each for each in points if each[0] >= place] or points)[1]


def test_servers_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="two servers are called 'a:1' in the ring"):
        Ring([LogServer(host="a", port=1), LogServer(host="b", port=2, name="a:1")])


def test_a_ring_has_a_server_and_not_too_many() -> None:
    with pytest.raises(InvalidConfiguration, match="needs a server"):
        Ring([])
    with pytest.raises(InvalidConfiguration, match=f"name up to {SERVERS_MAX}"):
        Ring(equal(SERVERS_MAX + 1))


def test_the_last_of_very_many_servers_is_found() -> None:
    ring = Ring(equal(SERVERS_MAX))
    found = set(ring.servers_of([f"key{number}" for number in range(100_000)]))
    assert max(found) == SERVERS_MAX - 1
    assert len(found) > SERVERS_MAX * 0.99


def test_a_server_with_hardly_any_weight_has_no_points() -> None:
    ring = Ring([*named("light"), *named("heavy", weight=1_000_000)])
    assert ring.points[0] == 0
    assert set(ring.servers_of(KEYS)) == {1}


def test_a_ring_without_one_of_many_hashes_only_what_is_new() -> None:
    servers = equal(40)
    ring_module._points_of.cache_clear()
    Ring(servers)
    Ring(servers[1:])
    assert ring_module._points_of.cache_info().misses == 40


def test_a_few_look_ups_load_no_numpy() -> None:
    """An application that logs should not pay for it."""
    program = """
import sys
from raftwood.clogs.configuration import LogServer
from raftwood.clogs.ring import Ring
Ring([LogServer(host="a", port=1), LogServer(host="b", port=1)]).servers_of(["x"] * 63)
sys.exit("numpy" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_points_differ_in_ways_that_the_weights_tell() -> None:
    counts = [
        Ring([*named("a", weight=first), *named("b", weight=second)]).points
        for first, second in itertools.product((1, 2, 3), repeat=2)
    ]
    assert counts[0] == counts[4] == counts[8] == (160, 160)
    assert counts[1] == (104, 212)
