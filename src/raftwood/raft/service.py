"""The store's side of clients' proposals, reads and questions: passes them to the host."""

from collections.abc import Container
from typing import Any

from raftwood.base.errors import InvalidInput, NotLeader, RaftwoodError, Unavailable
from raftwood.net import Call, Payload, Service
from raftwood.raft.admin import RaftAdminService
from raftwood.raft.client_protocol import (
    HEARTBEAT,
    PROPOSE,
    READ,
    REGISTER,
    RENEW,
    decode_proposal,
    decode_read,
    decode_register_request,
    encode_results,
)
from raftwood.raft.core import EntryKind
from raftwood.raft.node_host import NodeHost
from raftwood.raft.sessions import encode_command, encode_register
from raftwood.raft.state_machine import PatientMachine

COMMANDS_MAX = 16_384
"""The most commands in one proposal."""
SESSIONS_MAX = 1_024
"""The most sessions of one group."""
WAITS_MAX = 10_000
"""Questions that wait for a change; further ones are answered at once."""


class RaftService:
    """Serves one host's groups, all or the named ones; state machines there answer in bytes."""

    def __init__(self, host: NodeHost, *, groups: Container[int] | None = None) -> None:
        self._host = host
        self._groups = groups
        self._waits = 0
        self._under_way: dict[tuple[int, int, int], None] = {}
        """Proposals of sessions: group, session and first sequence."""

    def register(self, service: Service) -> None:
        service.fast(PROPOSE, self._propose)
        service.task(READ, self._read)
        service.fast(RENEW, self._propose)
        service.task(HEARTBEAT, self._read)
        service.task(REGISTER, self._register)
        RaftAdminService(self._host).register(service)

    def _propose(self, call: Call, payload: Payload) -> None:
        proposal = decode_proposal(payload)
        commands = proposal.commands
        self._check_served(proposal.group)
        if not 0 < len(commands) <= COMMANDS_MAX:
            raise InvalidInput(f"a proposal has 1 to {COMMANDS_MAX} commands, not {len(commands)}")
        kind, again = EntryKind.NORMAL, False
        place = (proposal.group, proposal.session, proposal.first_sequence)
        is_under_way = place in self._under_way
        if proposal.session:
            again = is_under_way or self._host.may_hold(*place)
            kind = EntryKind.CONTROL
            commands = [
                encode_command(
                    command,
                    session=proposal.session,
                    sequence=sequence,
                    acknowledged=proposal.acknowledged,
                )
                for sequence, command in enumerate(commands, proposal.first_sequence)
            ]

        def done(results: list[Any] | None, error: RaftwoodError | None) -> None:
            self._under_way.pop(place, None)
            if results is not None:
                call.reply(encode_results(results))
            else:
                call.fail(error or Unavailable("the proposal was dropped"))

        if proposal.session:
            self._under_way[place] = None
        try:
            self._host.propose_batch(proposal.group, commands, done, kind=kind, again=again)
        except RaftwoodError:
            if not is_under_way:
                self._under_way.pop(place, None)
            raise

    def _check_served(self, group: int) -> None:
        if self._groups is not None and group not in self._groups:
            raise InvalidInput(f"group {group} is not served to clients of groups: it has its own")

    async def _register(self, call: Call, payload: Payload) -> bytes:
        group, nonce = decode_register_request(payload)
        self._check_served(group)
        command = encode_register(nonce, sessions_max=SESSIONS_MAX)
        answer = await self._host.propose(
            group, command, timeout_ms=_remaining_ms(call), kind=EntryKind.CONTROL
        )
        return bytes(answer)

    async def _read(self, call: Call, payload: Payload) -> bytes:
        group, is_stale, wait_ms, query = decode_read(payload)
        self._check_served(group)
        if wait_ms:
            self._check_leads(group)
        if is_stale:
            answer = self._host.stale_read(group, query)
        else:
            answer = await self._host.read(group, query, timeout_ms=_remaining_ms(call))
            wait_ms = min(wait_ms, _remaining_ms(call) * 3 // 4)
            if wait_ms and await self._waited(group, query, wait_ms):
                answer = await self._host.read(group, query, timeout_ms=_remaining_ms(call))
        if isinstance(answer, RaftwoodError):
            raise answer
        if not isinstance(answer, bytes):
            raise InvalidInput(f"group {group} is not made to be read over the network")
        return answer

    def _check_leads(self, group: int) -> None:
        """Refuses unless this store leads: others learn of a change up to a tick later."""
        if not self._host.is_leading(group):
            leader = self._host.leader(group)
            raise NotLeader(f"store {self._host.id} does not lead group {group}", leader)

    async def _waited(self, group: int, query: bytes, wait_ms: int) -> bool:
        """Waits for a change after an answer; returns whether the answer may differ now."""
        machine = self._host.machine(group)
        if self._waits >= WAITS_MAX or not isinstance(machine, PatientMachine):
            return False
        self._waits += 1
        try:
            return await machine.wait(query, wait_ms)
        finally:
            self._waits -= 1


_READ_MS_MAX = 60_000


def _remaining_ms(call: Call) -> int:
    remaining = call.remaining_ms()
    return min(_READ_MS_MAX, max(1, remaining)) if remaining is not None else _READ_MS_MAX
