"""Commands and results of the metastore as bytes, as logs keep them and raft groups agree on them.

A command with unknown fields is refused. Skipping them could fail on one replica and not on
another, because the depth of nesting that a decoder takes depends on its stack.
"""

import msgspec

from raftwood.base.errors import InvalidInput, RaftwoodError, TooLarge, error_class
from raftwood.base.seams import Compare, KeyOperation, SetKey, TransactionOutcome

KEY_BYTES_MAX = 512
VALUE_BYTES_MAX = 512 << 10
TRANSACTION_KEYS_MAX = 64
TRANSACTION_BYTES_MAX = 640 << 10
"""Bytes of both branches: a command stays below ZooKeeper's limit for one request, 1 MiB."""
TTL_MS_MAX = 24 * 3600 * 1000


class Transact(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """Runs one of two branches, as the comparisons decide."""

    compares: tuple[Compare, ...]
    then: tuple[KeyOperation, ...]
    otherwise: tuple[KeyOperation, ...] = ()


class GrantLease(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """Grants a lease."""

    ttl_ms: int


class KeepAlive(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Renews a lease for its full time."""

    lease: int


class RevokeLease(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """Ends a lease and removes its keys."""

    lease: int


class ExpireLeases(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """Ends the leases whose time is over."""


Command = Transact | GrantLease | KeepAlive | RevokeLease | ExpireLeases


class Transacted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Says which branch ran, and the store's version after it."""

    held: bool
    version: int


class MetastoreDone(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The command succeeded; for a new lease, its number."""

    lease: int = 0


class MetastoreFailed(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The command changed nothing; code and text of an error in `base.errors`."""

    code: str
    message: str


Result = Transacted | MetastoreDone | MetastoreFailed

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_results: msgspec.msgpack.Decoder[Result] = msgspec.msgpack.Decoder(Result)


def encode(message: Command | Result) -> bytes:
    return _encoder.encode(message)


def decode_command(data: bytes) -> Command:
    try:
        return _commands.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"not a command of the metastore: {error}") from None


def decode_result(data: bytes) -> Transacted | MetastoreDone:
    """Returns the result; raises the error that it carries."""
    result = _results.decode(data)
    if isinstance(result, MetastoreFailed):
        raise error_class(result.code)(result.message)
    return result


def outcome(data: bytes) -> TransactionOutcome:
    """Returns the result of a transaction."""
    result = decode_result(data)
    assert isinstance(result, Transacted)
    return TransactionOutcome(result.held, result.version)


def failed(error: RaftwoodError) -> MetastoreFailed:
    return MetastoreFailed(error.code, error.message)


def check_key(key: str) -> None:
    """Raises `InvalidInput` or `TooLarge` if a key is not valid."""
    if not key or not key.isprintable():
        raise InvalidInput(f"key {key[:80]!r} is not allowed: use one or more printable characters")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise TooLarge(f"key {key[:80]!r}… has more than {KEY_BYTES_MAX} bytes: shorten it")


def check_command(command: Command) -> None:
    """Raises if a command exceeds the limits; called before the command runs."""
    if isinstance(command, GrantLease):
        if not 1 <= command.ttl_ms <= TTL_MS_MAX:
            raise InvalidInput(f"a lease of {command.ttl_ms} ms: give 1 to {TTL_MS_MAX}")
    elif isinstance(command, Transact):
        for compare in command.compares:
            check_key(compare.key)
        for branch in (command.then, command.otherwise):
            _check_branch(branch)
        branches = command.then + command.otherwise
        sizes = [len(each.value) for each in branches if isinstance(each, SetKey)]
        if sum(sizes) > TRANSACTION_BYTES_MAX:
            raise TooLarge(f"a transaction has more than {TRANSACTION_BYTES_MAX} bytes: split it")
        if len(command.compares) > TRANSACTION_KEYS_MAX:
            raise TooLarge(f"a transaction compares {TRANSACTION_KEYS_MAX} keys at the most")


def _check_branch(branch: tuple[KeyOperation, ...]) -> None:
    keys = [operation.key for operation in branch]
    for key in keys:
        check_key(key)
    if len(keys) > TRANSACTION_KEYS_MAX:
        raise TooLarge(f"a transaction changes {TRANSACTION_KEYS_MAX} keys at the most")
    if len(set(keys)) != len(keys):
        raise InvalidInput("a branch of a transaction names a key twice: merge its operations")
    sizes = [len(operation.value) for operation in branch if isinstance(operation, SetKey)]
    if max(sizes, default=0) > VALUE_BYTES_MAX:
        raise TooLarge(f"a value has more than {VALUE_BYTES_MAX} bytes: keep large data elsewhere")
