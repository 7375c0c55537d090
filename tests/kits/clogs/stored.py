"""What is in a storage, as records with all their fields."""

from raftwood.loghub.batches import decompress
from raftwood.loghub.log_groups import decode_log_group
from tests.kits.clogs.memory_sink import MemoryStorage


def records_of(storage: MemoryStorage, name: str) -> list[dict[str, str]]:
    found = []
    for place in storage.of(name):
        for message in place.batches:
            raw = decompress(message.body, message.codec, raw_bytes=message.raw_bytes)
            found += [
                {bytes(each.Key).decode(): bytes(each.Value).decode() for each in log.Contents}
                for log in decode_log_group(raw).Logs
            ]
    return found
