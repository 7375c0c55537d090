"""Commands about the connection and the node: AUTH, HELLO, CLIENT, WAIT, INFO, CONFIG GET."""

import asyncio
from typing import Final

from raftwood.zeppelin.commands.command import (
    SYNTAX,
    VALUE_BYTES_MAX,
    Answer,
    RedisError,
    serving,
    unknown_subcommand,
    wrong_number,
)
from raftwood.zeppelin.commands.keys import Pattern
from raftwood.zeppelin.commands.numbers import as_integer
from raftwood.zeppelin.commands.session import KvSession
from raftwood.zeppelin.model import EPOCH_NONE, User
from raftwood.zeppelin.resp import EMPTY_ARRAY, OK, RESP2, RESP3, array, bulk, integer, simple, text

REDIS_VERSION: Final = "7.2.0"
"""The Redis version whose commands and words these are."""
WAIT_MS_MAX: Final = 60_000
_WAIT_STEP_S: Final = 0.002
_DEFAULT_USER: Final = b"default"
_NAME_BYTES_MAX: Final = 256


def ping(_: KvSession, arguments: list[bytes]) -> bytes:
    if len(arguments) > 2:
        raise wrong_number("ping")
    return bulk(arguments[1]) if len(arguments) == 2 else simple("PONG")


def echo(_: KvSession, arguments: list[bytes]) -> bytes:
    return bulk(arguments[1])


def quit_(session: KvSession, _: list[bytes]) -> bytes:
    session.is_closing = True
    return OK


def reset(session: KvSession, _: list[bytes]) -> bytes:
    session.reset()
    return simple("RESET")


async def _log_in(session: KvSession, name: bytes, password: bytes) -> User:
    # Read before the password check, which takes a while: a topology that arrives meanwhile is not
    # the one that the user was looked up in.
    is_loading = session.topology.epoch == EPOCH_NONE
    user = await session.host.verified(name.decode("utf-8", "replace"), password)
    if user is None:
        if is_loading:
            raise RedisError("LOADING Redis is loading the dataset in memory")
        raise RedisError("WRONGPASS invalid username-password pair or user is disabled.")
    session.log_in(user)
    return user


def auth(session: KvSession, arguments: list[bytes]) -> Answer:
    if len(arguments) > 3:
        raise RedisError(SYNTAX)
    name = arguments[1] if len(arguments) == 3 else _DEFAULT_USER

    async def run() -> bytes:
        await _log_in(session, name, arguments[-1])
        return OK

    return run()


def hello(session: KvSession, arguments: list[bytes]) -> Answer:
    dialect, credentials, name = session.dialect, None, None
    if len(arguments) > 1:
        version = as_integer(arguments[1], "ERR Protocol version is not an integer or out of range")
        if version not in (2, 3):
            raise RedisError("NOPROTO unsupported protocol version")
        dialect = RESP2 if version == 2 else RESP3
    at = 2
    while at < len(arguments):
        word, left = arguments[at].upper(), len(arguments) - at
        if word == b"AUTH" and left > 2:
            credentials, at = (arguments[at + 1], arguments[at + 2]), at + 3
        elif word == b"SETNAME" and left > 1:
            name, at = _checked_name(arguments[at + 1]), at + 2
        else:
            shown = arguments[at].decode("utf-8", "backslashreplace")
            raise RedisError(f"ERR Syntax error in HELLO option '{shown}'")

    async def run() -> bytes:
        if credentials is not None:
            await _log_in(session, *credentials)
        if session.user is None:
            raise RedisError(
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the "
                "HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client "
                "and select the RESP protocol version at the same time"
            )
        session.dialect = dialect
        session.name = session.name if name is None else name
        return _greeting(session)

    return run()


def _greeting(session: KvSession) -> bytes:
    return session.dialect.map(
        [
            (text("server"), text("redis")),
            (text("version"), text(REDIS_VERSION)),
            (text("proto"), integer(session.dialect.version)),
            (text("id"), integer(session.number)),
            (text("mode"), text("cluster")),
            (text("role"), text("master")),
            (text("modules"), EMPTY_ARRAY),
        ]
    )


def select(_: KvSession, arguments: list[bytes]) -> bytes:
    if as_integer(arguments[1]) != 0:
        raise RedisError("ERR SELECT is not allowed in cluster mode")
    return OK


def readonly(session: KvSession, _: list[bytes]) -> bytes:
    session.is_reading_behind = True
    return OK


def readwrite(session: KvSession, _: list[bytes]) -> bytes:
    session.is_reading_behind = False
    return OK


def asking(_: KvSession, __: list[bytes]) -> bytes:
    # Partitions are handed over as a whole: no node ever redirects by ASK.
    return OK


def wait(session: KvSession, arguments: list[bytes]) -> Answer:
    wanted = as_integer(arguments[1])
    timeout_ms = as_integer(arguments[2])
    if timeout_ms < 0:
        raise RedisError("ERR timeout is negative")
    deadline_ms = min(timeout_ms or WAIT_MS_MAX, WAIT_MS_MAX)

    async def run() -> bytes:
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_ms / 1000
        while True:
            has = _replicas_with_all(session)
            if has >= wanted or loop.time() >= end:
                return integer(has)
            await asyncio.sleep(_WAIT_STEP_S)

    return run()


def _replicas_with_all(session: KvSession) -> int:
    """Returns how many slaves have this client's writes, in the partition with the fewest."""
    written = [
        (copy, session.written[copy])
        for copy in session.copies
        if copy is not None and copy in session.written
    ]
    return min((copy.acks.replicas_with(sequence) for copy, sequence in written), default=0)


def client(session: KvSession, arguments: list[bytes]) -> bytes:
    word = arguments[1].upper()
    counts = _CLIENT_WORDS.get(word)
    if counts is None:
        raise unknown_subcommand("CLIENT", arguments[1])
    if len(arguments) - 2 not in counts:
        raise wrong_number(f"client|{word.decode().lower()}")
    match word:
        case b"ID":
            return integer(session.number)
        case b"GETNAME":
            return session.dialect.maybe(session.name.encode() or None)
        case b"SETNAME":
            session.name = _checked_name(arguments[2])
        case b"SETINFO":
            _set_info(session, arguments[2].upper(), _checked_name(arguments[3]))
        case b"INFO":
            return session.dialect.lines(_line(session, session.now_ms))
        case b"LIST":
            return session.dialect.lines(
                "".join(_line(each, session.now_ms) for each in _neighbours(session))
            )
        case b"GETREDIR":
            return integer(-1)
        case b"TRACKINGINFO":
            return session.dialect.map(
                [
                    (text("flags"), session.dialect.set([text("off")])),
                    (text("redirect"), integer(-1)),
                    (text("prefixes"), array([])),
                ]
            )
    return OK


_CLIENT_WORDS: Final = {
    b"ID": (0,),
    b"GETNAME": (0,),
    b"SETNAME": (1,),
    b"SETINFO": (2,),
    b"INFO": (0,),
    b"LIST": (0, 2),
    b"NO-EVICT": (1,),
    b"NO-TOUCH": (1,),
    b"GETREDIR": (0,),
    b"TRACKINGINFO": (0,),
}
"""Number of words that follow. Other subcommands get Redis's error for unknown ones."""


def _checked_name(name: bytes) -> str:
    if len(name) > _NAME_BYTES_MAX or any(not 0x21 <= byte <= 0x7E for byte in name):
        raise RedisError("ERR Client names cannot contain spaces, newlines or special characters.")
    return name.decode()


def _set_info(session: KvSession, word: bytes, value: str) -> None:
    if word == b"LIB-NAME":
        session.library = value
    elif word == b"LIB-VER":
        session.library_version = value
    else:
        shown = word.decode("utf-8", "backslashreplace")
        raise RedisError(f"ERR Unrecognized option '{shown}'")


def _neighbours(session: KvSession) -> list[KvSession]:
    """Returns the sessions of the same table: users must not see those of other tables."""
    assert session.user is not None
    table = session.user.table
    return [
        each for each in session.host.sessions if each.user is not None and each.user.table == table
    ]


def _line(session: KvSession, now_ms: int) -> str:
    """Returns a client's line for CLIENT LIST; some clients of Redis need all fields."""
    user = "(none)" if session.user is None else session.user.name
    is_in_transaction = session.transaction is not None
    flags = ("x" if is_in_transaction else "") + ("r" if session.is_reading_behind else "")
    age_s = max(now_ms - session.since_ms, 0) // 1000
    idle_s = max(now_ms - session.now_ms, 0) // 1000
    queued = len(session.transaction.commands) if session.transaction else -1
    return (
        f"id={session.number} addr={session.address} laddr= fd=-1 name={session.name} age={age_s} "
        f"idle={idle_s} flags={flags or 'N'} db=0 sub=0 psub=0 ssub=0 multi={queued} "
        f"watch={len(session.watches)} qbuf=0 qbuf-free=0 argv-mem=0 multi-mem=0 rbs=0 rbp=0 "
        f"obl=0 oll=0 omem=0 tot-mem=0 events=r cmd={session.last_command or 'NULL'} user={user} "
        f"redir=-1 resp={session.dialect.version} lib-name={session.library} "
        f"lib-ver={session.library_version}\n"
    )


_GROUP: Final = "connection"
_ANY_TIME: Final = ("no_auth", "fast")
COMMANDS: Final = (
    serving("ping", -1, ping, "Answers", group=_GROUP, flags=("fast",)),
    serving("echo", 2, echo, "Answers the same", group=_GROUP, flags=("fast",)),
    serving("quit", -1, quit_, "Ends the connection", group=_GROUP, flags=_ANY_TIME),
    serving("reset", 1, reset, "As a new connection", group=_GROUP, flags=_ANY_TIME),
    serving("auth", -2, auth, "Says who the client is", group=_GROUP, flags=_ANY_TIME),
    serving("hello", -1, hello, "Chooses the protocol", group=_GROUP, flags=_ANY_TIME),
    serving("select", 2, select, "There is one database", group=_GROUP, flags=("fast",)),
    serving("client", -2, client, "What is known of clients", group=_GROUP),
    serving("readonly", 1, readonly, "Slaves may answer", group="cluster", flags=("fast",)),
    serving("readwrite", 1, readwrite, "Masters answer", group="cluster", flags=("fast",)),
    serving("asking", 1, asking, "Does nothing here", group="cluster", flags=("fast",)),
    serving("wait", 3, wait, "Waits until slaves have what was written", group="generic"),
)


# Commands about the node: INFO, CONFIG GET, the clock. CONFIG sets nothing here.

_SETTINGS: Final = {
    "appendonly": "yes",
    "cluster-enabled": "yes",
    "databases": "1",
    "maxmemory": "0",
    "maxmemory-policy": "noeviction",
    "proto-max-bulk-len": str(VALUE_BYTES_MAX),
    "save": "",
    "timeout": "0",
}
"""The settings that Redis's tools ask for, with their true values here."""


def config(session: KvSession, arguments: list[bytes]) -> bytes:
    word = arguments[1].upper()
    if word == b"SET":
        raise RedisError("ERR CONFIG SET is not allowed: change the node's configuration")
    if word == b"RESETSTAT":
        raise RedisError("ERR CONFIG RESETSTAT is not allowed: figures count from the start")
    if word != b"GET":
        raise unknown_subcommand("CONFIG", arguments[1])
    if len(arguments) < 3:
        raise wrong_number("config|get")
    patterns = [Pattern(word.lower()) for word in arguments[2:]]
    return session.dialect.map(
        (text(name), text(value))
        for name, value in _SETTINGS.items()
        if any(pattern.matches(name.encode()) for pattern in patterns)
    )


def info(session: KvSession, arguments: list[bytes]) -> bytes:
    asked = [word.decode("utf-8", "replace").lower() for word in arguments[1:]]
    is_all = not asked or any(word in ("all", "default", "everything") for word in asked)
    sections = [
        f"# {name.capitalize()}\r\n"
        + "".join(f"{field}:{value}\r\n" for field, value in fields.items())
        for name, fields in _sections(session).items()
        if is_all or name in asked
    ]
    return session.dialect.lines("\r\n".join(sections))


def _sections(session: KvSession) -> dict[str, dict[str, object]]:
    host = session.host
    uptime_s = max(session.now_ms - host.started_ms, 0) // 1000
    copies = [copy for copy in session.copies if copy is not None]
    return {
        "server": {
            "redis_version": REDIS_VERSION,
            "redis_mode": "cluster",
            "tcp_port": host.port,
            "uptime_in_seconds": uptime_s,
            "uptime_in_days": uptime_s // 86_400,
        },
        "clients": {"connected_clients": len(list(host.sessions))},
        "persistence": {"loading": 0, "aof_enabled": 1, "rdb_bgsave_in_progress": 0},
        "stats": {
            "total_connections_received": host.connection_count,
            "total_commands_processed": host.command_count,
        },
        "replication": {
            "role": "master",
            "partitions_as_master": sum(copy.is_leading for copy in copies),
            "partitions_as_slave": sum(not copy.is_leading for copy in copies),
            "connected_slaves": max((copy.acks.replicas_with(0) for copy in copies), default=0),
            "master_repl_offset": sum(
                copy.store.last_sequence for copy in copies if copy.is_leading
            ),
        },
        "cluster": {"cluster_enabled": 1},
    }


def time_(session: KvSession, _: list[bytes]) -> bytes:
    seconds, rest_ns = divmod(session.host.environment.clock.wall_ns(), 1_000_000_000)
    return array([text(str(seconds)), text(str(rest_ns // 1000))])


def lastsave(session: KvSession, _: list[bytes]) -> bytes:
    # The binlog is written continuously: the last save is always just now.
    return integer(session.now_ms // 1000)


SERVER_COMMANDS: Final = (
    serving("info", -1, info, "Figures of the node"),
    serving("config", -2, config, "Settings that Redis's tools ask for"),
    serving("time", 1, time_, "The node's clock", flags=("fast",)),
    serving("lastsave", 1, lastsave, "When all was saved last", flags=("fast",)),
)
