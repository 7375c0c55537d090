"""CHECKPOINT: a partition as of one moment, read in pages; and PARTITIONS, the table's partitions.

    CHECKPOINT BEGIN partition [ttl_ms [group]]     id, table, epoch, sequence, slots, time
    CHECKPOINT READ id cursor bytes [TAG t] [PREFIX p]       next cursor, a page (`zeppelin/pages`)
    CHECKPOINT RENEW id|GROUP name                  how many there are; each READ renews too
    CHECKPOINT END id|GROUP name                    how many there were
    CHECKPOINT LIST                                 those of the table that are here

Our own client reads whole tables by these commands. A checkpoint begins on the node that serves the
partition and stays readable there, even if the partition moves. The first cursor is empty, and so
is the one behind the last page. A checkpoint's last record is done before BEGIN answers, so no
failover takes it back.
"""

from collections.abc import Awaitable
from typing import Final

from raftwood.base.errors import Overloaded, ShuttingDown, Unavailable
from raftwood.zeppelin.commands.command import (
    NOT_SERVED,
    SYNTAX,
    Answer,
    RedisCommand,
    RedisError,
    serving,
)
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.session import KvSession
from raftwood.zeppelin.model import Table
from raftwood.zeppelin.node.checkpoints import (
    PageRequest,
    PartitionCheckpoint,
    PartitionCheckpoints,
)
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.replication.epochs import partition_epoch_of
from raftwood.zeppelin.resp import array, bulk, integer, text

TTL_MS: Final = 60_000
TTL_MS_MIN: Final = 1_000
TTL_MS_MAX: Final = 24 * 3_600_000
PAGE_BYTES_MAX: Final = 8 << 20
GROUP_LENGTH_MAX: Final = 64
_ANOTHER_MASTER: Final = "TRYAGAIN the partition changed hands, or was split, meanwhile"


def _table(session: KvSession) -> Table:
    table = session.topology.tables.get(session.user.table) if session.user else None
    if table is None:
        raise RedisError(NOT_SERVED)
    return table


def _checkpoints(session: KvSession) -> PartitionCheckpoints:
    checkpoints = session.host.checkpoints
    if checkpoints is None:
        raise RedisError("ERR this node keeps no checkpoints")
    return checkpoints


def _found(session: KvSession, word: bytes) -> PartitionCheckpoint:
    identity = word.decode("ascii", "replace")
    found = _checkpoints(session).find(identity, _table(session).incarnation)
    if found is None:
        raise _unknown(identity)
    return found


def _unknown(identity: str) -> RedisError:
    return RedisError(
        f"NOCHECKPOINT {identity[:64]} is not known here: it was ended, nobody read it for its "
        "time to live, or the node was started again; begin another one"
    )


def partitions(session: KvSession, _: list[bytes]) -> bytes:
    """Returns the table's incarnation, and each partition's number, first and last slot, and
    master.
    """
    table, nodes = _table(session), session.topology.nodes
    told = []
    for number, partition in enumerate(table.partitions):
        slots = table.slots_of(number)
        master = None if partition.master is None else nodes.get(partition.master)
        told.append(
            array(
                [
                    integer(number),
                    integer(slots[0]),
                    integer(slots[-1]),
                    session.dialect.maybe(
                        None if master is None else master.addresses.data.encode()
                    ),
                ]
            )
        )
    return array([integer(table.incarnation), array(told)])


def begin(session: KvSession, arguments: list[bytes]) -> Answer:
    table, number = _table(session), as_integer(arguments[2])
    ttl_ms = as_integer(arguments[3]) if len(arguments) > 3 else TTL_MS
    group = arguments[4].decode("utf-8", "replace") if len(arguments) > 4 else ""
    if len(arguments) > 5 or len(group) > GROUP_LENGTH_MAX:
        raise RedisError(SYNTAX)
    if not 0 <= number < len(table.partitions):
        raise RedisError(f"ERR table {table.name} has {len(table.partitions)} partitions")
    if not TTL_MS_MIN <= ttl_ms <= TTL_MS_MAX:
        raise RedisError(f"ERR a checkpoint lives for {TTL_MS_MIN} to {TTL_MS_MAX} milliseconds")
    checkpoints = _checkpoints(session)
    copy = session.copy_of(table.slots_of(number)[-1], is_write=False)
    if not copy.is_leading and session.host.view.node_id in table.partitions[number].lagging:
        raise RedisError("TRYAGAIN this replica has not caught up with its master yet")
    taking = checkpoints.begin(copy.store, table, number, ttl_ms=ttl_ms, group=group)
    return _begin(session, taking, copy, table)


async def _begin(
    session: KvSession, taking: Awaitable[PartitionCheckpoint], copy: PartitionCopy, table: Table
) -> bytes:
    is_leading = copy.is_leading
    try:
        taken = await taking
    except (Unavailable, Overloaded) as error:
        raise RedisError(f"TRYAGAIN {error.message}") from error
    session.begin_turn()
    if not _is_still(session, copy, table, taken, is_leading=is_leading):
        await _checkpoints(session).end(taken)
        raise RedisError(_ANOTHER_MASTER)
    if is_leading:
        session.expect(copy, taken.position.sequence)
    elif copy.last_writes is not None:
        session.expect_read(copy, taken.position.sequence)
    return array(
        [
            text(taken.id),
            integer(taken.partition.incarnation),
            integer(taken.position.epoch),
            integer(taken.position.sequence),
            integer(taken.slots[0]),
            integer(taken.slots[-1]),
            integer(taken.taken_ms),
        ]
    )


def _is_still(
    session: KvSession,
    copy: PartitionCopy,
    table: Table,
    taken: PartitionCheckpoint,
    *,
    is_leading: bool,
) -> bool:
    """Whether the partition stayed the same while it was copied."""
    now, number = _table(session), taken.partition.number
    if now.incarnation != table.incarnation or now.slots_of(number) != table.slots_of(number):
        return False
    if partition_epoch_of(taken.position.epoch) > now.partitions[number].epoch:
        return False  # a slave may have records from a time when the partition had other slots
    if all(each is not copy for each in session.copies):
        return False
    return copy.is_serving if is_leading else copy.may_read_behind


def read(session: KvSession, arguments: list[bytes]) -> Answer:
    found = _found(session, arguments[2])
    cursor, bytes_max = arguments[3], as_integer(arguments[4])
    if not 1 <= bytes_max <= PAGE_BYTES_MAX:
        raise RedisError(f"ERR a page has 1 to {PAGE_BYTES_MAX} bytes")
    tag: bytes | None = None
    prefix = b""
    if len(arguments) % 2 == 0:
        raise RedisError(SYNTAX)
    for word, value in zip(arguments[5::2], arguments[6::2], strict=True):
        match word.upper():
            case b"TAG":
                tag = value
            case b"PREFIX":
                prefix = value
            case _:
                raise RedisError(SYNTAX)
    return _read(session, found, PageRequest(tag, prefix), cursor, bytes_max)


async def _read(
    session: KvSession,
    found: PartitionCheckpoint,
    wanted: PageRequest,
    cursor: bytes,
    bytes_max: int,
) -> bytes:
    try:
        page = await _checkpoints(session).read(found, wanted, cursor=cursor, bytes_max=bytes_max)
    except ShuttingDown as error:
        raise _unknown(found.id) from error
    return array([bulk(page.cursor), bulk(page.page)])


def renew(session: KvSession, arguments: list[bytes]) -> bytes:
    if len(arguments) == 3:
        _found(session, arguments[2])
        return integer(1)
    return integer(len(_named(session, arguments)))


def end(session: KvSession, arguments: list[bytes]) -> Answer:
    return _end(session, _named(session, arguments))


def _named(session: KvSession, arguments: list[bytes]) -> list[PartitionCheckpoint]:
    """Returns the checkpoints that `id` or `GROUP name` selects, maybe none."""
    checkpoints, incarnation = _checkpoints(session), _table(session).incarnation
    word = arguments[-1].decode("utf-8", "replace")
    if len(arguments) == 3:
        found = checkpoints.find(word, incarnation)
        return [] if found is None else [found]
    if len(arguments) != 4 or arguments[2].upper() != b"GROUP":
        raise RedisError(SYNTAX)
    return checkpoints.find_group(word, incarnation)


async def _end(session: KvSession, found: list[PartitionCheckpoint]) -> bytes:
    for each in found:
        await _checkpoints(session).end(each)
    return integer(len(found))


def list_(session: KvSession, _: list[bytes]) -> bytes:
    """Returns each checkpoint's id, partition, epoch, sequence, and remaining milliseconds."""
    checkpoints = _checkpoints(session)
    return array(
        [
            array(
                [
                    text(each.id),
                    integer(each.partition.number),
                    integer(each.position.epoch),
                    integer(each.position.sequence),
                    integer(checkpoints.left_ms(each)),
                ]
            )
            for each in checkpoints.of_table(_table(session).incarnation)
        ]
    )


COMMANDS: Final = (
    serving("partitions", 1, partitions, "The partitions of the table", group="cluster"),
    RedisCommand(
        name="checkpoint",
        arity=-2,
        flags=("readonly",),
        group="generic",
        summary="A partition as it was at one moment",
        subcommands={
            b"LIST": serving("checkpoint|list", 2, list_, "Those that are kept here"),
            b"BEGIN": serving("checkpoint|begin", -3, begin, "Keeps what there is now"),
            b"READ": serving("checkpoint|read", -5, read, "A page of pairs"),
            b"RENEW": serving("checkpoint|renew", -3, renew, "Its time begins anew"),
            b"END": serving("checkpoint|end", -3, end, "Gives back what it takes"),
        },
    ),
)
