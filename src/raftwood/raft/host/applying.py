"""Committed entries of one group into its state machine, its sessions and its membership."""

from collections.abc import Callable, Sequence
from typing import Any

from raftwood.base.errors import InvariantViolated
from raftwood.raft.core import ConfState, Entry, EntryKind, RawNode
from raftwood.raft.host.sessions import SessionTable
from raftwood.raft.state_machine import StateMachine

_NORMAL = EntryKind.NORMAL
_CONTROL = EntryKind.CONTROL

OnChange = Callable[["Applier", Entry], None]
"""A membership change came into force."""


class Applier:
    """What the entries up to `applied` have led to."""

    __slots__ = (
        "addresses",
        "applied",
        "applied_term",
        "configuration",
        "configuration_index",
        "machine",
        "node",
        "on_change",
        "sessions",
    )

    def __init__(
        self, machine: StateMachine, configuration: ConfState, on_change: OnChange
    ) -> None:
        self.machine = machine
        self.configuration = configuration
        self.configuration_index = 0
        """Of the entry that made the configuration what it is."""
        self.on_change = on_change
        self.addresses: dict[int, str] = {}
        """Of members, as far as snapshots and changes have told them."""
        self.sessions = SessionTable()
        self.applied = 0
        self.applied_term = 0
        self.node: RawNode | None = None

    def apply(self, entries: list[Entry]) -> Sequence[Any]:
        """Apply entries; a result for each, in order."""
        if entries[0].index != self.applied + 1:
            raise InvariantViolated(f"entry {entries[0].index} is applied after {self.applied}")
        results: Sequence[Any]
        for entry in entries:
            if entry.kind is not _NORMAL or not entry.payload:
                results = self._apply_mixed(entries)
                break
        else:
            results = self.machine.update(entries)
        if len(results) != len(entries):
            raise InvariantViolated(
                f"a state machine gave {len(results)} results for {len(entries)} commands"
            )
        last = entries[-1]
        self.applied, self.applied_term = last.index, last.term
        return results

    def _apply_mixed(self, entries: list[Entry]) -> list[Any]:
        """Membership changes divide the entries; between them go the commands, in one update."""
        results: list[Any] = []
        commands: list[Entry] = []
        for entry in entries:
            if entry.kind is _NORMAL or entry.kind is _CONTROL:
                commands.append(entry)
                continue
            results += self._apply_commands(commands)
            commands = []
            results.append(self._apply_change(entry))
        results += self._apply_commands(commands)
        return results

    def _apply_commands(self, entries: list[Entry]) -> Sequence[Any]:
        if not entries:
            return ()
        commands, plan = self.sessions.prepare(entries)
        results = self.machine.update(commands) if commands else ()
        return self.sessions.finish(plan, results)

    def _apply_change(self, entry: Entry) -> ConfState:
        if self.node is None:
            raise InvariantViolated("a membership change without a node to tell")
        self.configuration = self.node.apply_change(entry)
        self.configuration_index = entry.index
        self.on_change(self, entry)
        return self.configuration
