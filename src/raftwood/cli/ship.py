"""`raftwood ship`: follow files and have each of their lines stored once, until told to stop."""

import asyncio
import ctypes
import glob
import os
import socket
import tomllib
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import Annotated, Final

import msgspec
from cyclopts import App, Parameter

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration
from raftwood.base.logs import get_logger, set_up_logs
from raftwood.cli.options import DEFAULTS, Source
from raftwood.cli.output import write_line
from raftwood.cli.process import (
    ServerContext,
    StartedServer,
    run_server,
    stop_on_signals,
    unless_stopped,
)
from raftwood.cli.ship_status import STATUS_FILE, ShipStatus, show_ship, write_status
from raftwood.clogs.client.settings import ClogsClientSettings, SpoolMode, WhenFull
from raftwood.clogs.client.shipper import AsyncShipper, open_shipper
from raftwood.clogs.masking import Masking, masking_of
from raftwood.clogs.tail.files import MachineFiles
from raftwood.clogs.tail.inotify import FolderWatch
from raftwood.clogs.tail.settings import TailSettings
from raftwood.clogs.tail.tailer import Tailer
from raftwood.disk.real_environment import real_environment
from raftwood.server.event_loop import run
from raftwood.server.settings import Settings

_STATUS_S: Final = 1.0
_CLOSE_MS_MAX: Final = 10_000
"""Below what a process has to stop in."""
_SETTINGS_BYTES_MAX: Final = 1 << 20
_log = get_logger("ship")


def tail_settings(paths: Sequence[str], *, file: str | None, name: str | None) -> TailSettings:
    """From the command line and the settings file; paths are absolute from here on."""
    data = {} if file is None else _read(file)
    if paths:
        data["paths"] = list(paths)
    if name is not None:
        data["name"] = name
    if not data.get("paths"):
        raise InvalidConfiguration("no file is named: give files or globs, or paths in --settings")
    settings = TailSettings.parse(data, origin=file or "the command line")
    return msgspec.structs.replace(
        settings,
        paths=tuple(map(os.path.abspath, settings.paths)),
        close_ms=min(settings.close_ms, _CLOSE_MS_MAX),
    )


def _read(file: str) -> dict[str, object]:
    try:
        with open(file, "rb") as stream:
            data = stream.read(_SETTINGS_BYTES_MAX + 1)
        if len(data) > _SETTINGS_BYTES_MAX:
            raise InvalidConfiguration(f"{file} is above {_SETTINGS_BYTES_MAX} bytes: shorten it")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise InvalidConfiguration(f"{file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidConfiguration(f"{file} is no TOML: {error}; correct it") from error


class ShipServer:
    """A tailer, its shipper, and the file that tells how they are."""

    def __init__(
        self,
        environment: Environment,
        folder: str,
        tailer: Tailer,
        shipper: AsyncShipper,
        masking: Masking | None,
    ) -> None:
        self._environment = environment
        self._path = f"{folder}/{STATUS_FILE}"
        self.tailer = tailer
        self.shipper = shipper
        self._masking = masking
        self._problem = ""
        self._tasks = [
            asyncio.create_task(self._tell(), name="status of ship"),
            asyncio.create_task(self._watch(), name="watch of the tailer"),
        ]

    @classmethod
    async def start(
        cls, environment: Environment, settings: Settings, tail: TailSettings, folder: str
    ) -> "ShipServer":
        client = _client_settings(settings.clogs_client)
        tail = _completed(tail, client, folder)
        masking = masking_of(tail.masks, tail.mask_rules)
        shipper = await open_shipper(environment, client)
        files = MachineFiles()
        try:
            tailer = await Tailer.start(
                environment,
                tail,
                folder=folder,
                files=files,
                delivering=shipper,
                masking=masking,
                watching=FolderWatch(files) if tail.is_watching else None,
            )
        except BaseException:
            await files.end()
            await shipper.close(wait_ms=0)
            raise
        return cls(environment, folder, tailer, shipper, masking)

    def problem(self) -> str:
        if self.shipper.status().is_panic:
            return "no server answers, and lines wait"
        return self._problem

    def status(self) -> ShipStatus:
        return ShipStatus(
            process=os.getpid(),
            time_ns=self._environment.clock.wall_ns(),
            tail=self.tailer.status(),
            shipper=self.shipper.status(),
            masked={} if self._masking is None else dict(self._masking.counts),
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self.tailer.close()
        await self.shipper.close(wait_ms=0)
        await self._write()

    async def _tell(self) -> None:
        while True:
            await self._write()
            await asyncio.sleep(_STATUS_S)

    async def _write(self) -> None:
        try:
            await asyncio.to_thread(write_status, self._path, self.status())
        except OSError as error:
            # A full disk holds nobody up for this; the next one may be written.
            self._problem = f"{self._path} cannot be written: {error.strerror}"
        else:
            self._problem = ""

    async def _watch(self) -> None:
        """Where the tailer ends by a bug, so does the process: a new one goes on from the state."""
        await asyncio.wait([self.tailer.running])
        if not self.tailer.running.cancelled() and self.tailer.running.exception() is not None:
            error = self.tailer.running.exception()
            _log.error("the tailer failed", exc_info=error)
            self._environment.end_process(f"the tailer failed: {error!r}")


def _client_settings(settings: ClogsClientSettings) -> ClogsClientSettings:
    """The files keep the lines: no spool is needed, and it may be another program's."""
    return msgspec.structs.replace(
        settings, spool_folder="", spool=SpoolMode.OVERFLOW, when_full=WhenFull.DROP_OLDEST
    )


def _completed(tail: TailSettings, client: ClogsClientSettings, folder: str) -> TailSettings:
    """What the settings of all shippers say goes for this one too; its state is not shipped."""
    exclude = (*tail.exclude, f"{glob.escape(os.path.abspath(folder))}/*")
    masks = dict.fromkeys((*client.masks, *tail.masks))
    source = tail.source or client.source or socket.gethostname()
    return msgspec.structs.replace(tail, exclude=exclude, masks=tuple(masks), source=source)


def ship_on(source: Source, tail: TailSettings, folder: str, *, ready_file: str | None) -> None:
    """Ship until SIGTERM or SIGINT; `ready_file` is written once files are followed."""
    _keep_memory()
    settings = source.load().settings

    async def start(place: ServerContext) -> StartedServer:
        server = await ShipServer.start(place.environment, settings, tail, folder)
        show_ship(place.metrics, server.tailer, server.shipper)
        return StartedServer(
            server=server,
            line=f"following {', '.join(tail.paths)}; the state is in {folder}",
            addresses=(),
            reload_certificates=_nothing,
        )

    run_server("ship", source, settings, start, ready_file=ready_file)


def ship_once(source: Source, tail: TailSettings, folder: str) -> int:
    """Ship what is there; answers the exit status."""
    _keep_memory()
    settings = source.load().settings
    with real_environment() as environment:
        set_up_logs(settings.logs, clock=environment.clock)
        return run(_ship_once(environment, settings, tail, folder))


async def _ship_once(
    environment: Environment, settings: Settings, tail: TailSettings, folder: str
) -> int:
    stop = stop_on_signals(environment)
    async with AsyncExitStack() as stack:
        server = await ShipServer.start(environment, settings, tail, folder)
        stack.push_async_callback(server.close)
        problems = await unless_stopped(stop, server.tailer.drain())
        counters = server.tailer.counters
        if problems is None:
            write_line(f"stopped before all was stored: {counters.lines} lines are")
            return 1
        write_line(f"{counters.lines} lines of {counters.bytes} bytes are stored")
        for problem in problems:
            write_line(problem)
        return 1 if problems or counters.unknown_batches else 0


def _nothing() -> None:
    """Certificates are read when a connection is made."""


def _keep_memory() -> None:
    """Buffers of batches are used again: to give memory back after each, and to get it anew page by
    page, takes as long as to encode what is in it. Only glibc has to be told.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    with suppress(AttributeError, OSError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(trim_threshold, 256 << 20)
        set_option(top_pad, 16 << 20)
        set_option(mmap_threshold, 32 << 20)


app = App(name="ship", help_format="plaintext")


@app.default
def ship(
    *paths: Annotated[
        str, Parameter(help="Files and globs, in quotes; else those of the settings file.")
    ],
    state: Annotated[
        str,
        Parameter(help="Folder that says how far each file is stored; of one process at a time."),
    ],
    settings: Annotated[
        str | None,
        Parameter(help="TOML file that says more: names, lines, masks, limits."),
    ] = None,
    name: Annotated[
        str | None,
        Parameter(help="What a file is shipped as: {path}, {base}, {stem} or {folder} in a text."),
    ] = None,
    once: Annotated[
        bool, Parameter(negative="", help="Ship what is there, and end once all of it is stored.")
    ] = False,
    ready_file: Annotated[
        str | None, Parameter(help="Written once files are followed: the process's number.")
    ] = None,
    source: Source = DEFAULTS,
) -> int:
    """Follow files that grow, are rotated, cut and replaced, and ship each line of them once.

    The servers and the access key are settings of `clogs_client`. `status.json` in the state folder
    tells each second how far it is. With --once the exit status is 1 if a file could not be read.
    """
    # They take a while to load, which whoever asks for help need not wait for.

    tail = tail_settings(paths, file=settings, name=name)
    if once:
        return ship_once(source, tail, state)
    ship_on(source, tail, state, ready_file=ready_file)
    return 0
