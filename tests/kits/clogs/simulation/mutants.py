"""Bugs planted on purpose: each is caught by what it breaks, or the simulation proves nothing."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.clogs.batches import LineBatch
from raftwood.clogs.client import spool as spool_module
from raftwood.clogs.client.backlog import Backlog
from raftwood.clogs.client.entries import Entry
from raftwood.clogs.client.sending import Sending
from raftwood.clogs.client.shipping_rules import Send, ShippingRules
from raftwood.clogs.client.spool import Spool
from raftwood.clogs.frames import Message, MessageType, decode_message, encode_message
from raftwood.clogs.ha.actions import Action
from raftwood.clogs.ha.rules import Health
from raftwood.clogs.ha.server_check import ServerCheck
from raftwood.clogs.model import RingConfiguration
from raftwood.clogs.receiver.receiver import Receiver
from raftwood.net import Call, Payload
from tests.kits.clogs.simulation.notebook import Harm
from tests.kits.clogs.simulation.world import Plan

Plant = Callable[[pytest.MonkeyPatch], None]
_STORMY = Plan(faults_s=15, move_s=0.2, weather_s=1.0, ring_s=1.0, calm=0.5)
_ISOLATED = Plan(faults_s=1.0, move_s=0, weather_s=0, ring_s=0, calm=9.0, is_isolated=True)
_SYNCING = Plan(faults_s=15, move_s=0, weather_s=0, ring_s=0, calm=0.3, sync=0.9, pause_s=0.01)
_TIGHT = Plan(gone_s=5.0, calm=0.5, line_bytes=6_000, spool_bytes_max=1 << 20)
_DROPPING = Plan(
    faults_s=1.0, gone_s=15.0, when_full="drop-oldest", has_spool=False, line_bytes=400
)


def acks_before_storage(patch: pytest.MonkeyPatch) -> None:
    storing: set[asyncio.Task[str]] = set()

    async def store(receiver: Receiver, call: Call, payload: Payload) -> list[Buffer]:
        message = decode_message(payload)
        if message.type is MessageType.LOCATE:
            return await original(receiver, call, payload)
        kept = replace(message, body=bytes(message.body))
        task = asyncio.get_running_loop().create_task(receiver._sink.store(call.peer.node_id, kept))
        storing.add(task)
        task.add_done_callback(_asked)
        answer = Message(type=MessageType.ACK, sequence=message.sequence, place=message.place)
        return encode_message(answer)

    original = Receiver._store
    patch.setattr(Receiver, "_store", store)


def _asked(task: "asyncio.Task[str]") -> None:
    if not task.cancelled():
        task.exception()


def never_resets_the_counter(patch: pytest.MonkeyPatch) -> None:
    def take_pong(server: ServerCheck, pong_id: int, now: float) -> bool:
        before = server.invalid_checks
        is_valid = original(server, pong_id, now)
        server.invalid_checks = before
        return is_valid

    original = ServerCheck.take_pong
    patch.setattr(ServerCheck, "take_pong", take_pong)


def never_pings_the_isolated(patch: pytest.MonkeyPatch) -> None:
    def checked(health: Health, server: ServerCheck, now: float) -> list[Action]:
        if server.isolated_since is None:
            return original(health, server, now)
        server.next_check = now + health._gap_s
        return []

    original = Health._checked
    patch.setattr(Health, "_checked", checked)


def forgets_state_on_reload(patch: pytest.MonkeyPatch) -> None:
    def configure(health: Health, configuration: RingConfiguration, now: float) -> list[Action]:
        health._servers = {}
        return original(health, configuration, now)

    original = Health.configure
    patch.setattr(Health, "configure", configure)


def sends_again_under_another_sequence(patch: pytest.MonkeyPatch) -> None:
    def send(sending: Sending, action: Send, now: float) -> None:
        if action.is_repeat:
            batch = replace(action.batch, sequence=action.batch.sequence + 500)
            action = msgspec.structs.replace(action, batch=batch)
        original(sending, action, now)

    original = Sending._send
    patch.setattr(Sending, "_send", send)


def truncates_the_spool_before_the_ack(patch: pytest.MonkeyPatch) -> None:
    def send(sending: Sending, action: Send, now: float) -> None:
        original(sending, action, now)
        if action.entry.spool is not None:
            action.entry.spool.forget(action.entry)

    original = Sending._send
    patch.setattr(Sending, "_send", send)


def does_not_say_that_a_batch_is_resumed(patch: pytest.MonkeyPatch) -> None:
    async def load(spool: Spool, entry: Entry) -> LineBatch:
        return replace(await original(spool, entry), is_resumed=False)

    original = Spool.load
    patch.setattr(Spool, "load", load)


def forgets_the_place_on_another_way(patch: pytest.MonkeyPatch) -> None:
    def changed(rules: ShippingRules, live: Iterable[str]) -> None:
        original(rules, live)
        for lane in rules._lanes.values():
            lane.place = ""

    original = ShippingRules.servers_changed
    patch.setattr(ShippingRules, "servers_changed", changed)


def syncs_without_waiting(patch: pytest.MonkeyPatch) -> None:
    async def sync(_: Spool) -> None:
        return

    patch.setattr(Spool, "sync", sync)


def drops_without_counting(patch: pytest.MonkeyPatch) -> None:
    def count(*_: Any) -> None:
        return

    patch.setattr(Backlog, "_count_dropped", count)


def finds_again_what_was_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(spool_module, "_is_in", lambda *_: False)


def goes_on_before_the_ack(patch: pytest.MonkeyPatch) -> None:
    """What fails is taken for stored by the next batch's turn, and is tried again behind it."""

    def failed(sending: Sending, action: Any, error: RaftwoodError) -> None:
        original(sending, action, error)
        lane = action.lane
        if isinstance(action, Send) and len(lane.queue) > 1 and lane.queue[0] is action.entry:
            lane.queue.rotate(-1)

    original = Sending._failed
    patch.setattr(Sending, "_failed", failed)


class Planted(msgspec.Struct, frozen=True):
    """A bug, what it breaks, and a run in which that was seen."""

    plant: Plant
    harm: Harm
    plan: Plan
    first: int = 0


MUTANTS = [
    Planted(acks_before_storage, Harm.LOST, _STORMY),
    Planted(never_resets_the_counter, Harm.ISOLATED, _ISOLATED),
    Planted(never_pings_the_isolated, Harm.ISOLATED, _ISOLATED),
    Planted(forgets_state_on_reload, Harm.FORGOTTEN, _ISOLATED),
    Planted(sends_again_under_another_sequence, Harm.TWICE, _STORMY),
    Planted(truncates_the_spool_before_the_ack, Harm.LOST, _STORMY, first=1),
    Planted(does_not_say_that_a_batch_is_resumed, Harm.TWICE, _STORMY, first=1),
    Planted(forgets_the_place_on_another_way, Harm.TWICE, _STORMY),
    Planted(syncs_without_waiting, Harm.LOST, _SYNCING, first=8),
    Planted(drops_without_counting, Harm.MISCOUNTED, _DROPPING),
    Planted(finds_again_what_was_dropped, Harm.DROPPED, _TIGHT, first=3),
    Planted(goes_on_before_the_ack, Harm.ORDER, _STORMY, first=8),
]
