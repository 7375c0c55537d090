"""FENCE, and BULK APPLY and CLEAR: writes of whoever applies a stream, refused once another does.

    FENCE producer                          the largest number that a partition here knows; or -1
    FENCE producer number                   from now on smaller ones are refused, in all partitions
    BULK APPLY producer number (key SET|DEL value expires_ms)…
    BULK CLEAR producer number first last   no keys in these slots; how many partitions have more

A producer's numbers go up. A partition that has one carries out none that is smaller: so whoever
has put a larger one into all partitions is alone, however late the requests of others come. The
same number again was done already. Times are absolute, and so are writes.
"""

from typing import Final, Self

from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.once import PRODUCER_BYTES_MAX
from raftwood.zeppelin.commands.refusals import (
    SYNTAX,
    Refused,
    invalid_expire,
    wrong_number,
)
from raftwood.zeppelin.commands.session import Session
from raftwood.zeppelin.commands.turn import EXPIRY_MS_MAX, Turn
from raftwood.zeppelin.commands.whole import readable
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.resp.answers import OK, integer
from raftwood.zeppelin.slots import SLOTS

NO_NUMBER: Final = -1


def fence(session: Session, arguments: list[bytes]) -> bytes:
    copies = [
        part.copy for part in readable(session) if part.copy is not None and part.copy.is_serving
    ]
    if len(arguments) == 2:
        producer = _producer(arguments[1])
        for copy in copies:
            session.expect_read(copy, copy.seen_of_all())
        known = [copy.store.last_number(producer) for copy in copies]
        return integer(max((each for each in known if each is not None), default=NO_NUMBER))
    if len(arguments) != 3:
        raise wrong_number("fence")
    session.check_may_write("fence")
    with Named(session, arguments[1], arguments[2]) as named:
        for copy in named.to_do(copies):
            session.commit(copy, ())
    return OK


def clear(session: Session, arguments: list[bytes]) -> bytes:
    first, last = as_integer(arguments[4]), as_integer(arguments[5])
    if not 0 <= first <= last < SLOTS:
        raise Refused(SYNTAX)
    whole: list[PartitionCopy] = []
    partial = 0
    for part in readable(session):
        slots, copy = part.slots, part.copy
        if copy is None or not copy.is_serving or slots[0] > last or slots[-1] < first:
            continue
        if first <= slots[0] and slots[-1] <= last:
            whole.append(copy)
        else:
            partial += 1
    with Named(session, arguments[2], arguments[3]) as named:
        for copy in named.to_do(whole):
            session.commit(copy, (), flushes=True)
    return integer(partial)


class Named:
    """A request under a producer's number, which is refused where a larger one came."""

    def __init__(self, session: Session, producer: bytes, number: bytes) -> None:
        self._session = session
        self.origin = (_producer(producer), as_integer(number))

    def __enter__(self) -> Self:
        self._session.origin = self.origin
        return self

    def __exit__(self, *_: object) -> None:
        self._session.origin = None

    def to_do(self, copies: list[PartitionCopy]) -> list[PartitionCopy]:
        """Those that have not done it yet; the answer waits for the others as well."""
        producer, number = self.origin
        for copy in copies:
            known = copy.store.last_number(producer)
            if known is not None and known > number:
                raise Refused(f"FENCED {known} came before {number}: another one writes now")
        return [copy for copy in copies if self._session.sequence_done(copy) is None]


def put_changes(turn: Turn, changes: list[bytes], places: list[int]) -> None:
    """What BULK APPLY says of some keys."""
    for place in places:
        key, verb, value, end = changes[4 * place : 4 * place + 4]
        match verb:
            case b"SET":
                expires_ms = as_integer(end)
                if not 0 <= expires_ms <= EXPIRY_MS_MAX:
                    raise invalid_expire("bulk|apply")
                turn.put(key, value, expires_ms)
            case b"DEL":
                turn.delete(key)
            case _:
                raise Refused(SYNTAX)


def _producer(word: bytes) -> bytes:
    if not 1 <= len(word) <= PRODUCER_BYTES_MAX:
        raise Refused(f"ERR a producer's name has 1 to {PRODUCER_BYTES_MAX} bytes")
    return word
