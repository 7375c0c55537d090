"""How listeners end without losing a connection that they have accepted."""

import asyncio
from collections.abc import Iterable
from typing import Final

_TURNS_TO_ACCEPT: Final = 4


async def stop_accepting(listeners: Iterable[asyncio.Server]) -> None:
    """Close listeners; when it returns, each connection that they accepted has its protocol.

    asyncio makes a connection's transport a turn after it was accepted, and fails to where the
    listener was closed in between: nobody would serve such a connection, or ever close it. So they
    stop to accept first, and are closed once what they accepted shows up.
    """
    listeners = list(listeners)
    loop = asyncio.get_running_loop()
    # Other loops (uvloop, the simulation) accept in one turn.
    if isinstance(loop, asyncio.SelectorEventLoop):
        for listener in listeners:
            for each in listener.sockets:
                loop.remove_reader(each.fileno())
        await _accepted()
    for listener in listeners:
        listener.close()
    await _accepted()


async def _accepted() -> None:
    for _ in range(_TURNS_TO_ACCEPT):
        await asyncio.sleep(0)
