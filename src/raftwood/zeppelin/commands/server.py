"""Commands about the node: INFO, CONFIG GET, the clock. What can be set is set elsewhere."""

from typing import Final

from raftwood.zeppelin.commands.connection import REDIS_VERSION
from raftwood.zeppelin.commands.patterns import Pattern
from raftwood.zeppelin.commands.refusals import Refused, unknown_subcommand, wrong_number
from raftwood.zeppelin.commands.session import Session
from raftwood.zeppelin.commands.table import serving
from raftwood.zeppelin.commands.turn import VALUE_BYTES_MAX
from raftwood.zeppelin.resp.answers import array, integer, text

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
"""What Redis's tools ask for, and what is true of it here."""


def config(session: Session, arguments: list[bytes]) -> bytes:
    word = arguments[1].upper()
    if word == b"SET":
        raise Refused("ERR CONFIG SET is not allowed: change the node's configuration")
    if word == b"RESETSTAT":
        raise Refused("ERR CONFIG RESETSTAT is not allowed: figures count from the start")
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


def info(session: Session, arguments: list[bytes]) -> bytes:
    asked = [word.decode("utf-8", "replace").lower() for word in arguments[1:]]
    is_all = not asked or any(word in ("all", "default", "everything") for word in asked)
    sections = [
        f"# {name.capitalize()}\r\n"
        + "".join(f"{field}:{value}\r\n" for field, value in fields.items())
        for name, fields in _sections(session).items()
        if is_all or name in asked
    ]
    return session.dialect.lines("\r\n".join(sections))


def _sections(session: Session) -> dict[str, dict[str, object]]:
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


def time_(session: Session, _: list[bytes]) -> bytes:
    seconds, rest_ns = divmod(session.host.environment.clock.wall_ns(), 1_000_000_000)
    return array([text(str(seconds)), text(str(rest_ns // 1000))])


def lastsave(session: Session, _: list[bytes]) -> bytes:
    # The binlog is written as it goes: what is asked about is always just now.
    return integer(session.now_ms // 1000)


COMMANDS: Final = (
    serving("info", -1, info, "Figures of the node"),
    serving("config", -2, config, "Settings that Redis's tools ask for"),
    serving("time", 1, time_, "The node's clock", flags=("fast",)),
    serving("lastsave", 1, lastsave, "When all was saved last", flags=("fast",)),
)
