"""fluent-logger, which does no handshake, sends to a gateway from a network that may."""

import asyncio
from pathlib import Path

from fluent.sender import FluentSender

from raftwood.loghub.server.ways_in.settings import WaysInSettings
from tests.kits.loghub.ways_in import LOGSTORE, PROJECT, ways_in_kit
from tests.kits.running import run


def send(port: int, *, is_precise: bool) -> None:
    sender = FluentSender("shop", port=port, host="127.0.0.1", nanosecond_precision=is_precise)
    try:
        for number in range(100):
            assert sender.emit("orders", {"number": number, "text": "größer", "deep": {"a": [1]}})
    finally:
        sender.close()


def test_events_of_the_sender_are_stored(tmp_path: Path) -> None:
    settings = WaysInSettings(
        fluent_listen="127.0.0.1:0",
        fluent_project=PROJECT,
        fluent_logstore=LOGSTORE,
        fluent_peers=("127.0.0.0/8",),
    )

    async def main() -> None:
        async with ways_in_kit(tmp_path, settings) as kit:
            port = kit.sockets.fluent.ports[0]
            await asyncio.to_thread(send, port, is_precise=False)
            await asyncio.to_thread(send, port, is_precise=True)
            stored = await kit.stored_when(200)
        numbers = [int(each.contents["number"]) for each in stored]
        assert numbers == [*range(100), *range(100)]
        assert stored[0].contents["text"] == "größer"
        assert stored[0].contents["deep"] == '{"a":[1]}'
        assert stored[0].tags == {"tag": "shop.orders"}
        assert stored[0].source == "127.0.0.1"

    run(main())
