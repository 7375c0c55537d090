"""What runs where, for people and for whoever waits for it: told, and written to a ready file."""

import os
import sys

import msgspec

from raftwood.app.kv_users import redis_command
from raftwood.app.output import write_line


class LogHubPart(msgspec.Struct, frozen=True):
    """How to reach LogHub."""

    url: str
    """Of SLS's API and the other ways in over HTTP."""
    native: str
    """Of Raftwood's own clients, HOST:PORT."""
    access_key_id: str
    access_key_secret: str


class LogServicePart(msgspec.Struct, frozen=True):
    """How to reach the log service."""

    address: str
    config: str
    """The file that has the secrets, for `--config`."""


class KvPart(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach Zeppelin, as a client of Redis Cluster does."""

    host: str
    port: int
    user: str
    """Of the table of the same name."""
    password: str


class Parts(msgspec.Struct, frozen=True):
    """What runs; written to the ready file."""

    loghub: LogHubPart
    logservice: LogServicePart
    pid: int
    kv: KvPart | None = None
    clogs: tuple[str, ...] = ()
    """Where shippers of log files are served, HOST:PORT each."""


def tell_parts(folder: str, parts: Parts) -> None:
    loghub = parts.loghub
    for line in (
        f"Raftwood runs, with all its data in {folder}",
        "",
        f"  LogHub, SLS's API and other ways in   {loghub.url}",
        f"  LogHub, native clients                {loghub.native}",
        f"  log service                           {parts.logservice.address}",
        f"  access key                            {loghub.access_key_id}",
        f"  its secret                            {loghub.access_key_secret}",
        *_kv_lines(parts.kv),
        *(f"  clogs, shippers of log files          {each}" for each in parts.clogs),
        "",
        "Next, in another terminal:",
        "",
        f"  export RAFTWOOD_LOGHUB_CLIENT__GATEWAYS={loghub.native}",
        f"  export RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY={loghub.access_key_id}",
        f"  export RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET={loghub.access_key_secret}",
        "  raftwood project create web",
        "  raftwood logstore create web/access",
        "  raftwood produce web/access < access.log",
        "  raftwood tail web/access -f",
        *_kv_next(parts.kv),
    ):
        write_line(line)
    sys.stdout.flush()


def _kv_lines(kv: KvPart | None) -> list[str]:
    if kv is None:
        return []
    return [
        f"  Zeppelin, clients of Redis            {kv.host}:{kv.port}",
        f"  password of its user {kv.user:<17}{kv.password}",
    ]


def _kv_next(kv: KvPart | None) -> list[str]:
    if kv is None:
        return []
    return [f"  {redis_command(f'{kv.host}:{kv.port}', kv.user, kv.password)} SET greeting hello"]


def write_parts(path: str, parts: Parts) -> None:
    """Whoever waits for the file finds it whole."""
    write_privately(path, msgspec.json.format(msgspec.json.encode(parts), indent=2) + b"\n")


def write_privately(path: str, data: bytes) -> None:
    """For the owner's eyes only, and whole or not at all."""
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
    os.replace(f"{path}.new", path)
