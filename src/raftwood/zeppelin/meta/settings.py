"""When silence means that a node is gone, and how fast masters and replicas move."""

from typing import Annotated

from msgspec import Meta

from raftwood.base.settings import Section


class ZeppelinMetaSettings(Section, frozen=True):
    """Timing of Zeppelin's meta server; the same on all stores, so that a new leader plans alike.

    Only plans depend on them: replicas with different settings still agree.
    """

    scope = "cluster"

    heartbeat_ms: Annotated[int, Meta(ge=10, le=60_000, description="Nodes report so often.")] = 500
    lease_ms: Annotated[
        int, Meta(ge=20, description="A master serves for so long without a new heartbeat.")
    ] = 2_000
    down_ms: Annotated[
        int, Meta(ge=30, description="Silence after which a node's partitions go to others.")
    ] = 3_000
    plan_ms: Annotated[
        int, Meta(ge=5, le=10_000, description="What comes within this time is one change.")
    ] = 100
    handover_close_bytes: Annotated[
        int, Meta(ge=0, description="A slave so close behind may have its master frozen for it.")
    ] = 1 << 20
    handover_stuck_ms: Annotated[
        int, Meta(ge=10, description="Writes wait so long for a hand-over before it is given up.")
    ] = 1_000
    handover_every_ms: Annotated[
        int, Meta(ge=0, description="Between the beginnings of two hand-overs.")
    ] = 500
    handovers_max: Annotated[int, Meta(ge=0, le=1_000, description="Hand-overs at a time.")] = 4
    handover_pause_ms: Annotated[
        int,
        Meta(
            ge=0,
            description="A partition is left alone so long at the most after a hand-over in vain.",
        ),
    ] = 30_000
    migrations_max: Annotated[
        int, Meta(ge=0, le=1_000, description="Replicas that move to other nodes at a time.")
    ] = 8
    migrations_per_node_max: Annotated[
        int, Meta(ge=1, description="Of them those that one node sends as master, or gets.")
    ] = 2
    target_gone_ms: Annotated[
        int, Meta(ge=30, description="A replica that moves to a silent node begins anew then.")
    ] = 60_000
    catch_up_look_ms: Annotated[
        int, Meta(ge=100, description="How fast a replica that moves catches up is seen in this.")
    ] = 5_000
    catch_up_ms_max: Annotated[
        int, Meta(ge=0, description="Where the rest would take longer, writers are slowed down.")
    ] = 600_000
    slowdown_ms_max: Annotated[
        int, Meta(ge=10, description="Writers are slowed down so long, then left alone as long.")
    ] = 60_000

    def __post_init__(self) -> None:
        if 5 * self.lease_ms > 4 * self.down_ms:
            # Clocks that count at slightly different speeds must not matter.
            raise ValueError("lease_ms is above 4/5 of down_ms; make it shorter")
        if 2 * self.heartbeat_ms > self.lease_ms:
            raise ValueError("heartbeat_ms is above half of lease_ms; make it shorter")
        if 2 * self.heartbeat_ms > self.down_ms - self.lease_ms:
            # So that slaves hear from the leader after the end of their master's lease, and report
            # after that, before the judgement.
            raise ValueError("heartbeat_ms is above half of down_ms - lease_ms; make it shorter")
