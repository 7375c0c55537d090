"""Any bytes as a page of a checkpoint, and as a file of a backup, which has pages in it."""

import contextlib

from raftwood.base.errors import ProtocolError, StoreError
from raftwood.zeppelin.backup_format import encode_file, packed, pages_in
from raftwood.zeppelin.client.arrow_rows import batch_of_page
from raftwood.zeppelin.pages import Page, encode_page


def target(data: bytes) -> None:
    with contextlib.suppress(ProtocolError, StoreError):
        _use(Page.decoded(data))
    with contextlib.suppress(StoreError):
        for page in pages_in(data, "a file"):
            _use(page)


def _use(page: Page) -> None:
    assert len(page.keys()) == len(page.values()) == page.count
    assert len(page.ends()) in (0, page.count)
    with contextlib.suppress(ProtocolError):
        assert batch_of_page(page).num_rows == page.count


def seeds() -> list[bytes]:
    pages = [
        encode_page([b"a", b"{t}b"], [b"1", b""], []),
        encode_page([b"a", b"b"], [b"\x00", b"2"], [0, 1_700_000_000_000]),
    ]
    return [*pages, encode_file(3, 1, [packed(Page.decoded(page)) for page in pages])]
