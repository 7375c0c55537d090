"""A page of a checkpoint is what it was, or is refused."""

import datetime

import pytest

from raftwood.base.errors import ProtocolError, UnsupportedVersion
from raftwood.zeppelin.client.arrow_rows import batch_of_page
from raftwood.zeppelin.pages import Page, encode_page

KEYS = [b"a", b"", b"key" * 100]
VALUES = [b"", b"\x00\xff", b"v" * 1000]


def test_a_page_has_the_pairs_that_went_into_it() -> None:
    for ends in ([], [0, 1, (1 << 63) - 1]):
        page = Page.decoded(encode_page(KEYS, VALUES, ends), b"next")
        assert (page.count, page.next_cursor) == (3, b"next")
        assert (page.keys(), page.values(), list(page.ends())) == (KEYS, VALUES, ends)
    empty = Page.decoded(encode_page([], [], []))
    assert (empty.keys(), empty.values(), empty.next_cursor) == ([], [], b"")


def test_a_page_is_columns_of_arrow() -> None:
    batch = batch_of_page(Page.decoded(encode_page(KEYS, VALUES, [0, 1000, 0])))
    ends = datetime.datetime.fromtimestamp(1, datetime.UTC)
    assert batch.to_pydict() == {"key": KEYS, "value": VALUES, "expires": [None, ends, None]}
    stays = batch_of_page(Page.decoded(encode_page(KEYS, VALUES, [])))
    assert stays["expires"].null_count == 3
    assert stays.schema == batch.schema
    assert batch_of_page(Page.decoded(encode_page([], [], []))).num_rows == 0


def test_a_page_with_any_byte_changed_or_missing_is_refused() -> None:
    encoded = encode_page(KEYS, VALUES, [0, 1, 2])
    for place in range(len(encoded)):
        if 20 <= place < 24:
            continue  # nothing stands there
        damaged = bytearray(encoded)
        damaged[place] ^= 0x41
        with pytest.raises((ProtocolError, UnsupportedVersion)):
            Page.decoded(bytes(damaged))
    for length in range(len(encoded)):
        with pytest.raises(ProtocolError):
            Page.decoded(encoded[:length])
