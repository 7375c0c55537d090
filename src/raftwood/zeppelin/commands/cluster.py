"""CLUSTER: the topology of the client's table in Redis Cluster's words.

A node may be the master of some partitions and a slave of others, which SHARDS can express. NODES
has one role for each node: it is a master if it has slots, or is no slave. SLOTS does the same,
except for clients that read from slaves: redis-py takes a master that is also a slave of other
slots for a mere slave, and then leaves its keys out of a scan of the whole table.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from raftwood.zeppelin.commands.command import (
    NOT_SERVED,
    Answer,
    RedisError,
    serving,
    unknown_subcommand,
    wrong_number,
)
from raftwood.zeppelin.commands.keys import SLICE_KEYS
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.session import KvSession
from raftwood.zeppelin.model import NodeId, NodeInfo, Table, Topology
from raftwood.zeppelin.resp import Dialect, array, bulk, bulks, integer, text
from raftwood.zeppelin.slots import SLOTS, slot_of


class SlotRange(NamedTuple):
    """Neighbouring slots with the same master and slaves."""

    first: int
    last: int
    master: NodeId
    slaves: tuple[NodeId, ...]


@lru_cache(maxsize=1024)
def redis_id(node: NodeId) -> str:
    """Returns a node's id in the form of Redis's tools: 40 hexadecimal digits."""
    return hashlib.sha1(node.encode(), usedforsecurity=False).hexdigest()


def slot_ranges(topology: Topology, table: Table) -> list[SlotRange]:
    """Returns the ranges in order, without partitions without a master and slaves that are down."""
    ranges: list[SlotRange] = []
    for number in dict.fromkeys(table.places):
        partition = table.partitions[number]
        if partition.master is None or partition.master not in topology.nodes:
            continue
        slaves = tuple(
            slave
            for slave in partition.slaves
            if slave in topology.nodes and topology.nodes[slave].is_up
        )
        slots = table.slots_of(number)
        before = ranges[-1] if ranges else None
        if before is not None and before[1:] == (slots[0] - 1, partition.master, slaves):
            ranges[-1] = before._replace(last=slots[-1])
        else:
            ranges.append(SlotRange(slots[0], slots[-1], partition.master, slaves))
    return ranges


def _host_and_port(node: NodeInfo) -> tuple[str, int]:
    host, _, port = node.addresses.data.rpartition(":")
    return host.strip("[]"), int(port)


def slots_answer(topology: Topology, table: Table, *, reads_slaves: bool) -> bytes:
    def of_node(node: NodeId) -> bytes:
        host, port = _host_and_port(topology.nodes[node])
        return array([text(host), integer(port), text(redis_id(node)), array([])])

    ranges = slot_ranges(topology, table)
    told = _masters_first(ranges) if reads_slaves else _with_one_role(ranges)
    return array(
        [
            array(
                [
                    integer(each.first),
                    integer(each.last),
                    of_node(each.master),
                    *map(of_node, each.slaves),
                ]
            )
            for each in told
        ]
    )


def _with_one_role(ranges: list[SlotRange]) -> list[SlotRange]:
    masters = {each.master for each in ranges}
    return [
        each._replace(slaves=tuple(slave for slave in each.slaves if slave not in masters))
        for each in ranges
    ]


def _masters_first(ranges: list[SlotRange]) -> list[SlotRange]:
    """Orders ranges so that each node appears as a master before it appears as a slave.

    A client may keep a node's first role, as redis-py does, which then scans too few nodes. So one
    slot of each master comes first, without its slaves.
    """
    slaves = {slave for each in ranges for slave in each.slaves}
    if not any(each.master in slaves for each in ranges):
        return ranges
    heads: dict[NodeId, SlotRange] = {}
    rest = []
    for each in ranges:
        if each.master in heads:
            rest.append(each)
            continue
        heads[each.master] = each._replace(last=each.first, slaves=())
        if each.first < each.last:
            rest.append(each._replace(first=each.first + 1))
    return [*heads.values(), *rest]


def shards_answer(topology: Topology, table: Table, dialect: Dialect) -> bytes:
    grouped: dict[tuple[NodeId, ...], list[int]] = {}
    for each in slot_ranges(topology, table):
        grouped.setdefault((each.master, *each.slaves), []).extend((each.first, each.last))

    def of_node(node: NodeId, role: str) -> bytes:
        host, port = _host_and_port(topology.nodes[node])
        return dialect.map(
            [
                (text("id"), text(redis_id(node))),
                (text("port"), integer(port)),
                (text("ip"), text(host)),
                (text("endpoint"), text(host)),
                (text("role"), text(role)),
                (text("replication-offset"), integer(0)),
                (text("health"), text("online" if topology.nodes[node].is_up else "failed")),
            ]
        )

    return array(
        [
            dialect.map(
                [
                    (text("slots"), array([integer(bound) for bound in bounds])),
                    (
                        text("nodes"),
                        array(
                            [
                                of_node(node, "replica" if place else "master")
                                for place, node in enumerate(members)
                            ]
                        ),
                    ),
                ]
            )
            for members, bounds in grouped.items()
        ]
    )


def nodes_answer(topology: Topology, table: Table, me: NodeId) -> bytes:
    """Returns a line for each node that has a replica of the table."""
    owned: dict[NodeId, list[str]] = {}
    masters: dict[NodeId, NodeId] = {}
    for each in slot_ranges(topology, table):
        bounds = f"{each.first}-{each.last}" if each.last > each.first else str(each.first)
        owned.setdefault(each.master, []).append(bounds)
        for slave in each.slaves:
            masters.setdefault(slave, each.master)
    lines = []
    for number, node in enumerate(topology.nodes.values(), 1):
        if node.id not in owned and node.id not in masters and node.id != me:
            continue
        host, port = _host_and_port(node)
        is_slave = node.id not in owned and node.id in masters
        flags = ["myself"] * (node.id == me) + ["slave" if is_slave else "master"]
        flags += [] if node.is_up else ["fail"]
        master = redis_id(masters[node.id]) if is_slave else "-"
        lines.append(
            f"{redis_id(node.id)} {host}:{port}@{port} {','.join(flags)} {master} 0 0 {number} "
            f"{'connected' if node.is_up else 'disconnected'}"
            + "".join(f" {bounds}" for bounds in owned.get(node.id, ()))
            + "\n"
        )
    return bulk("".join(lines).encode())


def info_lines(topology: Topology, table: Table) -> str:
    ranges = slot_ranges(topology, table)
    assigned = sum(each.last - each.first + 1 for each in ranges)
    served = sum(each.last - each.first + 1 for each in ranges if topology.nodes[each.master].is_up)
    masters = len({each.master for each in ranges})
    lines = {
        "cluster_enabled": 1,
        "cluster_state": "ok" if served == SLOTS else "fail",
        "cluster_slots_assigned": assigned,
        "cluster_slots_ok": served,
        "cluster_slots_pfail": 0,
        "cluster_slots_fail": assigned - served,
        "cluster_known_nodes": len(topology.nodes),
        "cluster_size": masters,
        "cluster_current_epoch": max(topology.epoch, 0),
        "cluster_my_epoch": max(topology.epoch, 0),
    }
    return "".join(f"{name}:{value}\r\n" for name, value in lines.items())


# CLUSTER: the nodes of the table's slots, and the keys of a slot on this node.

SLOT_KEYS_MAX: Final = 100_000
"""Keys in one answer."""

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


def cluster(session: KvSession, arguments: list[bytes]) -> Answer:
    word = arguments[1].upper()
    if word not in _WORDS:
        raise unknown_subcommand("CLUSTER", arguments[1])
    if len(arguments) != _WORDS[word]:
        raise wrong_number(f"cluster|{word.decode().lower()}")
    topology, me = session.topology, session.host.view.node_id
    match word:
        case b"SLOTS":
            return slots_answer(topology, _table(session), reads_slaves=session.is_reading_behind)
        case b"SHARDS":
            return shards_answer(topology, _table(session), session.dialect)
        case b"NODES":
            return nodes_answer(topology, _table(session), me)
        case b"INFO":
            return session.dialect.lines(info_lines(topology, _table(session)))
        case b"KEYSLOT":
            return integer(slot_of(arguments[2]))
        case b"COUNTKEYSINSLOT":
            return _count(session, _slot(session, arguments[2]))
        case b"GETKEYSINSLOT":
            count = as_integer(arguments[3])
            if count < 0:
                raise RedisError("ERR Invalid slot or number of keys")
            return _some(session, _slot(session, arguments[2]), min(count, SLOT_KEYS_MAX))
    return text(redis_id(me))


def _table(session: KvSession) -> Table:
    table = session.topology.tables.get(session.user.table) if session.user else None
    if table is None:
        raise RedisError(NOT_SERVED)
    return table


def _slot(session: KvSession, word: bytes) -> int:
    slot = as_integer(word)
    if not 0 <= slot < SLOTS:
        raise RedisError("ERR Invalid slot")
    session.copy_of(slot, is_write=False)  # raises while a hand-over runs, before anything is read
    return slot


async def _count(session: KvSession, slot: int) -> bytes:
    count = 0
    async for keys in _keys(session, slot):
        count += len(keys)
    return integer(count)


async def _some(session: KvSession, slot: int, count: int) -> bytes:
    found: list[bytes] = []
    if count:
        async for keys in _keys(session, slot):
            found += keys
            if len(found) >= count:
                break
    return bulks(found[:count])


async def _keys(session: KvSession, slot: int) -> AsyncIterator[list[bytes]]:
    """Yields the keys of a slot. It reads the whole partition; other tasks run in between."""
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
