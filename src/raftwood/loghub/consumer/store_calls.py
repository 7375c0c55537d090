"""What a lease agent asks of the store, as calls: each ask leads to one event."""

from collections.abc import Mapping
from typing import Final

from raftwood.loghub.consumer.lease_store import LeaseStore
from raftwood.loghub.consumer.leases import Owner
from raftwood.loghub.consumer.rules import steps
from raftwood.loghub.consumer.rules.steps import Call

CALL_OF: Final[Mapping[type[steps.Ask], Call]] = {
    steps.AskRegister: Call.REGISTER,
    steps.AskScan: Call.SCAN,
    steps.AskPoll: Call.POLL,
    steps.AskRenew: Call.RENEW,
    steps.AskTake: Call.TAKE,
    steps.AskBecome: Call.BECOME,
    steps.AskHandOver: Call.HAND_OVER,
    steps.AskRelease: Call.RELEASE,
    steps.AskCreate: Call.CREATE,
    steps.AskDelete: Call.DELETE,
    steps.AskForget: Call.FORGET,
}


async def answered(store: LeaseStore, owner: Owner, ask: steps.Ask) -> steps.Event:
    """Make the call; the event that its answer is."""
    call = CALL_OF[type(ask)]
    match ask:
        case steps.AskRegister():
            return steps.Registered(await store.register(owner))
        case steps.AskScan(after, processes):
            return steps.Scanned(await store.scan(after, processes))
        case steps.AskPoll(after):
            return steps.Polled(await store.own(owner.process, after))
        case steps.AskRenew(renewals):
            return steps.LeasesRenewed(await store.renew(owner, renewals))
        case steps.AskTake(takes):
            return steps.LeasesAnswered(call, await store.take(owner, takes))
        case steps.AskBecome(renewals):
            return steps.LeasesAnswered(call, await store.become_consumer(owner, renewals))
        case steps.AskHandOver(saves):
            return steps.LeasesAnswered(call, await store.hand_over(owner.process, saves))
        case steps.AskRelease(shards):
            return steps.LeasesAnswered(call, await store.release(owner.process, shards))
        case steps.AskCreate(leases, deleted_seq):
            await store.create(leases, deleted_seq=deleted_seq)
        case steps.AskDelete(shards):
            await store.delete(shards)
        case steps.AskForget(rows):
            await store.forget_workers(rows)
    return steps.Done(call)
