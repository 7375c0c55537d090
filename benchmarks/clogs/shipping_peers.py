"""rsyslog and syslog-ng of Debian, unpacked below `.cache`: they tail a file to a TCP sink.

Each has a configuration of its own and writes below one folder only; nothing of the system's
configuration or state is read or written. Both are set up for rate: no parsing of what is no syslog
message, large batches, and the reader waits where the sink is slower, so that nothing is dropped.
"""

import pathlib
from collections.abc import Callable
from typing import Final

import msgspec
from tests.kits.install import debian
from tests.kits.install.cache import NotInstalled

from benchmarks.harness.system import NotAvailable

RSYSLOG: Final = "rsyslog"
SYSLOG_NG: Final = "syslog-ng"
_PACKAGES: Final = {RSYSLOG: "rsyslog", SYSLOG_NG: "syslog-ng-core"}

_RSYSLOG_CONF: Final = """\
global(workDirectory="{folder}" maxMessageSize="64k"
       parser.escapeControlCharactersOnReceive="off")
module(load="imfile")
main_queue(queue.type="FixedArray" queue.size="200000" queue.dequeueBatchSize="4096")
template(name="line" type="list") {{ property(name="msg") constant(value="\\n") }}
input(type="imfile" file="{path}" tag="bench" freshStartTail="off" maxSubmitAtOnce="4096")
action(type="omfwd" target="127.0.0.1" port="{port}" protocol="tcp" template="line"
       tcp_framing="traditional")
"""
_SYSLOG_NG_CONF: Final = """\
@version: 3.38
options {{ stats-freq(0); keep-hostname(yes); use-dns(no); flush-lines(1000);
  log-fifo-size(200000); }};
source s_file {{ file("{path}" flags(no-parse) follow-freq(1) log-fetch-limit(1000)
  log-iw-size(100000)); }};
destination d_sink {{ network("127.0.0.1" port({port}) transport("tcp")
  template("${{MSG}}\\n")); }};
log {{ source(s_file); destination(d_sink); flags(flow-control); }};
"""


class PeerCommand(msgspec.Struct, frozen=True):
    """How a peer is started; it runs until it is ended."""

    command: list[str]
    environment: dict[str, str]


def describe(name: str) -> str:
    """Version and settings, for the report; `NotAvailable` where it cannot be had."""
    version = _package(name).version
    about = {
        RSYSLOG: "imfile and omfwd over TCP, a queue in memory, batches of 4096",
        SYSLOG_NG: "file() and network() over TCP, flow control, flush-lines(1000)",
    }
    return f"{_PACKAGES[name]} {version} of Debian: {about[name]}; no acks, no compression"


def peer_command(name: str, folder: pathlib.Path, *, path: str, port: int) -> PeerCommand:
    """A peer that ships a file from its beginning on; the folder is its own, and exists."""
    package = _package(name)
    return _COMMANDS[name](package, folder, path, port)


def _rsyslog(package: debian.Package, folder: pathlib.Path, path: str, port: int) -> PeerCommand:
    configuration = folder / "rsyslog.conf"
    configuration.write_text(_RSYSLOG_CONF.format(folder=folder, path=path, port=port))
    (modules,) = (package.folder / "usr" / "lib").glob("*/rsyslog")
    command = [str(package.folder / "usr" / "sbin" / "rsyslogd"), "-n", "-C"]
    command += ["-f", str(configuration), "-i", str(folder / "pid"), "-M", str(modules)]
    return PeerCommand(command, _environment(package))


def _syslog_ng(package: debian.Package, folder: pathlib.Path, path: str, port: int) -> PeerCommand:
    configuration = folder / "syslog-ng.conf"
    configuration.write_text(_SYSLOG_NG_CONF.format(path=path, port=port))
    own = package.folder / "usr" / "lib" / "syslog-ng"
    (modules,) = (path.parent for path in own.glob("*/libaffile.so"))
    command = [str(package.folder / "usr" / "sbin" / "syslog-ng"), "--foreground", "--no-caps"]
    command += [f"--cfgfile={configuration}", f"--persist-file={folder}/persist"]
    command += [f"--pidfile={folder}/pid", f"--control={folder}/control"]
    command += [f"--module-path={modules}"]
    return PeerCommand(command, _environment(package, own))


_COMMANDS: Final[dict[str, Callable[[debian.Package, pathlib.Path, str, int], PeerCommand]]] = {
    RSYSLOG: _rsyslog,
    SYSLOG_NG: _syslog_ng,
}


def _environment(package: debian.Package, *folders: pathlib.Path) -> dict[str, str]:
    """With the libraries that these packages have elsewhere than in usr/lib."""
    libraries = [*folders, *sorted((package.folder / "lib").glob("*-linux-*"))]
    known = package.environment["LD_LIBRARY_PATH"]
    return {**package.environment, "LD_LIBRARY_PATH": ":".join([*map(str, libraries), known])}


def _package(name: str) -> debian.Package:
    try:
        return debian.install(_PACKAGES[name])
    except NotInstalled as problem:
        raise NotAvailable(str(problem)) from problem
