"""What HAKeeper wants done: orders, which a heartbeat's answer brings to a store or a service.

An order is given with each answer until it is acknowledged or its time is over, so it is carried
out at least once: doing it twice does no harm. A store carries out only what its newest answer
brings: what it has not begun when it sends the next heartbeat is dropped. A change of members names
the epoch that it was decided at, and is refused at any other.
"""

from enum import StrEnum

import msgspec

EPOCH_OF_REMOVED = (1 << 63) - 1
"""Of a shard that is no more: above all that a replica may know."""


class OrderKind(StrEnum):
    """What is to be done."""

    BOOTSTRAP_SHARD = "bootstrap-shard"
    """To a store: begin a new shard; `members` are its first voters and their addresses."""
    START_REPLICA = "start-replica"
    """To a store: start an empty replica, which the shard's leader fills once it is a member."""
    STOP_REPLICA = "stop-replica"
    """To a store: stop the replica; its data stays."""
    KILL_ZOMBIE = "kill-zombie"
    """To a store: remove a replica, and its data, that its shard has removed or that is deleted;
    refused by a replica that is a member by its own word, at `epoch` or above."""
    ADD_LEARNER = "add-learner"
    """To the leader: let `store` at `address` take part without a vote."""
    ADD_VOTER = "add-voter"
    """To the leader: give the learner `store` a vote; where `removed` is set, it leaves in the same
    step, so that there is no moment with a vote too few or too many."""
    REMOVE_MEMBER = "remove-member"
    """To the leader: `store` is no member any more."""
    TRANSFER_LEADER = "transfer-leader"
    """To the leader: let `store` lead."""
    ADD_TN_SHARD = "add-tn-shard"
    """To a TN: own `tn_shard`; take the lease of the log `shard` as `holder`."""
    REMOVE_TN_SHARD = "remove-tn-shard"
    """To a TN: give `tn_shard` up."""
    SHUTDOWN_SERVICE = "shutdown-service"
    """To a service that was taken for dead and whose work others have: stop, and begin anew."""


class Order(msgspec.Struct, frozen=True, array_like=True):
    """One order; `to_store` or `to_service` says whose it is."""

    id: int
    """Given when it is scheduled, increasing; 0 before."""
    kind: OrderKind
    to_store: int = 0
    to_service: str = ""
    shard: int = 0
    epoch: int = 0
    """At which a change of members was decided."""
    members: dict[int, str] = {}
    store: int = 0
    address: str = ""
    removed: int = 0
    tn_shard: int = 0
    holder: int = 0
    expires_tick: int = 0


class Orders(msgspec.Struct, frozen=True, array_like=True):
    """A heartbeat's answer. Orders of an older term than one seen before are ignored."""

    term: int
    """HAKeeper's raft term in which the newest of them was scheduled."""
    tick: int
    orders: tuple[Order, ...] = ()
