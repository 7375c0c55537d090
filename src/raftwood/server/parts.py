"""Where a running Raftwood is reached, part by part: told to people, and written to a ready file.

New users of Zeppelin's tables come with a password that is made here.
"""

import os
import secrets
from collections.abc import Iterable
from typing import Final

import msgspec

from raftwood.base.contexts import write_privately
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.base.settings import describe
from raftwood.server.child_processes import is_free
from raftwood.server.settings import Settings
from raftwood.zeppelin.model import NodeAddresses, User
from raftwood.zeppelin.passwords import password_hash

_PASSWORD_BYTES: Final = 20
LOCAL_HOST: Final = "127.0.0.1"


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
    ports: dict[str, list[str]] = {}
    """All addresses that are served, HOST:PORT each, by what is served there."""


def kv_ports(nodes: Iterable[NodeAddresses]) -> dict[str, list[str]]:
    """The addresses of Zeppelin's nodes, for `Parts.ports`."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault("zeppelin", []).append(node.data)
        found.setdefault("zeppelin_replication", []).append(node.replication)
        found.setdefault("zeppelin_admin", []).append(node.admin)
    return found


def further_ports(settings: Settings) -> dict[str, list[str]]:
    """Those that are not served unless a setting names them, by the setting, for `Parts.ports`."""
    return {
        setting.name: [address]
        for setting in describe(Settings)
        if setting.section in ("http", "ways_in") or setting.name == "clogs.udp_listen"
        if setting.key.endswith("listen")
        if (address := getattr(getattr(settings, setting.section), setting.key))
    }


def make_folder(folder: str) -> None:
    """Make a local cluster's folder, where it is not there; nobody else may look into it."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        reason = "is a file" if os.path.isfile(folder) else f"cannot be made: {error.strerror}"
        raise InvalidInput(f"--data {folder} {reason}; name a folder that may be made") from error


def check_ports_are_free(addresses: Iterable[str]) -> None:
    """Refuse to start where another process has one of these ports of this machine."""
    for address in addresses:
        host, _, port = address.rpartition(":")
        if host == LOCAL_HOST and not is_free(int(port)):
            raise Unavailable(
                f"port {port} is taken by another process: end it, or give another --port-base"
            )


def write_parts(path: str, parts: Parts) -> None:
    """Whoever waits for the file finds it whole."""
    write_privately(path, msgspec.json.format(msgspec.json.encode(parts), indent=2) + b"\n")
