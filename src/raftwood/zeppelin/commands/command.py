"""The form of a command, its errors in Redis's words, and its view of keys."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from raftwood.base.errors import InvalidInput
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.records import KEY_BYTES_MAX, KeyWrite, Value
from raftwood.zeppelin.resp import Dialect
from raftwood.zeppelin.slots import tag_of

if TYPE_CHECKING:
    from raftwood.zeppelin.commands.session import KvSession

SYNTAX = "ERR syntax error"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
NOT_A_FLOAT = "ERR value is not a valid float"
CROSSSLOT = "CROSSSLOT Keys in request don't hash to the same slot"
NOT_SERVED = "CLUSTERDOWN Hash slot not served"
CLUSTER_DOWN = "CLUSTERDOWN The cluster is down"
NOBODY_SERVES = (NOT_SERVED, CLUSTER_DOWN)
DONE = "DONE This was executed before; its answer is not kept"
TOO_LARGE = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"


class RedisError(InvalidInput):
    """The error that the client gets; nothing was done."""

    code = "command_refused"


def wrong_number(name: str) -> RedisError:
    return RedisError(f"ERR wrong number of arguments for '{name}' command")


def unknown_command(arguments: list[bytes]) -> RedisError:
    shown = "".join(f"'{_shown(each)}' " for each in arguments[1:20])[:128]
    return RedisError(
        f"ERR unknown command '{_shown(arguments[0])}', with args beginning with: {shown}"
    )


def unknown_subcommand(command: str, word: bytes) -> RedisError:
    return RedisError(f"ERR unknown subcommand '{_shown(word)}'. Try {command} HELP.")


def invalid_expire(name: str) -> RedisError:
    return RedisError(f"ERR invalid expire time in '{name}' command")


def _shown(word: bytes) -> str:
    return word[:128].decode("utf-8", "backslashreplace")


# A command's view of keys: a `Turn` reads a partition, and gathers writes.
#
# A turn is one command, or a whole transaction, which sees its own writes. Its result becomes one
# record of the binlog: the outcome of each key, with absolute times.

VALUE_BYTES_MAX: Final = 16 << 20
KEY_TOO_LARGE: Final = f"ERR a key has at most {KEY_BYTES_MAX} bytes"
OUTCOME_BYTES_MAX: Final = 15 << 20
"""Bytes that one record may write: with its headers it fits into a record of 16 MiB."""
EXPIRY_MS_MAX: Final = (1 << 63) - 1


class Turn:
    """Reads through its own writes, which take effect only when they are committed as a whole."""

    __slots__ = ("_copy", "_size", "dialect", "now_ms", "seen", "store", "writes")

    def __init__(self, copy: PartitionCopy, dialect: Dialect, *, now_ms: int) -> None:
        self._copy = copy
        self.store = copy.store
        self.dialect = dialect
        self.now_ms = now_ms
        self.writes: dict[bytes, KeyWrite] = {}
        """The last write of each key."""
        self._size = 0
        """Bytes of all values written, with those replaced again."""
        self.seen = 0
        """The last record that its reads depend on; 0: they do not wait."""

    def get(self, key: bytes) -> Value | None:
        if self.writes and (write := self.writes.get(key)) is not None:
            return None if write.data is None else Value(write.data, write.expires_ms)
        last_writes = self._copy.last_writes
        if last_writes is not None and (sequence := last_writes.of(key)) > self.seen:
            self.seen = sequence
        return self.store.get(key, now_ms=self.now_ms)

    def data_of(self, key: bytes) -> bytes | None:
        value = self.get(key)
        return None if value is None else value.data

    def put(self, key: bytes, data: bytes, expires_ms: int = 0) -> None:
        """Sets a key; an expired value deletes it.

        A command that is refused has written nothing before: transactions rely on that.
        """
        length = len(data)
        if length > VALUE_BYTES_MAX:
            raise RedisError(TOO_LARGE)
        self._size += length
        if 0 < expires_ms <= self.now_ms:
            self.writes[key] = KeyWrite(key, None)
        else:
            self.writes[key] = KeyWrite(key, data, expires_ms)

    def delete(self, key: bytes) -> bool:
        """Deletes a key; returns whether it existed."""
        if self.get(key) is None:
            return False
        self.writes[key] = KeyWrite(key, None)
        return True

    def with_tag(self, tag: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields all keys with a tag, and their values; this turn's writes come last."""
        self.seen = max(self.seen, self._copy.seen_of_all())
        for key, value in self.store.scan_tag(tag, now_ms=self.now_ms):
            if key not in self.writes:
                yield key, value.data
        for write in list(self.writes.values()):
            if write.data is not None and tag_of(write.key) == tag:
                yield write.key, write.data

    def outcome(self) -> tuple[KeyWrite, ...]:
        """Returns the writes for one record; refuses if they are too large."""
        writes = self.writes
        if self._size + sum(map(len, writes)) > OUTCOME_BYTES_MAX:
            raise RedisError(f"ERR what is written at once is above {OUTCOME_BYTES_MAX} bytes")
        return tuple(writes.values())


# The form of a command: its arguments, the places of its keys, and its function.

Answer: TypeAlias = bytes | Awaitable[bytes]
"""An answer that has to wait stops its client's next commands."""
OnKeys: TypeAlias = Callable[["Turn", list[bytes]], bytes]
"""Pure: reads and writes only through its turn."""
OnSession: TypeAlias = Callable[["KvSession", list[bytes]], Answer]


class RedisCommand(msgspec.Struct, frozen=True, kw_only=True):
    """One command, as COMMAND describes it."""

    name: str
    arity: int
    """Number of words, with the name; below 0: at least that many."""
    flags: tuple[str, ...] = ()
    first_key: int = 0
    """0: the command has no keys."""
    last_key: int = 0
    """Below 0: counted from the end."""
    key_step: int = 0
    group: str = "string"
    summary: str = ""
    on_keys: OnKeys | None = None
    on_session: OnSession | None = None
    is_write: bool = False
    subcommands: dict[bytes, "RedisCommand"] = {}
    """By the second word, if it decides how the keys are used."""

    def check(self, arguments: Sequence[bytes]) -> None:
        count = len(arguments)
        if count != self.arity if self.arity > 0 else count < -self.arity:
            raise wrong_number(self.name)

    def keys(self, arguments: Sequence[bytes]) -> Sequence[bytes]:
        if not self.first_key:
            return ()
        last = self.last_key if self.last_key >= 0 else len(arguments) + self.last_key
        return arguments[self.first_key : last + 1 : self.key_step]


def reading(
    name: str,
    arity: int,
    run: OnKeys,
    summary: str,
    *,
    keys: tuple[int, int, int] = (1, 1, 1),
    group: str = "string",
) -> RedisCommand:
    """Makes a command that reads keys of one slot."""
    return RedisCommand(
        name=name,
        arity=arity,
        flags=("readonly",) if keys[1] < 0 else ("readonly", "fast"),
        first_key=keys[0],
        last_key=keys[1],
        key_step=keys[2],
        group=group,
        summary=summary,
        on_keys=run,
    )


def writing(
    name: str,
    arity: int,
    run: OnKeys,
    summary: str,
    *,
    keys: tuple[int, int, int] = (1, 1, 1),
    group: str = "string",
) -> RedisCommand:
    """Makes a command that may change keys of one slot."""
    return RedisCommand(
        name=name,
        arity=arity,
        flags=("write", "denyoom"),
        first_key=keys[0],
        last_key=keys[1],
        key_step=keys[2],
        group=group,
        summary=summary,
        on_keys=run,
        is_write=True,
    )


def serving(
    name: str,
    arity: int,
    run: OnSession,
    summary: str,
    *,
    group: str = "server",
    flags: tuple[str, ...] = (),
    keys: tuple[int, int, int] = (0, 0, 0),
    is_write: bool = False,
) -> RedisCommand:
    """Makes a command about the connection, the node or the cluster."""
    return RedisCommand(
        name=name,
        arity=arity,
        flags=flags,
        first_key=keys[0],
        last_key=keys[1],
        key_step=keys[2],
        group=group,
        summary=summary,
        on_session=run,
        is_write=is_write,
    )
