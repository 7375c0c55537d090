"""Restoring a backup into a new, empty shard: its records keep the LSNs that they had.

The whole backup is checked first. Then one batch after the other is sent, each until it is
answered; what was interrupted goes on where it was left when it is begun again on the same shard.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from raftwood.base.errors import Unavailable
from raftwood.base.files import Files
from raftwood.logservice.client.backup import Told
from raftwood.logservice.client.backup_format import Manifest, damaged, read_chunks, read_manifest
from raftwood.logservice.client.shard_link import PAUSE_LONGEST_S, ShardLink
from raftwood.logservice.records import Record, UpdateKind, encode_update
from raftwood.logservice.restoring import (
    RestoreBegin,
    RestoreFinish,
    encode_begin,
    encode_finish,
    encode_restored,
)
from raftwood.logservice.wire import APPEND, decode_lsns, encode_append
from raftwood.net.stores import Stores

BATCH_BYTES: Final = 1 << 20
BATCH_ENTRIES: Final = 4_096
FILL_MAX: Final = 64
"""A hole of so many LSNs is filled with entries; a larger one is skipped, and is remembered."""
TIMEOUT_MS: Final = 60_000
ATTEMPTS_MAX: Final = 100


async def check_backup(files: Files, folder: str) -> Manifest:
    """Read a whole backup; `StoreDamaged` names the file that is wrong."""
    manifest = await read_manifest(files, folder)
    records = 0
    async for _, found in _records(files, folder, manifest):
        records += len(found)
    if records != manifest.records:
        raise damaged(folder, f"it has {records} records, not {manifest.records}")
    return manifest


async def restore(
    stores: Stores,
    shard: int,
    files: Files,
    folder: str,
    manifest: Manifest,
    *,
    told: Told = lambda _records, _lsn: None,
) -> None:
    """Fill an empty shard, which serves from then on; `Conflict` where it is not empty."""
    link = ShardLink(stores, shard)
    try:
        begin = RestoreBegin(
            backup=manifest.id,
            truncated_lsn=manifest.truncated_lsn,
            required_lsn=manifest.required_lsn,
            tso=manifest.tso,
            holder=manifest.holder,
        )
        last_lsn = await _send(link, [encode_begin(begin)])
        done = 0
        async for previous_lsn, records in _records(files, folder, manifest):
            for batch in _batches(records, previous_lsn, last_lsn):
                await _send(link, batch)
            done += len(records)
            told(done, records[-1].lsn + 1)
        finish = RestoreFinish(
            backup=manifest.id, next_lsn=manifest.next_lsn, records=manifest.records
        )
        await _send(link, [encode_finish(finish)])
    finally:
        await link.close()


async def _records(
    files: Files, folder: str, manifest: Manifest
) -> AsyncIterator[tuple[int, list[Record]]]:
    """The records chunk by chunk, and the LSN before each chunk's first; their order is checked."""
    last = manifest.first_lsn - 1
    for file in manifest.files:
        async for records in read_chunks(files, folder, file):
            before = last
            for record in records:
                if not last < record.lsn < manifest.next_lsn:
                    raise damaged(f"{folder}/{file.name}", f"LSN {record.lsn} stands after {last}")
                last = record.lsn
            if records:
                yield before, records


def _batches(records: list[Record], previous_lsn: int, done_lsn: int) -> list[list[bytes]]:
    """Entries for the records above what is done, and for small holes between them."""
    batches: list[list[bytes]] = [[]]
    size = 0
    for record in records:
        hole = record.lsn - previous_lsn - 1
        entries = [
            encode_update(UpdateKind.FILL, lsn)
            for lsn in range(previous_lsn + 1, record.lsn if hole <= FILL_MAX else 0)
        ]
        previous_lsn = record.lsn
        if record.lsn <= done_lsn:
            continue
        entries.append(encode_restored(record.data, record.lsn))
        added = sum(map(len, entries))
        if batches[-1] and (
            size + added > BATCH_BYTES or len(batches[-1]) + len(entries) > BATCH_ENTRIES
        ):
            batches.append([])
            size = 0
        batches[-1] += entries
        size += added
    return [batch for batch in batches if batch]


async def _send(link: ShardLink, entries: list[bytes]) -> int:
    """Send a batch until all of it is answered; the last answer."""
    request = encode_append(link.shard, entries)
    for _ in range(ATTEMPTS_MAX):
        answer = await link.ask_raw(APPEND, request, timeout_ms=TIMEOUT_MS)
        results = decode_lsns(answer, len(entries))
        errors = [each for each in results if not isinstance(each, int)]
        if not errors:
            last = results[-1]
            assert isinstance(last, int)
            return last
        for error in errors:
            if not isinstance(error, Unavailable):
                raise error
        link.note(errors[0], asked=link.guess())
        await asyncio.sleep(PAUSE_LONGEST_S)
    raise link.silence(None)
