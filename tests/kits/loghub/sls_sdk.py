"""SLS's Python SDK in an environment of its own: it needs a protobuf that is older than ours.

    with sls_sdk() as sdk:
        client = sdk.module("aliyun.log").LogClient("http://sls.test", key_id, secret)
        client.create_project("p", "of the test")

Attributes, calls and loops work as they do at home. What it raises comes as `SdkError`.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kits.install import python as python_libraries

if TYPE_CHECKING:
    from raftwood.loghub.model import AccessKey
    from tests.kits.loghub.gateways import ThreadedGateway

LIBRARIES = (
    "aliyun-log-python-sdk==0.9.52",
    "dateparser==1.5.0",
    "jmespath==1.1.0",
    "protobuf==5.29.6",
    "regex==2026.11.9",
    "six==1.17.0",
    "tzlocal==5.4.5",
)
"""What it needs beside what is installed."""
SERVER = Path(__file__).parents[2] / "interop" / "python" / "sdk_server.py"
END_S_MAX = 60.0

Request = tuple[str, str, dict[str, Any], dict[str, str], bytes]
"""Method, path, parameters, headers, body."""


def install() -> Path:
    """The folder, for the front of PYTHONPATH; raises `NotInstalled`."""
    return python_libraries.install("sls-python", *LIBRARIES)


class SdkError(Exception):
    """What the SDK raised."""

    def __init__(self, code: str, request_id: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.request_id = request_id


class Sdk:
    """The process that has it; for several threads."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lock = threading.Lock()

    def module(self, name: str) -> Any:
        return self.ask("import", name)

    def client(
        self, served: "ThreadedGateway", key: "AccessKey | None" = None, **options: Any
    ) -> Any:
        """SLS's own client of this gateway."""
        self.reach(f"http://{served.address}")
        used = key or served.admin
        return self.module("aliyun.log").LogClient(
            "http://sls.test", used.id, used.secret, source="here", **options
        )

    def reach(self, url: str) -> None:
        """A made-up endpoint is reached through the environment's proxy, which the gateway is."""
        self.module("os").environ.update({"http_proxy": url, "no_proxy": ""})

    def sign(
        self,
        version: int,
        request: Request,
        *key: str,
        region: str = "",
    ) -> dict[str, str]:
        """The headers of a request that is signed with a key, a secret and perhaps a token."""
        *parts, body = request
        signing = self.module("sdk_server").sign
        signed: dict[str, str] = signing(version, [*parts, body.decode("latin-1")], key, region)
        return signed

    def ask(self, *request: Any) -> Any:
        pipe_in, pipe_out = self._process.stdin, self._process.stdout
        assert pipe_in is not None
        assert pipe_out is not None
        with self._lock:
            pipe_in.write(json.dumps(_told(request)) + "\n")
            pipe_in.flush()
            line = pipe_out.readline()
        assert line, "the SDK's process has ended"
        answer = json.loads(line)
        if "failed" in answer:
            raise SdkError(answer["failed"], answer["request_id"], answer["message"])
        return self._meant(answer["value"])

    def _meant(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._meant(each) for each in value]
        if isinstance(value, dict):
            if value.keys() == {"object"}:
                return _Remote(self, value["object"])
            return {name: self._meant(each) for name, each in value.items()}
        return value


class _Remote:
    """Something that is over there."""

    def __init__(self, sdk: Sdk, number: int) -> None:
        self._sdk = sdk
        self._number = number

    def __getattr__(self, name: str) -> Any:
        return self._sdk.ask("get", self, name)

    def __call__(self, *positional: Any, **named: Any) -> Any:
        return self._sdk.ask("call", self, positional, named)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._sdk.ask("list", self))


def _told(value: Any) -> Any:
    if isinstance(value, _Remote):
        return {"object": value._number}
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    if isinstance(value, dict):
        return {name: _told(each) for name, each in value.items()}
    return value


@contextmanager
def sls_sdk() -> Iterator[Sdk]:
    """Raises `NotInstalled`."""
    with subprocess.Popen(
        (sys.executable, str(SERVER)),
        env={**os.environ, "PYTHONPATH": str(install())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Sdk(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(END_S_MAX) == 0
        finally:
            process.kill()
