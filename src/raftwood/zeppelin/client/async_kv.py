"""`AsyncKv`: a table of Zeppelin for asyncio programs.

    async with await AsyncKv.connect("127.0.0.1:6379", user="default", password=PASSWORD) as kv:
        await kv.set("greeting", "hello", ex=60)
        await kv.incr("visits")
        values = await kv.get_many(keys)
        async for key in kv.scan(match="user:*"): ...

The client asks nodes for the map of slots and sends each request to the right node, over one
connection to each. Every write is done once, even if a lost connection or master makes the client
send it again. A call is retried until it is answered or `timeout_ms` are over.

`transact` sends MULTI, the commands, a name and EXEC in one piece. `TableRequests` asks each master
for its own keys. It asks again for a slot that changed hands meanwhile, so that a scan yields every
key that exists throughout at least once.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, ProtocolError, RaftwoodError, Unavailable
from raftwood.disk.real_environment import real_environment
from raftwood.net.tls import ClientTls
from raftwood.zeppelin.client.binlogs import Binlogs
from raftwood.zeppelin.client.bulk import BulkRequests, NamedRows
from raftwood.zeppelin.client.checkpoints import (
    TTL_MS,
    AsyncCheckpoint,
    CheckpointAbout,
    PartitionPlace,
    begin_checkpoint,
    partitions_of,
    to_group,
)
from raftwood.zeppelin.client.connection import SILENCE_S_MAX, NodeConnection
from raftwood.zeppelin.client.errors import CommandRefused, judged
from raftwood.zeppelin.client.nodes import KvAccess, NodePool, ReadFrom, addresses_of
from raftwood.zeppelin.client.requester import Requester
from raftwood.zeppelin.records import KeyWrite
from raftwood.zeppelin.resp import ErrorAnswer, Word, as_bytes, number_word, request, requests
from raftwood.zeppelin.slots import slot_of, tag_of

if TYPE_CHECKING:
    import pyarrow


async def transact(calls: Requester, commands: list[list[bytes]]) -> list[Any]:
    """Runs commands in a transaction; raises `CommandRefused` if one was refused before EXEC."""
    if not commands:
        return []
    slot = slot_of(_key(commands[0]))
    name = calls.name()
    encoded = b"".join((requests([[b"MULTI"], *commands]), name, requests([[b"EXEC"]])))
    attempts = calls.attempts()
    while True:
        seen = calls.nodes.looks
        found = await calls.reach(calls.nodes.map.masters[slot])
        answer: Any = found
        before: list[Any] = []
        if isinstance(found, NodeConnection):
            answer = await found.ask(encoded, before=len(commands) + 2, gathered=before)
        if not isinstance(answer, ErrorAnswer):
            return [_shown(each) for each in answer]
        if answer.kind == "EXECABORT":
            # An earlier answer says which command was refused, and why.
            answer = next((each for each in before if isinstance(each, ErrorAnswer)), answer)
        await attempts.after(answer, calls.nodes, seen)


def _key(words: list[bytes]) -> bytes:
    place = 2 if words and words[0].upper() == b"TAG" else 1
    if len(words) <= place:
        raise InvalidInput("each command of a transaction has a key: give it")
    return words[place]


def _shown(answer: Any) -> Any:
    if not isinstance(answer, ErrorAnswer):
        return answer
    step = judged(answer)
    return step if isinstance(step, RaftwoodError) else CommandRefused(answer.text)


SCAN_ROUNDS_MAX: Final = 100
"""How often nodes may change hands during one call."""


class TableRequests:
    """Sends commands to all masters."""

    def __init__(self, calls: Requester) -> None:
        self._calls = calls
        self._nodes = calls.nodes

    async def pages(self, match: bytes | None, count: int) -> AsyncIterator[list[bytes]]:
        """Yields keys, some at a time; a key written meanwhile may appear twice, or not at all."""
        options = [b"COUNT", b"%d" % count]
        if match is not None:
            options += [b"MATCH", match]
        waiting = dict.fromkeys(range(len(self._nodes.map.masters)))
        """Slots whose keys are not complete yet."""
        for _ in range(SCAN_ROUNDS_MAX):
            masters = self._nodes.map.masters
            address = masters[next(iter(waiting))]
            mine = dict.fromkeys(slot for slot in waiting if masters[slot] == address)
            cursor, is_known = b"0", True
            while is_known:
                answer = await self._ask(address, next(iter(mine)), [b"SCAN", cursor, *options])
                if isinstance(answer, ErrorAnswer):
                    is_known = False  # another node has the slot, or this one forgot the cursor
                    continue
                cursor, keys = _page(answer)
                found = [key for key in keys if slot_of(key) in mine]
                if found:
                    yield found
                if cursor == b"0":
                    break
            await self._look()
            if is_known:
                now = self._nodes.map.masters
                for slot in mine:
                    if now[slot] == address:
                        del waiting[slot]
            if not waiting:
                return
        raise Unavailable("nodes change hands all the time: go through the keys again later")

    async def flush(self) -> None:
        """Deletes all keys, once: later writes stay, however often the request is repeated."""
        named = self._calls.name() + request([b"FLUSHDB"])
        await self._all(named, before=1)

    async def fence(self, producer: bytes, number: int | None = None) -> int:
        """Returns the largest number of a producer in any partition, -1 if there is none. With a
        number, all partitions refuse smaller ones from now on.
        """
        words = [b"FENCE", producer, *([] if number is None else [b"%d" % number])]
        answers = await self._all(request(words))
        return max(answers) if number is None else number

    async def clear(self, producer: bytes, number: int, slots: range) -> int:
        """Deletes keys of partitions within the slots; returns how many partitions have other
        slots.
        """
        words = [b"BULK", b"CLEAR", producer, b"%d" % number]
        words += [b"%d" % slots[0], b"%d" % slots[-1]]
        return sum(await self._all(request(words)))

    async def count(self) -> int:
        return sum(await self._all(request([b"DBSIZE"])))

    async def _all(self, encoded: bytes, *, before: int = 0) -> list[Any]:
        """Returns the answers of all masters, once these stayed the same during the request."""
        attempts = self._calls.attempts()
        while True:
            nodes = self._nodes
            seen, masters = nodes.looks, list(nodes.map.masters)
            answers: list[Any] = []
            if None in masters:
                answers.append(ErrorAnswer("CLUSTERDOWN nobody has some slots"))
            asked = []
            for address in nodes.map.distinct_masters:
                found = await self._calls.reach(address)
                if isinstance(found, NodeConnection):
                    asked.append(found.ask(encoded, before=before))
                else:
                    answers.append(found)
            answers += [await each for each in asked]
            refusal = next((each for each in answers if isinstance(each, ErrorAnswer)), None)
            if refusal is not None:
                await attempts.after(refusal, nodes, seen, is_of_many=True)
                continue
            await self._look()
            if nodes.map.masters == masters:
                return answers

    async def _ask(self, address: str | None, slot: int, words: list[bytes]) -> Any:
        """Returns one node's answer; or a refusal, after which the caller may ask another node."""
        attempts = self._calls.attempts()
        encoded = request(words)
        while True:
            seen = self._nodes.looks
            found: Any = await self._calls.reach(address)
            answer = await found.ask(encoded) if isinstance(found, NodeConnection) else found
            if not isinstance(answer, ErrorAnswer):
                return answer
            if answer.text.startswith("ERR invalid cursor"):
                return answer
            await attempts.after(answer, self._nodes, seen, is_of_many=True)
            if self._nodes.map.masters[slot] != address:
                return answer

    async def _look(self) -> None:
        with suppress(Unavailable):
            await self._nodes.look(self._nodes.looks)


def _page(answer: Any) -> tuple[bytes, list[bytes]]:
    try:
        cursor, keys = answer
    except (TypeError, ValueError):
        raise ProtocolError("a node answered SCAN with something else") from None
    return cursor, keys


TIMEOUT_MS: Final = 30_000
SCAN_COUNT: Final = 1_000


class AsyncKv:
    """A table's client. Call `connect`, and `close` when done, or use an `async with` block."""

    def __init__(self, calls: Requester, resources: ExitStack) -> None:
        self._calls = calls
        self._resources = resources
        self._batches = BulkRequests(calls)
        self._whole = TableRequests(calls)
        self.binlogs = Binlogs(calls)
        """The records of the table's changes; use a client of its own for these."""

    @classmethod
    async def connect(
        cls,
        addresses: str | Sequence[str],
        *,
        user: str,
        password: str,
        tls: ClientTls | None = None,
        read_from: ReadFrom = "masters",
        timeout_ms: int = TIMEOUT_MS,
        environment: Environment | None = None,
    ) -> Self:
        """Connects to a table; returns once at least one node has answered. `addresses` are
        HOST:PORT[,…].

        With `read_from="replicas"` values may be some moments old.
        """
        with ExitStack() as resources:
            environment = environment or resources.enter_context(real_environment())
            access = KvAccess(
                addresses=addresses_of(addresses),
                user=user,
                password=password,
                tls=tls,
                read_from=read_from,
                silence_s_max=min(SILENCE_S_MAX, timeout_ms / 1000),
            )
            nodes = NodePool(environment, access)
            try:
                await nodes.start(timeout_ms / 1000)
            except BaseException:
                await nodes.close()
                raise
            calls = Requester(environment, nodes, timeout_ms / 1000)
            return cls(calls, resources.pop_all())

    async def close(self) -> None:
        await self._calls.nodes.close()
        self._resources.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # One key

    async def get(self, key: Word) -> bytes | None:
        name = as_bytes(key)
        return await self._calls.read(  # type: ignore[no-any-return]
            slot_of(name), b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(name), name)
        )

    @overload
    async def set(
        self,
        key: Word,
        value: Word,
        *,
        ex: int | None = None,
        px: int | None = None,
        nx: bool = False,
        xx: bool = False,
        keepttl: bool = False,
        get: Literal[False] = False,
    ) -> bool: ...

    @overload
    async def set(
        self,
        key: Word,
        value: Word,
        *,
        ex: int | None = None,
        px: int | None = None,
        nx: bool = False,
        xx: bool = False,
        keepttl: bool = False,
        get: Literal[True],
    ) -> bytes | None: ...

    async def set(
        self,
        key: Word,
        value: Word,
        *,
        ex: int | None = None,
        px: int | None = None,
        nx: bool = False,
        xx: bool = False,
        keepttl: bool = False,
        get: bool = False,
    ) -> bool | bytes | None:
        """Sets a key, with `nx` only if it has no value, with `xx` only if it has one; returns
        whether it did.

        With `get` it returns the old value instead. The key expires after `ex` seconds or `px`
        milliseconds.
        """
        words: list[Word] = ["SET", key, value, *_ends(ex=ex, px=px)]
        words += ["NX"] * nx + ["XX"] * xx + ["KEEPTTL"] * keepttl + ["GET"] * get
        answer = await self._write(words)
        return answer if get else answer is not None

    async def cas(
        self,
        key: Word,
        expected: Word,
        value: Word,
        *,
        ex: int | None = None,
        px: int | None = None,
        keepttl: bool = False,
    ) -> bool:
        """Replaces a value if it equals `expected`; returns whether it did."""
        words: list[Word] = ["CAS", key, expected, value, *_ends(ex=ex, px=px)]
        return bool(await self._write(words + ["KEEPTTL"] * keepttl))

    async def incr(self, key: Word, amount: int = 1) -> int:
        """Adds a whole number to a value (0 if there is none); returns the sum."""
        return int(await self._write(["INCRBY", key, amount]))

    async def append(self, key: Word, value: Word) -> int:
        """Appends to a value; returns its new length."""
        return int(await self._write(["APPEND", key, value]))

    async def getset(self, key: Word, value: Word) -> bytes | None:
        return await self._write(["GETSET", key, value])  # type: ignore[no-any-return]

    async def getdel(self, key: Word) -> bytes | None:
        return await self._write(["GETDEL", key])  # type: ignore[no-any-return]

    async def expire(self, key: Word, *, ex: int | None = None, px: int | None = None) -> bool:
        """Sets when a key expires; returns whether the key exists."""
        word, number = _ends(ex=ex, px=px) or ("", 0)
        if not word:
            raise InvalidInput("say when the key ends: give ex or px")
        return bool(await self._write(["EXPIRE" if word == "EX" else "PEXPIRE", key, number]))

    async def persist(self, key: Word) -> bool:
        """Removes a key's expiry; returns whether it had one."""
        return bool(await self._write(["PERSIST", key]))

    async def ttl_ms(self, key: Word) -> int | None:
        """Milliseconds until a key expires: -1 if it does not, None if there is no key."""
        left = int(await self._read(["PTTL", key]))
        return None if left == -2 else left

    async def strlen(self, key: Word) -> int:
        return int(await self._read(["STRLEN", key]))

    async def exists(self, key: Word) -> bool:
        return bool(await self._read(["EXISTS", key]))

    async def delete(self, *keys: Word) -> int:
        """Deletes keys; returns how many existed."""
        if len(keys) == 1:
            return int(await self._write(["DEL", keys[0]]))
        return await self.delete_many(keys)

    async def command(self, *words: Word, reads: bool = False) -> Any:
        """Runs any command on one key, its second word; `reads`: the command changes nothing."""
        if len(words) < 2:
            raise InvalidInput("give a command and its key")
        return await (self._read(words) if reads else self._write(words))

    async def _read(self, words: Sequence[Word]) -> Any:
        encoded = [as_bytes(word) for word in words]
        return await self._calls.read(slot_of(encoded[1]), request(encoded))

    async def _write(self, words: Sequence[Word]) -> Any:
        encoded = [as_bytes(word) for word in words]
        return await self._calls.write(slot_of(encoded[1]), request(encoded))

    async def time_us(self) -> int:
        """The clock of a node, in microseconds since 1970."""
        seconds, rest_us = await self._calls.read(0, request([b"TIME"]))
        return int(seconds) * 1_000_000 + int(rest_us)

    # Many keys

    async def get_many(self, keys: Iterable[Word]) -> list[bytes | None]:
        """Returns the values in the order of the keys."""
        return await self._batches.get([as_bytes(key) for key in keys])

    async def set_many(
        self, pairs: Mapping[Any, Word] | Iterable[tuple[Word, Word]], *, px: int | None = None
    ) -> None:
        """Sets many keys; those of one partition are set together, others separately."""
        items = list(pairs.items() if isinstance(pairs, Mapping) else pairs)
        await self._batches.set(
            [as_bytes(key) for key, _ in items],
            [as_bytes(value) for _, value in items],
            _same_ends(px, len(items)),
        )

    async def incr_many(
        self, amounts: Mapping[Any, int] | Iterable[tuple[Word, int]], *, px: int | None = None
    ) -> None:
        """Adds to many values; with `px` they expire after that time."""
        items = list(amounts.items() if isinstance(amounts, Mapping) else amounts)
        await self._batches.increment(
            [as_bytes(key) for key, _ in items],
            [b"%d" % amount for _, amount in items],
            _same_ends(px, len(items)),
        )

    async def delete_many(self, keys: Iterable[Word]) -> int:
        """Deletes keys; returns how many existed."""
        return await self._batches.delete([as_bytes(key) for key in keys])

    async def write_named(
        self, rows: Iterable[NamedRows], *, operation: Literal["set", "increment"] = "set"
    ) -> None:
        """Writes rows under the caller's own names, so that another process may repeat the write.

        A node skips rows whose name it still knows.
        """
        await self._batches.write_named(b"SET" if operation == "set" else b"INCR", rows)

    # Keys with one tag, the text in braces: `{user1}.name`

    async def tag_list(
        self, tag: Word, *, match: Word | None = None, count: int | None = None
    ) -> dict[bytes, bytes]:
        """Returns keys and values of all keys with a tag."""
        words: list[Word] = ["TAG", "LIST", _checked_tag(tag)]
        words += ["MATCH", match] if match is not None else []
        words += ["COUNT", count] if count is not None else []
        encoded = [as_bytes(word) for word in words]
        return await self._calls.read(  # type: ignore[no-any-return]
            slot_of(encoded[2]), request(encoded)
        )

    async def tag_delete(self, tag: Word) -> int:
        """Deletes all keys with a tag at once; returns how many there were."""
        encoded = [b"TAG", b"DEL", _checked_tag(tag)]
        return int(await self._calls.write(slot_of(encoded[2]), request(encoded)))

    async def transaction(self, commands: Iterable[Sequence[Word]]) -> list[Any]:
        """Runs commands on keys with one tag, all together; returns their answers.

        A command that is refused has an error as its answer; the others still run.
        """
        return await transact(self._calls, [[as_bytes(w) for w in each] for each in commands])

    # All keys

    async def scan(
        self, match: Word | None = None, *, count: int = SCAN_COUNT
    ) -> AsyncGenerator[bytes, None]:
        """Yields all keys, or those that match; asks the nodes for `count` at a time."""
        async for keys in self._whole.pages(None if match is None else as_bytes(match), count):
            for key in keys:
                yield key

    async def size(self) -> int:
        """Returns the number of keys."""
        return await self._whole.count()

    async def flush(self) -> None:
        """Deletes all keys."""
        await self._whole.flush()

    # Partitions as of one moment

    async def partitions(self) -> list[PartitionPlace]:
        """Returns all partitions of the table, in the order of their numbers."""
        return await partitions_of(self._calls)

    async def checkpoint(
        self, partition: int, *, ttl_ms: int = TTL_MS, group: str = ""
    ) -> AsyncCheckpoint:
        """Takes a checkpoint: all keys of a partition as of this moment, read in pages.

        It expires after `ttl_ms` without a read. The checkpoints of a group can be renewed and
        ended together.
        """
        return await begin_checkpoint(self._calls, partition, ttl_ms=ttl_ms, group=group)

    async def renew_checkpoints(self, group: str, addresses: Iterable[str]) -> int:
        """Renews a group's checkpoints on some nodes; returns how many there are."""
        return await to_group(self._calls, "RENEW", group, addresses)

    async def end_checkpoints(self, group: str, addresses: Iterable[str]) -> int:
        """Ends a group's checkpoints on some nodes; returns how many there were."""
        return await to_group(self._calls, "END", group, addresses)

    def checkpoint_of(self, about: CheckpointAbout) -> AsyncCheckpoint:
        """Returns a checkpoint that this or another client has begun."""
        return AsyncCheckpoint(self._calls, about)

    # Changes of a stream, by one writer at a time: see `commands/bulk`

    async def fence(self, producer: Word, number: int | None = None) -> int:
        """Returns the largest number under a producer's name, -1 if there is none. With a number,
        nodes refuse smaller ones from now on (`ProducerFenced`).
        """
        return await self._whole.fence(as_bytes(producer), number)

    async def apply(self, producer: Word, number: int, writes: Sequence[KeyWrite]) -> None:
        """Writes different keys, with absolute times. Writes nothing if the producer has used a
        larger number.

        A repetition of a number must have the same writes.
        """
        await self._batches.apply(as_bytes(producer), number, writes)

    async def clear(self, producer: Word, number: int, slots: range) -> int:
        """Like `apply`, but deletes all keys of partitions within the slots. Returns how many
        partitions have some of the slots and others as well; these are not changed.
        """
        return await self._whole.clear(as_bytes(producer), number, slots)

    # Arrow

    async def put_arrow(
        self,
        data: "pyarrow.Table | pyarrow.RecordBatch",
        *,
        key: str = "key",
        value: str = "value",
        ttl_ms: int | str | None = None,
    ) -> int:
        """Sets the keys of one column to the values of another; returns the number of rows.

        Keys expire after `ttl_ms` milliseconds, or the column of that name. For a repeated key the
        last value counts.
        """
        from raftwood.zeppelin.client.arrow_rows import columns_of  # noqa: PLC0415 (an extra)

        count = 0
        for batch in columns_of(data, key=key, value=value, ttl_ms=ttl_ms):
            await self._batches.set(*batch)
            count += len(batch.keys)
        return count

    async def get_arrow(self, keys: "Iterable[Word] | pyarrow.Array") -> "pyarrow.Table":
        """Returns columns `key` and `value`; a missing value is null."""
        from raftwood.zeppelin.client.arrow_rows import keys_of, table_of  # noqa: PLC0415

        names = keys_of(keys)
        return table_of(names, await self._batches.get(names))

    async def scan_arrow(
        self, match: Word | None = None, *, count: int = SCAN_COUNT
    ) -> "AsyncGenerator[pyarrow.Table, None]":
        """Yields all keys and values, some thousand at a time, without those that expired."""
        from raftwood.zeppelin.client.arrow_rows import table_of  # noqa: PLC0415

        async for keys in self._whole.pages(None if match is None else as_bytes(match), count):
            table = table_of(keys, await self._batches.get(keys))
            yield table.filter(table["value"].is_valid())


def _ends(*, ex: int | None, px: int | None) -> list[Any]:
    if ex is not None and px is not None:
        raise InvalidInput("ex and px both say when the key ends: give one")
    if ex is not None:
        return ["EX", ex]
    return [] if px is None else ["PX", px]


def _same_ends(px: int | None, count: int) -> list[bytes]:
    if px is None:
        return []
    if px <= 0:
        raise InvalidInput(f"px is {px}: give 1 or more milliseconds")
    return [number_word(px)] * count


def _checked_tag(tag: Word) -> bytes:
    name = as_bytes(tag)
    if not name or tag_of(b"{" + name + b"}") != name:
        raise InvalidInput(f"{name!r} cannot be a tag: it is empty, or has a brace in it")
    return name
