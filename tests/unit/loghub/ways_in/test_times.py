"""Times as clients write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftwood.loghub import json_records

NOW = 1_800_000_000_000_000_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1_700_000_000, 1_700_000_000_000_000_000),
        (1_700_000_000.25, 1_700_000_000_250_000_000),
        (1_700_000_000.123456, 1_700_000_000_123_456_000),
        (1_700_000_000_123, 1_700_000_000_123_000_000),
        (1_700_000_000_123_456, 1_700_000_000_123_456_000),
        (1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
        ("1700000000123456789", 1_700_000_000_123_456_789),
        ("2023-11-14T22:13:20Z", 1_700_000_000_000_000_000),
        ("2023-11-14 22:13:20", 1_700_000_000_000_000_000),
        ("2023-11-14T23:13:20.123456789+01:00", 1_700_000_000_123_456_789),
        ("2023-11-14T21:13:20,5-0100", 1_700_000_000_500_000_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000_000),
        ("2023-02-30T00:00:00Z", None),
        ("0001-01-01T00:00:00+23:59", -62_135_683_140_000_000_000),
        ("2023-11-14T22:13:20+99:99", None),
        ("yesterday", None),
        ("²", None),
        (-1, None),
        (1e30, None),
        (float("nan"), None),
        (True, None),
        (None, None),
        ({"a": 1}, None),
    ],
)
def test_a_time_is_read_in_any_usual_form(value: object, expected: int | None) -> None:
    assert json_records.from_any(value) == expected


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans()))
def test_no_value_breaks_the_reading(value: object) -> None:
    found = json_records.from_any(value)
    assert 0 <= json_records.sensible(found, NOW) < (1 << 32) * 10**9


@pytest.mark.parametrize("senseless", [None, 0, 1, NOW + 2 * 86_400 * 10**9, -5, 1 << 70])
def test_a_time_that_makes_no_sense_is_the_receipt(senseless: int | None) -> None:
    assert json_records.sensible(senseless, NOW) == NOW


def test_a_time_that_makes_sense_is_kept() -> None:
    assert json_records.sensible(NOW - 10**18 // 2, NOW) == NOW - 10**18 // 2
    assert json_records.sensible(NOW + 10**9, NOW) == NOW + 10**9
