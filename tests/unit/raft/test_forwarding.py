"""A store speaks for itself alone, whatever the core would pass on."""

import structlog
from tests.kits.raft.host_cluster import GROUP, Cluster, run_cluster, write

from raftwood.raft.core import Message, MessageKind


def test_a_question_to_a_former_leader_is_not_passed_on_in_the_name_of_who_asked() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.start(1, 2, 3)
        async with cluster.client() as client:
            await write(client, 20)
            leader = await cluster.wait_for_leader()
            asked, asker = (store for store in (1, 2, 3) if store != leader)
            host = cluster.hosts[asked]
            replica = host._replica(GROUP)
            with structlog.testing.capture_logs() as lines:
                question = Message(MessageKind.READ_INDEX, asked, asker, context=b"a late one")
                replica.receive(question, [])
                host._turns.mark(replica)
                await write(client, 20, start=20)
            # The connection between the two would be closed for it.
            assert [line["event"] for line in lines if line["log_level"] == "warning"] == []

    run_cluster(scenario)
