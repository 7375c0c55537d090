"""A store that cannot come back under its number: its message names commands that work."""

import shutil
import time
from pathlib import Path

from tests.kits.raft.stores import Stores


def test_a_store_without_its_identity_is_replaced_by_the_commands_that_it_names(
    tmp_path: Path,
) -> None:
    with Stores(tmp_path) as stores:
        stores.start(1, 2, 3)
        stores.leader()
        stores.meta("put", "a", "one")
        assert stores.processes[3].stop() == 0
        identity = tmp_path / "store-3" / "IDENTITY"
        identity.write_bytes(identity.read_bytes().replace(b"raftwood", b"woodraft"))
        stores.processes[3].launch(stores.processes[3].command)
        assert stores.processes[3].wait() != 0
        told = stores.log(3)
        assert "raftwood serve --join" in told
        assert "raftwood raft replace 3 NEW HOST:PORT" in told

        stores.start(4, joins=True)
        address = stores.addresses[4]
        stores.run("raft", "replace", "3", "3", address, status=2, expect="a new number")
        stores.run("raft", "replace", "3", "4", address)
        assert [row["store"] for row in stores.rows("raft", "members")] == [1, 2, 4]
        assert {row["member"] for row in stores.rows("raft", "members")} == {"voter"}
        stores.run("raft", "replace", "3", "4", address, status=2, expect="no member")
        assert "one" in stores.meta("get", "a")

        shutil.rmtree(tmp_path / "store-3")
        stores.start(3)
        deadline = time.monotonic() + 60
        while "another data folder" not in stores.log(3):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "raftwood raft replace 3 NEW HOST:PORT" in stores.log(3)
        for store in (1, 2, 3, 4):
            assert stores.processes[store].stop() == 0
