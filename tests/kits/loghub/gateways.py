"""A whole gateway behind a real HTTP port, in the test's process: metadata in a folder, logs in
memory.

    async with http_gateway(tmp_path) as served:         # on the test's own loop
        answer = await served.ask("GET", "/logstores", project="p")

    with threaded_gateway(tmp_path) as served:            # for clients that block
        client = sdk.client(served)
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from email.utils import formatdate
from hashlib import md5
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch
from urllib.parse import urlencode

import msgspec

from raftwood.base.metrics import Metrics
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.listeners import serve_http
from raftwood.loghub.server.sls.signatures import SignedParts, signature_v1
from raftwood.loghub.settings import GatewaySettings
from tests.kits.loghub.streams import GatewayKit, gateway_kit

Result = TypeVar("Result")
SETTINGS = GatewaySettings(http_listen="127.0.0.1:0")


class HttpAnswer(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        """Of an SLS error."""
        return str(self.json()["errorCode"])


class HttpGateway(msgspec.Struct, frozen=True):
    """A gateway that is served."""

    kit: GatewayKit
    gateway: Gateway
    admin: AccessKey
    address: str
    metrics: Metrics

    async def raw(self, data: bytes) -> bytes:
        """Bytes to the port, and all that comes back until it is closed."""
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            async with asyncio.timeout(60):
                return await reader.read()
        finally:
            writer.close()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        project: str = "",
        parameters: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        key: AccessKey | None = None,
    ) -> HttpAnswer:
        """A request signed by a key, the admin's without one."""
        sent = signed_headers(
            method,
            path,
            host=f"{project}.sls.test" if project else "127.0.0.1",
            parameters=parameters or {},
            headers=headers or {},
            body=body,
            key=key or self.admin,
        )
        query = f"?{urlencode(parameters)}" if parameters else ""
        lines = [f"{method} {path}{query} HTTP/1.1", "connection: close"]
        lines += [f"{name}: {value}" for name, value in sent.items()]
        return parsed_answer(await self.raw("\r\n".join([*lines, "", ""]).encode() + body))


def parsed_answer(data: bytes) -> HttpAnswer:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *rest = head.decode("latin-1").split("\r\n")
    pairs = [line.partition(":") for line in rest]
    headers = {name: value.strip() for name, _, value in pairs}
    return HttpAnswer(int(first.split()[1]), headers, body)


def signed_headers(
    method: str,
    path: str,
    *,
    host: str,
    parameters: Mapping[str, str],
    headers: Mapping[str, str],
    body: bytes,
    key: AccessKey,
) -> dict[str, str]:
    """All headers of a request, signed as SLS's version 1."""
    sent = {"host": host, "date": formatdate(usegmt=True), "x-log-apiversion": "0.6.0"}
    if body:
        sent["content-length"] = str(len(body))
        sent["content-md5"] = md5(body).hexdigest().upper()
    sent |= {name.lower(): value for name, value in headers.items()}
    raw = {name.encode(): value.encode() for name, value in sent.items()}
    signature = signature_v1(key.secret, SignedParts(method, path, parameters, raw))
    return sent | {"authorization": f"LOG {key.id}:{signature}"}


@asynccontextmanager
async def http_gateway(
    folder: Path,
    *,
    settings: GatewaySettings = SETTINGS,
) -> AsyncIterator[HttpGateway]:
    """On the running loop; there is one key, the admin's."""
    async with gateway_kit(folder, settings=settings) as kit:
        gateway = await kit.gateway()
        metrics = Metrics()
        listener = await serve_http(kit.environment, gateway, settings, metrics=metrics)
        try:
            yield HttpGateway(kit, gateway, await kit.admin(), listener.address, metrics)
        finally:
            await listener.close()


class ThreadedGateway:
    """A gateway on the loop of a thread of its own."""

    def __init__(self, served: HttpGateway, loop: asyncio.AbstractEventLoop) -> None:
        self.served = served
        self.address = served.address
        self.admin = served.admin
        self.gateway = served.gateway
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """On the gateway's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30.0)


@contextmanager
def threaded_gateway(
    folder: Path,
    *,
    settings: GatewaySettings = SETTINGS,
) -> Iterator[ThreadedGateway]:
    started = threading.Event()
    found: list[ThreadedGateway] = []
    failures: list[BaseException] = []
    stops: list[asyncio.Event] = []

    async def serve() -> None:
        # The thread for long work is there before a test begins, and no second one comes.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await asyncio.to_thread(os.getpid)
        async with http_gateway(folder, settings=settings) as served:
            stops.append(asyncio.Event())
            found.append(ThreadedGateway(served, asyncio.get_running_loop()))
            started.set()
            await stops[0].wait()

    def main() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=main, name="gateway of a test")
    thread.start()
    started.wait(30.0)
    try:
        if failures:
            raise failures[0]
        # A made-up endpoint is reached through the environment's proxy, which the gateway is.
        proxy = {"http_proxy": f"http://{found[0].address}", "no_proxy": ""}
        with patch.dict(os.environ, proxy):
            yield found[0]
    finally:
        if found and thread.is_alive():
            found[0]._loop.call_soon_threadsafe(stops[0].set)
        thread.join(30.0)
    if failures:
        raise failures[0]
