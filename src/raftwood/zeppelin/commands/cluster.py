"""CLUSTER: who has which slots of the client's table, and what is in a slot here."""

from itertools import islice
from typing import Final

from raftwood.zeppelin.commands import topology as told
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.refusals import (
    NOT_SERVED,
    Refused,
    unknown_subcommand,
    wrong_number,
)
from raftwood.zeppelin.commands.session import Session
from raftwood.zeppelin.commands.table import serving
from raftwood.zeppelin.model import Table
from raftwood.zeppelin.resp.answers import bulks, integer, text
from raftwood.zeppelin.slots import SLOTS, slot_of

SLOT_KEYS_MAX: Final = 100_000
"""To count a slot's keys all of its partition's are looked at."""

_WORDS: Final = {
    b"SLOTS": 2,
    b"SHARDS": 2,
    b"NODES": 2,
    b"INFO": 2,
    b"MYID": 2,
    b"MYSHARDID": 2,
    b"KEYSLOT": 3,
    b"COUNTKEYSINSLOT": 3,
    b"GETKEYSINSLOT": 4,
}


def cluster(session: Session, arguments: list[bytes]) -> bytes:
    word = arguments[1].upper()
    if word not in _WORDS:
        raise unknown_subcommand("CLUSTER", arguments[1])
    if len(arguments) != _WORDS[word]:
        raise wrong_number(f"cluster|{word.decode().lower()}")
    topology, me = session.topology, session.host.view.node_id
    match word:
        case b"SLOTS":
            return told.slots(topology, _table(session), reads_slaves=session.is_reading_behind)
        case b"SHARDS":
            return told.shards(topology, _table(session), session.dialect)
        case b"NODES":
            return told.nodes(topology, _table(session), me)
        case b"INFO":
            return session.dialect.lines(told.info(topology, _table(session)))
        case b"KEYSLOT":
            return integer(slot_of(arguments[2]))
        case b"COUNTKEYSINSLOT":
            return integer(len(_keys(session, arguments[2], SLOT_KEYS_MAX)))
        case b"GETKEYSINSLOT":
            count = as_integer(arguments[3])
            if count < 0:
                raise Refused("ERR Invalid slot or number of keys")
            return bulks(_keys(session, arguments[2], count))
    return text(told.redis_id(me))


def _table(session: Session) -> Table:
    table = session.topology.tables.get(session.user.table) if session.user else None
    if table is None:
        raise Refused(NOT_SERVED)
    return table


def _keys(session: Session, word: bytes, count: int) -> list[bytes]:
    slot = as_integer(word)
    if not 0 <= slot < SLOTS:
        raise Refused("ERR Invalid slot")
    copy = session.copy_of(slot, is_write=False)
    session.expect_read(copy, copy.seen_of_all())
    looked_at = islice(copy.store.scan(after=None, now_ms=session.now_ms), SLOT_KEYS_MAX)
    return list(islice((key for key, _ in looked_at if slot_of(key) == slot), count))


COMMANDS: Final = (serving("cluster", -2, cluster, "Who has which slots", group="cluster"),)
