"""A client never loads a server: neither raft, nor the store's log, nor HAKeeper's rules."""

import subprocess
import sys

import raftwood.logservice.client as package

SCRIPT = """
import sys
import raftwood.logservice.client as client
before = [name for name in sys.modules if name.startswith("raftwood.logservice.client.")]
assert before == [], before
for name in client.__all__:
    getattr(client, name)
servers = ("raftwood.raft", "raftwood.disk.segment_log", "raftwood.logservice.server",
           "raftwood.logservice.hakeeper.checkers", "raftwood.logservice.hakeeper.rules",
           "raftwood.logservice.log_state_machine")
loaded = [name for name in sys.modules if name.startswith(servers)]
assert loaded == [], loaded
"""


def test_importing_the_client_loads_no_server() -> None:
    subprocess.run((sys.executable, "-W", "error", "-c", SCRIPT), check=True, timeout=60)


def test_a_name_that_is_not_listed_is_an_error() -> None:
    assert not hasattr(package, "LogStore")
