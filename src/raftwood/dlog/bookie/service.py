"""A bookie's side of the network: adds and reads from memory are answered without a task."""

from collections.abc import Callable

from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.bookie.wire import (
    ADD,
    FENCE,
    LAST_CONFIRMED,
    PUBLISH,
    READ,
    WAIT,
    PublishRequest,
    WaitRequest,
    decode_adds,
    decode_fence,
    decode_ledger,
    decode_read,
    encode_number,
    encode_refusals,
)
from raftwood.net import Call, Payload, Service


class BookieService:
    """Registers itself with a `Service`; the methods say which roles may call them."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    def register(self, service: Service) -> None:
        service.fast(ADD, self._add)
        service.task(READ, self._read)
        service.task(FENCE, self._fence)
        service.task(LAST_CONFIRMED, self._last_confirmed)
        service.typed(WAIT, self._wait)
        service.typed(PUBLISH, self._publish)

    def _add(self, call: Call, payload: Payload) -> None:
        """All entries of one request are written, then answered together when durable."""
        bookie = self._bookie
        refusals: list[tuple[int, RaftwoodError]] = []
        for place, (packed, master_key, is_recovery) in enumerate(decode_adds(payload)):
            error = bookie.add(packed, master_key=master_key, is_recovery=is_recovery)
            if error is not None:
                refusals.append((place, error))
        bookie.when_durable(_answering(call, encode_refusals(refusals)))

    async def _read(self, _: Call, payload: Payload) -> Buffer:
        ledger, entry = decode_read(payload)
        cached = self._bookie.read_cached(ledger, entry)
        return await self._bookie.read(ledger, entry) if cached is None else cached

    async def _fence(self, _: Call, payload: Payload) -> Buffer:
        request = decode_fence(payload)
        await self._bookie.fence(request.ledger, request.master_key)
        return await self._bookie.read(request.ledger, request.entry)

    async def _last_confirmed(self, _: Call, payload: Payload) -> list[Buffer]:
        published, highest = await self._bookie.read_last_confirmed(decode_ledger(payload))
        return [encode_number(published), highest]

    async def _wait(self, _: Call, request: WaitRequest) -> int:
        return await self._bookie.wait_last_confirmed(
            request.ledger, after=request.after, timeout_ms=request.timeout_ms
        )

    async def _publish(self, _: Call, request: PublishRequest) -> None:
        await self._bookie.write_last_confirmed(
            request.ledger, request.last_confirmed, request.master_key
        )


def _answering(call: Call, answer: bytes) -> Callable[[], None]:
    return lambda: call.reply(answer)
