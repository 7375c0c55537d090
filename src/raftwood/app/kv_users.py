"""Users of Zeppelin's tables, with passwords that are made here."""

import secrets
from typing import Final

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


def redis_command(address: str, user: str, password: str) -> str:
    """How to log in with Redis's own tool."""
    host, _, port = address.rpartition(":")
    who = "" if user == "default" else f"--user {user} "
    return f"redis-cli -c -h {host} -p {port} {who}--pass {password} --no-auth-warning"
