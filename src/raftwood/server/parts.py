"""Where a running Raftwood is reached, part by part: told to people, and written to a ready file.

New users of Zeppelin's tables come with a password that is made here.
"""

import secrets
from typing import Final

import msgspec

from raftwood.base.contexts import write_privately
from raftwood.base.environment import Environment
from raftwood.zeppelin.model import User
from raftwood.zeppelin.passwords import password_hash

_PASSWORD_BYTES: Final = 20


def new_user(
    environment: Environment, name: str, table: str, *, may_write: bool
) -> tuple[User, str]:
    """A user, and the password: the cluster keeps a hash of it alone."""
    # Letters and digits, so that it needs no quotes in shells and addresses.
    password = secrets.token_hex(_PASSWORD_BYTES)
    kept = password_hash(password.encode(), environment.random)
    return User(name=name, table=table, password_hash=kept, may_write=may_write), password


class LogHubPart(msgspec.Struct, frozen=True):
    """How to reach LogHub."""

    url: str
    """Of SLS's API and the other ways in over HTTP."""
    native: str
    """Of Raftwood's own clients, HOST:PORT."""
    access_key: str = msgspec.field(name="access_key_id")
    access_secret: str = msgspec.field(name="access_key_secret")


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
    stream: str = ""
    """The logstore of files for which no route is set, PROJECT/LOGSTORE; empty if they are refused.
    """


def write_parts(path: str, parts: Parts) -> None:
    """Whoever waits for the file finds it whole."""
    write_privately(path, msgspec.json.format(msgspec.json.encode(parts), indent=2) + b"\n")
