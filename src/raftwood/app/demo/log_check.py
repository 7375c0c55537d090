"""The account of what a demo's clients appended to log shards, and whether a reader finds it.

Every record says whose it is and the how-manieth, and carries a digest of that. So a reader can
tell what is missing, there twice, in another place than it was acked at, or changed.
"""

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from xxhash import xxh3_64_digest

from raftwood.logservice.records import Record

_HEAD: Final = struct.Struct(">IQ")
_DIGESTS: Final = 30
RECORD_BYTES: Final = _HEAD.size + 8 * _DIGESTS


def record_of(writer: int, number: int) -> bytes:
    head = _HEAD.pack(writer, number)
    return head + xxh3_64_digest(head) * _DIGESTS


class Verdict(msgspec.Struct, frozen=True):
    """What reading it all back found."""

    found: int
    """Records of the clients, also such as were never acked."""
    acked_found: int
    missing: int
    """Acked, and not there."""
    twice: int
    disordered: int
    """Not where they were acked, or before an earlier one of the same client."""
    wrong: int
    """Nobody wrote that."""

    @property
    def held(self) -> bool:
        return not (self.missing or self.twice or self.disordered or self.wrong)


class Account:
    """One client's records: the LSN at which each was acked, and at which it was read."""

    def __init__(self, writer: int) -> None:
        self.writer = writer
        self.acked = array("Q")
        """By number; 0 where it is not acked, which promises nothing."""
        self.seen = array("Q")
        self.twice = 0

    def begin(self, count: int) -> list[bytes]:
        """The next records to append."""
        first = len(self.acked)
        self.acked.extend([0] * count)
        self.seen.extend([0] * count)
        return [record_of(self.writer, number) for number in range(first, first + count)]

    def ack(self, first: int, lsns: Sequence[int]) -> None:
        self.acked[first : first + len(lsns)] = array("Q", lsns)

    def disordered(self) -> int:
        """Acked records that stand elsewhere, or whose LSN is not above the one before."""
        count = before = 0
        for acked, seen in zip(self.acked, self.seen, strict=True):
            if acked:
                count += acked <= before or seen not in (0, acked)
                before = acked
        return count


class Check:
    """Takes the records of all shards, each once, as a reader gets them."""

    def __init__(self, accounts: Iterable[Account]) -> None:
        self._accounts = {account.writer: account for account in accounts}
        self.found = 0
        self.wrong = 0

    def take(self, records: Iterable[Record]) -> None:
        for record in records:
            self.found += 1
            payload = bytes(record.payload)
            writer, number = _HEAD.unpack_from(payload) if len(payload) == RECORD_BYTES else (0, 0)
            account = self._accounts.get(writer)
            if (
                account is None
                or number >= len(account.seen)
                or payload != record_of(writer, number)
            ):
                self.wrong += 1
            elif account.seen[number]:
                account.twice += 1
            else:
                account.seen[number] = record.lsn

    def verdict(self) -> Verdict:
        pairs = [
            (acked, seen)
            for account in self._accounts.values()
            for acked, seen in zip(account.acked, account.seen, strict=True)
            if acked
        ]
        return Verdict(
            found=self.found,
            acked_found=sum(seen != 0 for _, seen in pairs),
            missing=sum(seen == 0 for _, seen in pairs),
            twice=sum(account.twice for account in self._accounts.values()),
            disordered=sum(account.disordered() for account in self._accounts.values()),
            wrong=self.wrong,
        )
