"""`Plan`: what is to be changed, for the meta server and for people who look at it first."""

from typing import Final, Literal

import msgspec

from raftwood.zeppelin.meta.changes import Change
from raftwood.zeppelin.model import NodeId

CHANGES_PLANNED_MAX: Final = 10_000
"""In one plan: the stores stand still while it is registered."""

Role = Literal["master", "slave"]


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A replica is copied to another node, and then removed from the first."""

    table: str
    partition: int
    source: NodeId
    target: NodeId
    role: Role
    """What it is at the source now: a master is handed over, and writes wait for a moment."""


class MasterChange(msgspec.Struct, frozen=True, kw_only=True):
    """Another node is preferred as master; no data moves for that."""

    table: str
    partition: int
    source: NodeId | None
    target: NodeId


class NodeCount(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has before and after, in all tables that were planned; masters as preferred."""

    node: NodeId
    replicas_before: int
    replicas_after: int
    masters_before: int
    masters_after: int


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing of it is made until it is submitted; then all, or nothing."""

    epoch: int
    """Of the topology that it was planned on."""
    changes: tuple[Change, ...]
    moves: tuple[Move, ...] = ()
    masters: tuple[MasterChange, ...] = ()
    """Where they are to be, moved or not."""
    moves_min: int = 0
    """No plan that leads to as even a cluster has fewer moves."""
    changes_later: int = 0
    """More than are made at once: plan again once these are done."""
    nodes: tuple[NodeCount, ...] = ()
    uneven: tuple[str, ...] = ()
    """What stays so, and why."""
