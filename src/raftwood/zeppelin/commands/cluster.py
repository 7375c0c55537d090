"""CLUSTER: who has which slots of the client's table, and what is in a slot here."""

import asyncio
from collections.abc import AsyncIterator
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
from raftwood.zeppelin.commands.table import Answer, serving
from raftwood.zeppelin.commands.whole import SLICE_KEYS
from raftwood.zeppelin.model import Table
from raftwood.zeppelin.resp.answers import bulks, integer, text
from raftwood.zeppelin.slots import SLOTS, slot_of

SLOT_KEYS_MAX: Final = 100_000
"""So many are told at once."""

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


def cluster(session: Session, arguments: list[bytes]) -> Answer:
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
            return _count(session, _slot(session, arguments[2]))
        case b"GETKEYSINSLOT":
            count = as_integer(arguments[3])
            if count < 0:
                raise Refused("ERR Invalid slot or number of keys")
            return _some(session, _slot(session, arguments[2]), min(count, SLOT_KEYS_MAX))
    return text(told.redis_id(me))


def _table(session: Session) -> Table:
    table = session.topology.tables.get(session.user.table) if session.user else None
    if table is None:
        raise Refused(NOT_SERVED)
    return table


def _slot(session: Session, word: bytes) -> int:
    slot = as_integer(word)
    if not 0 <= slot < SLOTS:
        raise Refused("ERR Invalid slot")
    session.copy_of(slot, is_write=False)  # what is handed over is waited for before it is read
    return slot


async def _count(session: Session, slot: int) -> bytes:
    count = 0
    async for keys in _keys(session, slot):
        count += len(keys)
    return integer(count)


async def _some(session: Session, slot: int, count: int) -> bytes:
    found: list[bytes] = []
    if count:
        async for keys in _keys(session, slot):
            found += keys
            if len(found) >= count:
                break
    return bulks(found[:count])


async def _keys(session: Session, slot: int) -> AsyncIterator[list[bytes]]:
    """Those of a slot. All of its partition are looked at, and others have their turns between."""
    after: bytes | None = None
    while True:
        session.begin_turn()
        copy = session.copy_of(slot, is_write=False)
        pairs = copy.store.scan(after=after, now_ms=session.now_ms)
        looked_at = [key for key, _ in islice(pairs, SLICE_KEYS)]
        session.expect_read(copy, copy.seen_of_all())
        yield [key for key in looked_at if slot_of(key) == slot]
        if len(looked_at) < SLICE_KEYS:
            return
        after = looked_at[-1]
        await asyncio.sleep(0)


COMMANDS: Final = (serving("cluster", -2, cluster, "Who has which slots", group="cluster"),)
