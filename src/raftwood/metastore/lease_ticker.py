"""`LeaseTicker`: tells the leader's store when to propose that time goes on, so that leases end."""

from raftwood.metastore.state_machine import STEP_MS_MAX, MetaStateMachine, encode_advance

TICK_MS = 250
"""Between two proposals; below the longest step, so that time does not lag behind."""


class LeaseTicker:
    """One per replica; asked by the store that leads, some times in each `TICK_MS`.

    It counts from when it saw the group's time change, which is after the change: so the group's
    time never runs ahead, even if two stores take themselves for the leader.
    """

    def __init__(self, machine: MetaStateMachine) -> None:
        self._machine = machine
        self._group_ms = -1
        self._seen_ms = 0
        self._proposed_ms = 0

    def due(self, now_ms: int) -> bytes | None:
        """The command to propose now, if any; `now_ms` is of this store's monotonic clock."""
        group_ms = self._machine.now_ms
        if group_ms != self._group_ms:
            self._group_ms = group_ms
            self._seen_ms = self._proposed_ms = now_ms
        if not self._machine.leases or now_ms - self._proposed_ms < TICK_MS:
            return None
        self._proposed_ms = now_ms
        step_ms = min(now_ms - self._seen_ms, STEP_MS_MAX)
        return encode_advance(before_ms=group_ms, now_ms=group_ms + step_ms)
