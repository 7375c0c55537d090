"""Bugs planted on purpose: each is caught by what it breaks, or the simulation proves nothing."""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from msgspec.structs import replace

from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.clogs.client import spool as spool_module
from raftwood.clogs.client.backlog import Backlog
from raftwood.clogs.client.shipper import BatchShipper
from raftwood.clogs.client.shipping_rules import QueuedBatch, ShipBatch, ShippingRules
from raftwood.clogs.client.spool import Spool
from raftwood.clogs.configuration import RingConfiguration
from raftwood.clogs.frames import (
    ClogsMessage,
    LineBatch,
    MessageType,
    decode_message,
    encode_message,
)
from raftwood.clogs.health import Action, Health, ServerCheck
from raftwood.clogs.receiver import Ordering, Receiver
from raftwood.net import Call, Payload
from tests.kits.clogs.simulation.notebook import Harm
from tests.kits.clogs.simulation.world import Plan, run_clogs
from tests.kits.models import Mutant, replaced

_STORMY = Plan(faults_s=15, move_s=0.2, weather_s=1.0, ring_s=1.0, calm=0.5)
_ISOLATED = Plan(faults_s=1.0, move_s=0, weather_s=0, ring_s=0, calm=9.0, is_isolated=True)
_SYNCING = Plan(faults_s=15, move_s=0, weather_s=0, ring_s=0, calm=0.3, sync=0.9, pause_s=0.01)
_TIGHT = Plan(gone_s=5.0, calm=0.5, line_bytes=6_000, spool_bytes_max=1 << 20)
_DROPPING = Plan(
    faults_s=1.0, gone_s=15.0, when_full="drop-oldest", has_spool=False, line_bytes=400
)


_store = Receiver._store
_take_pong = ServerCheck.take_pong
_checked = Health._checked
_configure = Health.configure
_send = BatchShipper._send
_failed = BatchShipper._failed
_load = Spool.load
_servers_changed = ShippingRules.servers_changed
_storing: set["asyncio.Task[str]"] = set()


async def _store_later(receiver: Receiver, call: Call, payload: Payload) -> list[Buffer]:
    message = decode_message(payload)
    if message.type is MessageType.LOCATE:
        return await _store(receiver, call, payload)
    kept = replace(message, body=bytes(message.body))
    task = asyncio.get_running_loop().create_task(receiver._sink.store(call.peer.node_id, kept))
    _storing.add(task)
    task.add_done_callback(_stored)
    answer = ClogsMessage(type=MessageType.ACK, sequence=message.sequence, place=message.place)
    return encode_message(answer)


def _stored(task: "asyncio.Task[str]") -> None:
    _storing.discard(task)
    if not task.cancelled():
        task.exception()


def _take_pong_without_reset(server: ServerCheck, pong_id: int, now: float) -> bool:
    before = server.invalid_checks
    is_valid = _take_pong(server, pong_id, now)
    server.invalid_checks = before
    return is_valid


def _check_but_the_isolated(health: Health, server: ServerCheck, now: float) -> list[Action]:
    if server.isolated_since is None:
        return _checked(health, server, now)
    server.next_check = now + health._gap_s
    return []


def _configure_anew(health: Health, configuration: RingConfiguration, now: float) -> list[Action]:
    health._servers = {}
    return _configure(health, configuration, now)


def _send_under_another_sequence(sending: BatchShipper, action: ShipBatch, now: float) -> None:
    if action.is_repeat:
        batch = replace(action.batch, sequence=action.batch.sequence + 500)
        action = replace(action, batch=batch)
    _send(sending, action, now)


def _send_and_truncate(sending: BatchShipper, action: ShipBatch, now: float) -> None:
    _send(sending, action, now)
    if action.entry.spool is not None:
        action.entry.spool.forget(action.entry)


async def _load_as_new(spool: Spool, entry: QueuedBatch) -> LineBatch:
    return replace(await _load(spool, entry), is_resumed=False)


def _changed_without_places(rules: ShippingRules, live: Iterable[str]) -> None:
    _servers_changed(rules, live)
    for lane in rules._lanes.values():
        lane.place = ""
        for entry in lane.queue:
            entry.place = ""


async def _sync_nothing(_: Spool) -> None:
    return


def _count_nothing(*_: Any) -> None:
    return


def _failed_and_passed_by(sending: BatchShipper, action: Any, error: RaftwoodError) -> None:
    """What fails is taken for stored by the next batch's turn, and is tried again behind it."""
    _failed(sending, action, error)
    lane = action.lane
    if isinstance(action, ShipBatch) and len(lane.queue) > 1 and lane.queue[0] is action.entry:
        lane.queue.rotate(-1)


async def _store_at_once(_: Ordering, __: str, ___: ClogsMessage, store: Callable[[], Any]) -> str:
    place: str = await store()
    return place


_in_storms = partial(run_clogs, plan=_STORMY)
_with_one_isolated = partial(run_clogs, plan=_ISOLATED)
MUTANTS = {
    "acks before storage": Mutant(
        _in_storms, replaced(Receiver, _store=_store_later), harm=Harm.LOST
    ),
    "never resets the counter": Mutant(
        _with_one_isolated,
        replaced(ServerCheck, take_pong=_take_pong_without_reset),
        harm=Harm.ISOLATED,
    ),
    "never pings the isolated": Mutant(
        _with_one_isolated, replaced(Health, _checked=_check_but_the_isolated), harm=Harm.ISOLATED
    ),
    "forgets state on reload": Mutant(
        _with_one_isolated, replaced(Health, configure=_configure_anew), harm=Harm.FORGOTTEN
    ),
    "sends again under another sequence": Mutant(
        _in_storms, replaced(BatchShipper, _send=_send_under_another_sequence), harm=Harm.TWICE
    ),
    "truncates the spool before the ack": Mutant(
        _in_storms, replaced(BatchShipper, _send=_send_and_truncate), first=1, harm=Harm.LOST
    ),
    "does not say that a batch is resumed": Mutant(
        _in_storms, replaced(Spool, load=_load_as_new), first=8, harm=Harm.TWICE
    ),
    "forgets the place on another way": Mutant(
        _in_storms,
        replaced(ShippingRules, servers_changed=_changed_without_places),
        harm=Harm.TWICE,
    ),
    "stores what follows before what is in front of it": Mutant(
        _in_storms, replaced(Ordering, store=_store_at_once), first=12, harm=Harm.ORDER
    ),
    "syncs without waiting": Mutant(
        partial(run_clogs, plan=_SYNCING), replaced(Spool, sync=_sync_nothing), 8, harm=Harm.LOST
    ),
    "drops without counting": Mutant(
        partial(run_clogs, plan=_DROPPING),
        replaced(Backlog, _count_dropped=_count_nothing),
        harm=Harm.MISCOUNTED,
    ),
    "finds again what was dropped": Mutant(
        partial(run_clogs, plan=_TIGHT),
        replaced(spool_module, _is_in=lambda *_: False),
        first=3,
        harm=Harm.DROPPED,
    ),
    "goes on before the ack": Mutant(
        _in_storms, replaced(BatchShipper, _failed=_failed_and_passed_by), first=8, harm=Harm.ORDER
    ),
}
