"""The page of Zeppelin tells of every command and of the true limits."""

import re
from pathlib import Path

from raftwood.zeppelin.commands.dispatch import COMMANDS
from raftwood.zeppelin.commands.keys import TAG_DELETED_MAX, TAG_LISTED_MAX
from raftwood.zeppelin.commands.transactions import TRANSACTION_COMMANDS_MAX
from raftwood.zeppelin.meta import topology_state
from raftwood.zeppelin.model import REPLICAS_MAX, TableConfig
from raftwood.zeppelin.node.data_connection import ACK_S_MAX
from raftwood.zeppelin.passwords import CHECKS_PER_S
from raftwood.zeppelin.records import KEY_BYTES_MAX
from raftwood.zeppelin.resp import REQUEST_BYTES_MAX
from raftwood.zeppelin.settings import StoreSettings, ZeppelinNodeSettings
from raftwood.zeppelin.slots import PARTITIONS_MAX

PAGE = (Path(__file__).parents[3] / "docs/zeppelin.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_command_is_named_and_no_other() -> None:
    rows = [line for line in section("Commands").splitlines() if line.startswith("| ")]
    shared = " ".join(row.split("|")[2] for row in rows if not row.startswith("| `"))
    named = set(re.sub(r"\([^)]*\)", "", shared).lower().split())
    own = {row.split("`")[1].split()[0].lower() for row in rows if row.startswith("| `")}
    assert named | own == set(COMMANDS)
    assert own == {"cas", "tag", "once", "bulk", "checkpoint", "partitions", "binlog", "fence"}


def test_the_limits_are_those_that_hold() -> None:
    limits = section("Limits")
    for limit in (
        f"| a key | {KEY_BYTES_MAX >> 10} KiB |",
        f"value_bytes_max`, {StoreSettings().value_bytes_max >> 20} MiB |",
        f"| {REQUEST_BYTES_MAX >> 20} MiB; {TRANSACTION_COMMANDS_MAX:,} |",
        f"| {TAG_LISTED_MAX:,} and {TAG_DELETED_MAX:,} |",
        (
            f"| {topology_state.TABLES_MAX:,}, {topology_state.NODES_MAX:,}, "
            f"{topology_state.USERS_MAX:,} |"
        ),
        f"| {PARTITIONS_MAX:,}, {topology_state.PARTITIONS_MAX:,}; {REPLICAS_MAX} |",
        f"connections_max`, {ZeppelinNodeSettings().connections_max:,} |",
        f"| {CHECKS_PER_S} in a second |",
    ):
        assert limit in limits, limit
    assert f"`NOREPLICAS` after {ACK_S_MAX:g} s" in PAGE
    assert TableConfig().ack == "written"
