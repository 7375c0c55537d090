"""A proxy in front of every store, through which the others reach it.

Whoever dials says who it is in its first frame, which the proxy reads.
"""

import asyncio
from collections.abc import Mapping
from typing import Self

import msgspec

from raftwood.net.frames import HEADER_BYTES
from raftwood.net.handshake import Hello
from raftwood.net.identity import split_address
from tests.kits.links import OUTSIDE, Links
from tests.kits.ports import LOCAL

_LENGTH_AT = slice(16, 20)
_decode_hello = msgspec.msgpack.Decoder(Hello).decode


class Proxies:
    """Use it as a context manager; `addresses` are those that stores are to be told."""

    def __init__(self, targets: Mapping[int, str]) -> None:
        self._targets = targets
        self._links = Links()
        self.addresses: dict[int, str] = {}

    async def __aenter__(self) -> Self:
        for store, address in self._targets.items():
            host, port = split_address(address)
            near = await self._links.stand_before(
                str(store), (host, port), listen=(LOCAL, 0), dialled=_who_says_hello
            )
            self.addresses[store] = f"{LOCAL}:{near}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._links.__aexit__()

    def stall(self, source: int, target: int) -> None:
        """Nothing comes through any more, and nobody is told."""
        self._links.stall(str(source), str(target))

    def go_on(self, source: int, target: int) -> None:
        self._links.go_on(str(source), str(target))

    def isolate(self, store: int) -> None:
        self._links.cut(str(store), [str(other) for other in self._targets if other != store])

    def heal(self) -> None:
        self._links.heal()

    def reset(self, store: int) -> None:
        """Break all connections to a store."""
        self._links.reset(str(store))

    def slow_down(self, latency_s: float) -> None:
        self._links.latency_s = latency_s


async def _who_says_hello(
    reader: asyncio.StreamReader, _: asyncio.StreamWriter
) -> tuple[str, bytes]:
    header = await reader.readexactly(HEADER_BYTES)
    payload = await reader.readexactly(int.from_bytes(header[_LENGTH_AT], "little"))
    hello = _decode_hello(payload)
    return hello.node_id if hello.role == "store" else OUTSIDE, header + payload
