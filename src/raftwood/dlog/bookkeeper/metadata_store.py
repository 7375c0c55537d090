"""`BookKeeperMetadataStore`: metadata of ledgers in ZooKeeper, laid out as BookKeeper does.

A call whose connection is lost is repeated until its time is over. The node's content shows whether
an unanswered creation or change was carried out: a creation by its token, a change by the next
version and its bytes.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from google.protobuf import text_format
from google.protobuf.message import DecodeError
from kazoo.exceptions import (
    BadVersionError,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    ZookeeperError,
)

from raftwood.base.errors import (
    AlreadyExists,
    InvalidInput,
    PermissionDenied,
    RaftwoodError,
    StoreDamaged,
    Unavailable,
    UnsupportedVersion,
)
from raftwood.base.protobuf_bytes import read_varint, varint
from raftwood.dlog.bookkeeper.messages import BookieServiceInfo, LedgerMetadataFormat
from raftwood.dlog.errors import BookieUnavailable, NoSuchLedger
from raftwood.dlog.ledgers.metadata import (
    BOOKIE_ID,
    BookieId,
    BookieInfo,
    Digest,
    EntryId,
    LedgerConfig,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from raftwood.dlog.ledgers.seams import BookieBeginning, VersionedMetadata
from raftwood.net.zookeeper_connection import (
    CONNECTION_ERRORS,
    ZooKeeperAddress,
    ZooKeeperConnection,
)

SHORT: Final = (2, 4, 4)
LONG: Final = (3, 4, 4, 4, 4)
_SHORT_MAX: Final = (1 << 31) - 1
_FACTORY: Final = re.compile(r"org\.apache\.bookkeeper\.meta\.(\w+)LedgerManagerFactory")
_LAYOUTS: Final[dict[str, tuple[tuple[int, ...], ...]]] = {
    "LegacyHierarchical": (SHORT,),
    "Hierarchical": (SHORT, LONG),
    "LongHierarchical": (LONG,),
}


class LedgerPaths(msgspec.Struct, frozen=True):
    """Paths below the root of all ledgers, without a slash before them."""

    layouts: tuple[tuple[int, ...], ...]
    """Digits at each level; the layout of low ids first."""

    @classmethod
    def parse(cls, layout: bytes) -> "LedgerPaths":
        """Parses the node LAYOUT: a version, then a factory's name and version."""
        lines = layout.decode(errors="replace").split("\n")
        name = lines[1].partition(":")[0] if len(lines) > 1 else ""
        known = _FACTORY.fullmatch(name)
        if lines[0] not in ("1", "2") or known is None or known[1] not in _LAYOUTS:
            raise UnsupportedVersion(
                f"the ledgers' layout {layout[:200]!r} is not supported: these are "
                f"{', '.join(_LAYOUTS)}"
            )
        return cls(_LAYOUTS[known[1]])

    def path(self, ledger: int) -> str:
        digits = self.layouts[0]
        if digits is SHORT and ledger >= _SHORT_MAX:
            digits = self.layouts[-1]
        text = f"{ledger:0{sum(digits)}}"
        if len(text) > sum(digits):
            raise UnsupportedVersion(f"ledger {ledger} is above what the ledgers' layout can hold")
        parts = []
        for count in digits:
            parts.append(text[:count])
            text = text[count:]
        return "/".join((*parts[:-1], f"L{parts[-1]}"))


def children(names: Sequence[str], digits: Sequence[int]) -> list[str]:
    """Returns the nodes that belong to the layout, in order; `digits` from this level on."""
    letter = "L" if len(digits) == 1 else ""
    pattern = re.compile(f"{letter}[0-9]{{{digits[0]}}}")
    return sorted(name for name in names if pattern.fullmatch(name))


# A ledger's metadata as BookKeeper keeps them: a line with the format's number, then protobuf.
#
# Format 3, binary behind its length, is written here; format 2, of older clients, is protobuf's
# text. Format 1 is refused.

_HEAD: Final = b"BookieMetadataFormatVersion\t"
_STATES: Final = {LedgerState.OPEN: 1, LedgerState.IN_RECOVERY: 2, LedgerState.CLOSED: 3}
_DIGESTS: Final = {Digest.CRC32: 1, Digest.MAC: 2, Digest.CRC32C: 3, Digest.DUMMY: 4}
_STATE_OF: Final = {number: state for state, number in _STATES.items()}
_DIGEST_OF: Final = {number: digest for digest, number in _DIGESTS.items()}


def encode_metadata(metadata: LedgerMetadata) -> bytes:
    """Encodes metadata in format 3."""
    config = metadata.config
    message = LedgerMetadataFormat(
        quorumSize=config.write_quorum,
        ensembleSize=config.ensemble,
        ackQuorumSize=config.ack_quorum,
        length=metadata.length_bytes,
        lastEntryId=metadata.last_entry,
        state=_STATES[metadata.state],
        digestType=_DIGESTS[config.digest],
        password=config.password,
        cToken=metadata.creation_token,
    )
    if metadata.created_ms:
        message.ctime = metadata.created_ms
    for segment in metadata.segments:
        message.segment.add(firstEntryId=segment.first, ensembleMember=segment.bookies)
    for name, value in sorted(metadata.properties.items()):
        message.customMetadata.add(key=name, value=value)
    encoded: bytes = message.SerializeToString()
    return b"".join((_HEAD, b"3\n", varint(len(encoded)), encoded))


def decode_metadata(data: bytes, ledger: int) -> LedgerMetadata:
    """Decodes metadata; `StoreDamaged` if malformed, `UnsupportedVersion` for an unknown format."""
    head, _, body = data.partition(b"\n")
    if not head.startswith(_HEAD):
        raise StoreDamaged(f"ledger {ledger} has no metadata of BookKeeper's: {data[:40]!r}")
    version = head[len(_HEAD) :]
    if version not in (b"2", b"3"):
        raise UnsupportedVersion(
            f"the metadata of ledger {ledger} have format {version[:20]!r}: 2 and 3 are supported"
        )
    try:
        message = _parse_binary(body) if version == b"3" else _parse_text(body)
        return _metadata(message)
    except (DecodeError, text_format.ParseError, ValueError, IndexError, InvalidInput) as error:
        raise StoreDamaged(f"the metadata of ledger {ledger} are damaged: {error}") from error


def _parse_binary(body: bytes) -> Any:
    size, at = read_varint(body, 0, bits_max=35)
    if len(body) - at < size:
        raise ValueError(f"{len(body) - at} bytes of {size}")
    return LedgerMetadataFormat.FromString(body[at : at + size])


def _parse_text(body: bytes) -> Any:
    return text_format.Parse(body.decode(), LedgerMetadataFormat())


def _metadata(message: Any) -> LedgerMetadata:
    for name in ("quorumSize", "ensembleSize", "state"):
        if not message.HasField(name):
            raise ValueError(f"there is no {name}")
    if not message.segment or message.segment[0].firstEntryId != 0:
        raise ValueError("the first segment does not begin at entry 0")
    has_ack_quorum = message.HasField("ackQuorumSize")
    config = LedgerConfig(
        ensemble=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if has_ack_quorum else message.quorumSize,
        digest=_DIGEST_OF[message.digestType],
        password=message.password,
    )
    segments = tuple(
        Segment(EntryId(each.firstEntryId), tuple(map(_bookie, each.ensembleMember)))
        for each in sorted(message.segment, key=lambda each: int(each.firstEntryId))
    )
    if any(len(each.bookies) != config.ensemble for each in segments):
        raise ValueError(f"a segment does not have {config.ensemble} bookies")
    is_closed = message.state == _STATES[LedgerState.CLOSED]
    return LedgerMetadata(
        config=config,
        segments=segments,
        state=_STATE_OF[message.state],
        last_entry=EntryId(message.lastEntryId if is_closed else -1),
        length_bytes=message.length if is_closed else 0,
        created_ms=message.ctime,
        properties={_text(each.key): each.value for each in message.customMetadata},
        creation_token=message.cToken,
    )


def _bookie(name: Any) -> BookieId:
    if not BOOKIE_ID.fullmatch(_text(name)):
        raise ValueError(f"{name!r} is no bookie's id")
    return BookieId(name)


def _text(value: Any) -> str:
    """Checks that a value is text: protobuf returns bytes that are not UTF-8 as bytes."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


# `BookKeeperMetadataStore`: ledgers' metadata in ZooKeeper, as BookKeeper's own client keeps them.

DEFAULT_CHROOT: Final = "/ledgers"
TIMEOUT_MS: Final = 10_000
_RETRY_PAUSE_S: Final = 0.05
_BOOKIE_PROTOCOL: Final = "bookie-rpc"
_SHORT_ID_MAX: Final = (1 << 31) - 1


class BookKeeperMetadataStore:
    """A `LedgerMetadataStore`. Use `open`, and `close` when done."""

    def __init__(
        self, address: ZooKeeperAddress, *, timeout_ms: int, racks: Mapping[str, str] | None
    ) -> None:
        self._racks = racks or {}
        self._root = address.chroot
        self._timeout_s = timeout_ms / 1000
        self._connection = ZooKeeperConnection(address.hosts, self._state_changed)
        self._client = self._connection.client
        self._watches: dict[str, asyncio.Event] = {}
        self._paths = LedgerPaths(())

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        timeout_ms: int = TIMEOUT_MS,
        racks: Mapping[str, str] | None = None,
    ) -> "BookKeeperMetadataStore":
        """Connects to `HOST:PORT[,HOST:PORT][/chroot]`, which BookKeeper's own tools have set up.

        Bookies do not report their racks: the operator passes them.
        """
        parsed = ZooKeeperAddress.parse(address, chroot=DEFAULT_CHROOT)
        store = cls(parsed, timeout_ms=timeout_ms, racks=racks)
        await store._connection.start(timeout_ms / 1000)
        try:
            try:
                layout, _ = await store._call(store._client.get_async, f"{store._root}/LAYOUT")
            except NoNodeError:
                raise Unavailable(
                    f"there is no BookKeeper at {address}: start its bookies, or give the right "
                    "chroot"
                ) from None
            store._paths = LedgerPaths.parse(layout)
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        await self._connection.stop()

    # Ledgers.

    async def new_ledger_id(self) -> int:
        long_ids = f"{self._root}/idgen-long"
        if await self._call(self._client.exists_async, long_ids) is None:
            number = await self._next_number(f"{self._root}/idgen")
            if number is not None:
                return number
            await self._ensure(long_ids)
        while True:
            names = await self._call(self._client.get_children_async, long_ids)
            high = max((int(name[4:]) for name in names if name.startswith("HOB-")), default=0)
            if high:
                number = await self._next_number(f"{long_ids}/HOB-{high:010}")
                if number is not None:
                    return high << 32 | number
            await self._ensure(f"{long_ids}/HOB-{high + 1:010}")

    async def _next_number(self, folder: str) -> int | None:
        """Returns a new number; None if the folder's numbers are used up."""
        path = await self._call(
            self._client.create_async,
            f"{folder}/ID-",
            b"",
            ephemeral=True,
            sequence=True,
            makepath=True,
        )
        number = int(path.rpartition("/ID-")[2])
        await self._delete(path)
        return number if 0 <= number < _SHORT_ID_MAX else None

    async def create(self, ledger: int, metadata: LedgerMetadata) -> int:
        path = self._path(ledger)
        data = encode_metadata(metadata)
        try:
            await self._call(self._client.create_async, path, data, makepath=True)
        except NodeExistsError:
            found = await self.get(ledger)
            is_ours = found.metadata.creation_token == metadata.creation_token != 0
            if not is_ours or found.version != 0:
                raise AlreadyExists(f"ledger {ledger} exists already") from None
        return 0

    async def get(self, ledger: int) -> VersionedMetadata:
        path = self._path(ledger)
        try:
            # A follower may lag: readers must see the segments of all that was acked.
            await self._call(self._client.sync_async, path)
            data, stat = await self._call(self._client.get_async, path)
        except NoNodeError:
            raise _gone(ledger) from None
        return VersionedMetadata(decode_metadata(data, ledger), stat.version)

    async def compare_and_set(
        self, ledger: int, metadata: LedgerMetadata, *, version: int
    ) -> int | None:
        path = self._path(ledger)
        data = encode_metadata(metadata)
        try:
            stat = await self._call(self._client.set_async, path, data, version)
        except NoNodeError:
            raise _gone(ledger) from None
        except BadVersionError:
            # It may be this client's own, whose answer was lost.
            try:
                found, stat = await self._call(self._client.get_async, path)
            except NoNodeError:
                raise _gone(ledger) from None
            if stat.version != version + 1 or found != data:
                return None
        return int(stat.version)

    async def delete(self, ledger: int) -> None:
        path = self._path(ledger)
        await self._delete(path)
        # Like BookKeeper's own client: empty parent nodes go as well.
        while (path := path.rpartition("/")[0]) != self._root:
            try:
                await self._delete(path)
            except NotEmptyError:
                return

    async def ledgers(self, *, first: int = 0) -> AsyncIterator[int]:
        for digits in self._paths.layouts:
            async for ledger in self._walk(self._root, digits, "", first):
                yield ledger

    async def _walk(
        self, path: str, digits: tuple[int, ...], before: str, first: int
    ) -> AsyncIterator[int]:
        try:
            names = await self._call(self._client.get_children_async, path)
        except NoNodeError:
            return
        for name in children(names, digits):
            number = before + name.removeprefix("L")
            rest = sum(digits[1:])
            if int(number + "9" * rest) < first:
                continue
            if rest:
                async for ledger in self._walk(f"{path}/{name}", digits[1:], number, first):
                    yield ledger
            else:
                yield int(number)

    async def wait_changed(self, ledger: int, *, version: int, timeout_ms: int) -> None:
        path = self._path(ledger)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while True:
                    changed = self._watches.get(path)
                    options = {}
                    if changed is None:
                        changed = self._watches[path] = asyncio.Event()
                        options["watch"] = self._connection.told_by(self._firing(path, changed))
                    stat = await self._call(self._client.exists_async, path, **options)
                    if stat is None or stat.version != version:
                        return
                    await changed.wait()
        except TimeoutError:
            return

    def _firing(self, path: str, changed: asyncio.Event) -> Callable[[], None]:
        def fire() -> None:
            changed.set()
            if self._watches.get(path) is changed:
                del self._watches[path]

        return fire

    def _state_changed(self, _connected: bool) -> None:
        """Wakes all waits to look again: watches may be lost with the connection."""
        watches, self._watches = self._watches, {}
        for changed in watches.values():
            changed.set()

    # Bookies.

    async def bookies(self) -> list[BookieInfo]:
        writable = await self._registered("available")
        read_only = await self._registered("available/readonly")
        found = dict.fromkeys(read_only, True)
        found |= {name: False for name in writable if name != "readonly"}
        return [
            BookieInfo(id=BookieId(name), rack=self._racks.get(name, ""), is_read_only=is_read_only)
            for name, is_read_only in sorted(found.items())
        ]

    async def beginning(self, bookie: BookieId) -> BookieBeginning:  # noqa: ARG002
        """Empty: BookKeeper's tools replace bookies, which never begin anew under their ids."""
        return BookieBeginning()

    async def _registered(self, folder: str) -> list[str]:
        try:
            names: list[str] = await self._call(
                self._client.get_children_async, f"{self._root}/{folder}"
            )
        except NoNodeError:
            return []
        return names

    async def address_of(self, bookie: BookieId) -> tuple[str, int]:
        """Where a bookie listens, from its registration; else from its id."""
        for folder in ("available", "available/readonly"):
            try:
                data, _ = await self._call(
                    self._client.get_async, f"{self._root}/{folder}/{bookie}"
                )
            except NoNodeError:
                continue
            except Unavailable:
                break
            endpoint = _endpoint(data)
            if endpoint is not None:
                return endpoint
        host, colon, port = bookie.rpartition(":")
        if not colon or not port.isdecimal():
            raise BookieUnavailable(f"bookie {bookie} is not registered, and its id is no address")
        return host.strip("[]"), int(port)

    # Calls.

    def _path(self, ledger: int) -> str:
        return f"{self._root}/{self._paths.path(ledger)}"

    async def _ensure(self, path: str) -> None:
        await self._call(self._client.ensure_path_async, path)

    async def _delete(self, path: str) -> None:
        try:
            await self._call(self._client.delete_async, path)
        except NoNodeError:
            return

    async def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Repeats a call while the connection is lost; raises ZooKeeper's own refusals."""
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    try:
                        return await self._connection.call(method(*arguments, **options))
                    except CONNECTION_ERRORS:
                        await asyncio.sleep(_RETRY_PAUSE_S)
        except TimeoutError:
            raise Unavailable(
                f"ZooKeeper did not answer in {self._timeout_s:g} s: check that it runs"
            ) from None
        except (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError):
            raise
        except NoAuthError:
            raise PermissionDenied(f"ZooKeeper refuses {arguments[0]}: check its ACL") from None
        except ZookeeperError as error:
            raise Unavailable(f"ZooKeeper failed: {type(error).__name__}") from error


def _endpoint(data: bytes) -> tuple[str, int] | None:
    """The address in a registration; None if an older bookie without one wrote it."""
    if not data:
        return None
    try:
        message = BookieServiceInfo.FromString(data)
    except DecodeError:
        return None
    for each in message.endpoints:
        is_bookie = each.protocol == _BOOKIE_PROTOCOL and 0 < each.port < 1 << 16
        if is_bookie and isinstance(each.host, str) and each.host:
            return each.host, each.port
    return None


def _gone(ledger: int) -> RaftwoodError:
    return NoSuchLedger(f"there is no ledger {ledger}: it was never made, or was deleted")
