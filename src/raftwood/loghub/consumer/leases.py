"""Shard leases: the rows, the requests, and `LeaseStore`, the seam to what keeps them.

The protocol follows the design text of the LogHub client library, section 5: its two tables (5.2),
its leases (5.3) and its checkpoints (5.4). Where that text leaves a hole, the rule beside the hole
says which failure it prevents. The tests of these rules are in
`tests/unit/loghub/consumer/test_lease_holes.py`, one for each hole; planted bugs are in
`tests/kits/loghub/leases/mutants.py`.

A lease has two owners. The lease owner renews it; the consumer owner reads the shard. They are the
same while all is well. A thief becomes lease owner first, and consumer owner only when its victim
has handed over or must have stopped (section 7 of the text): a thief that read at once would begin
at a checkpoint that the victim is about to move, and process again what lies between.

`lease_id` guards the lease owner: every change of it, and every renewal, adds one. `epoch` guards
checkpoints: it grows only as a consumer owner is set. If a steal already raised it, the store would
refuse the victim's last flush, which section 5.4.2 wants to land, and the thief would process that
work again (planted bug "bumps the epoch at the steal").

One store is one consumer group on one logstore. Each call is one transaction, and takes many leases
at once. A call that fails with `Unavailable` or `DeadlineExceeded` may have been done all the same:
every answer shows the rows as they are afterwards, and the caller who asks again finds its own
process in them.

Two counters make changes visible without reading all:

- `update_seq` of a lease comes from one counter of the group, added to within the transaction that
  changes the row, so that numbers become visible in their order. All that changes a lease gives it
  a new one, but for renewals, checkpoints after the first that are not the end, and bytes per
  second.
- `heartbeat` of a worker's row grows with each heartbeat and with each `renew`, in the transaction
  that renews. So a worker that sees it stand still knows that no lease of that process was renewed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

NOBODY = ""
SHARD_END = "SHARD_END"
"""The checkpoint of a shard that was read to its end; it is final."""
SIGNATURE_CHARACTERS = 64
NAME_CHARACTERS_MAX = 64
"""Limit of the name of an instance, a process and a shard."""
GROUP_CHARACTERS_MAX = 128
FORGET_TIMEOUTS = 10
"""A worker's row that stood still for so many of its timeouts is removed.

Ten, and not one: others judge a process by the time for which its row stood still, and a row that
disappears and comes back begins that time anew. Without a limit the table of a group whose workers
are containers, each with a new name, grows for ever.
"""
SENT_AWAY = "sent-away-"
"""An operator sends a worker away by putting a row with this prefix in its process's place."""


class LeaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers of a group should agree on; all follows from the timeout, T.

    The text (section 5.3.1) renews below T/2 and looks for expired leases every 2T, so that a shard
    may stay unread for 4T. Here a worker renews every T/3, so that one lost renewal costs nothing,
    and scans every T/2, so that a failover takes 2T at most
    (`test_failover_takes_twice_the_timeout_at_most`).
    """

    timeout_ms: int = 10_000
    drift: float = 0.05
    """No clock of a worker is slower than another's by a larger share than this."""
    margin_ms: int = 50
    """A worker stops so much earlier, for what passes between its look at the clock and its act."""
    poll_ms: int = 50
    """The interval between looks at the own rows, by which a hand-over is noticed."""

    @property
    def renew_ms(self) -> int:
        return self.timeout_ms // 3

    @property
    def scan_ms(self) -> int:
        return self.timeout_ms // 2

    @property
    def settle_ms(self) -> int:
        """Returns how long the set of live workers must stay the same before a plan is carried out.

        Ten workers that are started one after the other would make ten plans, and a shard would
        move several times before it has its final worker.
        """
        return self.timeout_ms // 20

    @property
    def early_ms(self) -> int:
        """Returns how soon after the last scan another one runs if something changed."""
        return self.timeout_ms // 10

    @property
    def hold_ms(self) -> int:
        """Returns how long a worker may work after it *sent* a renewal that came through.

        The text does not say when a victim stops by itself. A worker that is cut off from the
        store, and not from its shard, would go on beside its successor. It counts from the sending,
        for the store may have written the renewal at any moment after that, and others count T from
        when they see it; and it stops earlier by the share that its clock may be slower than theirs
        (planted bugs "does not stop by itself" and "trusts its clock too much").
        """
        return int(self.timeout_ms * (1 - self.drift)) - self.margin_ms


class LeaseOwner(msgspec.Struct, frozen=True):
    """The worker that asks: a name that outlives restarts, and a UUID that does not.

    The text fences by the name (5.4.2). A process that was paused and then replaced under the same
    name would pass that check and overwrite its successor's checkpoints: so every check is on the
    UUID (`test_a_zombie_of_the_same_name_cannot_save`; planted bug "fences by name").
    """

    instance: str
    process: str
    timeout_ms: int = 0
    """Its T, which its row shows to others."""


class WorkerRow(msgspec.Struct, frozen=True):
    """A worker as all others see it; the times are for people, and decide nothing."""

    instance: str
    process: str
    heartbeat: int
    """Counts up. The text counts workers by their leases and by wall clocks (5.3.2): then no worker
    sees one that has no lease yet, and a clock that is wrong by a minute makes it look dead
    (`test_a_worker_without_a_lease_is_counted`,
    `test_clocks_that_differ_by_years_change_nothing`)."""
    create_ms: int = 0
    update_ms: int = 0
    timeout_ms: int = 0
    """Its T. A worker with a shorter T waits for this one before it takes the row's owner for dead.

    While an operator changes the timeout of a group, worker by worker, a hasty one would take
    shards from others that are at work in good faith (planted bug "does not care how long others
    may be silent").
    """

    @property
    def is_sent_away(self) -> bool:
        """Whether an operator put the row here: the worker must leave, and removes it."""
        return self.process.startswith(SENT_AWAY)


class ShardLease(msgspec.Struct, frozen=True):
    """A shard's row."""

    shard: str
    lease_id: int = 0
    lease_owner: str = NOBODY
    lease_process: str = NOBODY
    consumer_owner: str = NOBODY
    consumer_process: str = NOBODY
    epoch: int = 0
    checkpoint: str | None = None
    seq: int = 0
    """Number of the checkpoint; one with a smaller number never lands.

    A save that was delayed in the network would otherwise put the checkpoint back, and a restart
    would process again what was dealt with
    (`test_an_older_checkpoint_does_not_replace_a_newer_one`; planted bug "accepts an older
    checkpoint").
    """
    parents: tuple[str, ...] = ()
    bytes_per_s: float = 0.0
    """The rate that its consumer measured when it last saved a checkpoint."""
    update_seq: int = 0
    """The group's number of its last change; a renewal or a later checkpoint does not count."""
    timeout_ms: int = 0
    """The longest T of its two owners.

    It stands here too, since a worker that has just joined may never see the owner's own row
    (`test_one_with_a_shorter_timeout_waits_also_where_it_never_saw_the_others_row`).
    """

    @property
    def is_ended(self) -> bool:
        return self.checkpoint == SHARD_END

    @property
    def is_handing_over(self) -> bool:
        """Whether another process than the lease owner may still read the shard."""
        return self.consumer_process not in (NOBODY, self.lease_process)

    @property
    def is_vacant(self) -> bool:
        """Whether no process leases it or reads it."""
        return self.lease_process == NOBODY and self.consumer_process == NOBODY


class NewLease(msgspec.Struct, frozen=True):
    """A shard that has no lease yet."""

    shard: str
    parents: tuple[str, ...] = ()


class Renewal(msgspec.Struct, frozen=True):
    """A lease as its owner last knew it."""

    shard: str
    lease_id: int


class Take(msgspec.Struct, frozen=True):
    """A lease to be taken, if it is still as it was seen."""

    shard: str
    lease_id: int
    sets_consumer: bool
    """The lease expired or is vacant, so that no process can be at work on the shard.

    False for a steal: the taker has to wait for its victim (5.3.2 of the text).
    """


class Save(msgspec.Struct, frozen=True):
    """A checkpoint, fenced by the epoch of the consumer that made it."""

    shard: str
    epoch: int
    checkpoint: str | None
    """None only at a hand-over, if nothing was read."""
    seq: int
    bytes_per_s: float = 0.0


class Renewed(msgspec.Struct, frozen=True):
    """The result of a renewal."""

    leases: Sequence[ShardLease]
    """Every requested lease that exists, as it is now."""
    worker: WorkerRow
    """The row under the worker's name. If it is another process's, that process took the name, and
    nothing was renewed.
    """


class Scan(msgspec.Struct, frozen=True):
    """The result of a scan; all of it is of one moment or later."""

    leases: Sequence[ShardLease]
    workers: Sequence[WorkerRow]
    update_seq: int
    """The next scan continues from here."""
    deleted_seq: int = 0
    """When leases were last deleted. A worker that has made no full scan since then makes one:
    a scan by change cannot show a row that is gone."""


def creatable(parents: Mapping[str, Sequence[str]], new: Sequence[NewLease]) -> list[NewLease]:
    """Returns the shards of `new` that need a lease, if those in `parents` have one.

    A shard whose child has a lease, or was read to its end itself, is left out: it was over, and
    its lease was deleted. A new lease with no checkpoint would have all of it read again (planted
    bug "makes leases again that were deleted").
    """
    parents_of_new = {each.shard: each.parents for each in new}
    over: set[str] = set()
    stack = [parent for each in parents.values() for parent in each]
    while stack:
        shard = stack.pop()
        if shard not in over:
            over.add(shard)
            stack += parents_of_new.get(shard, ())
    return [each for each in new if each.shard not in parents and each.shard not in over]


def signature(project: str, logstore: str) -> str:
    """Returns the `logstream_sig` of a logstore."""
    text = f"{project}/{logstore}"
    return hashlib.sha256(text.encode()).hexdigest()[:SIGNATURE_CHARACTERS]


class LeaseStore(Protocol):
    """Stores rows of workers and leases; answers leave out what does not exist."""

    async def open(self) -> None:
        """Creates or migrates the schema, and connects; the first call."""
        ...

    async def close(self) -> None: ...

    async def register(self, worker: LeaseOwner) -> WorkerRow:
        """Gives the name to this process, even if another has it; called once, as a process starts.

        The newer process wins: the older one may be a zombie that cannot be stopped. At its next
        renewal it learns that it must leave (`test_a_process_whose_name_was_taken_leaves`).
        """
        ...

    async def heartbeat(self, worker: LeaseOwner) -> WorkerRow:
        """Increments the worker's heartbeat; creates a row that was removed again.

        If another process has the name, nothing is changed, and that process's row is returned.
        """
        ...

    async def forget_workers(self, rows: Sequence[WorkerRow]) -> None:
        """Removes each row whose process and heartbeat are still these."""
        ...

    async def scan(self, after: int, processes: Sequence[str] = ()) -> Scan:
        """Returns all workers, the leases that changed after `after` (all for 0), and the leases of
        `processes`.

        The leases of `processes` are read for their present ids, because renewals are not changes.
        """
        ...

    async def own(self, process: str, after: int) -> Scan:
        """Returns changes after `after` of leases whose lease or consumer process this is; no
        workers.

        Runs many times a second in each worker: it must be cheap if nothing changed.
        """
        ...

    async def create(self, leases: Sequence[NewLease], *, deleted_seq: int | None = None) -> None:
        """Creates leases with id 0 and no owner, for those that are `creatable`.

        The caller passes all shards that it knows, including parents, and the `deleted_seq` of a
        scan before it listed them. If leases were deleted since then, nothing is done: a late list
        from before a split would bring back a shard that was read to its end (planted bug "takes an
        old list of shards for a new one").
        """
        ...

    async def renew(self, worker: LeaseOwner, renewals: Sequence[Renewal]) -> Renewed:
        """Increments the heartbeat, and each id that is as given and whose lease this process has.

        One call for all leases: with a call for each, a slow store lets the last of a hundred
        leases expire while the first are renewed (`test_one_call_renews_every_lease`). If another
        process has the worker's name, nothing is done.
        """
        ...

    async def take(self, worker: LeaseOwner, takes: Sequence[Take]) -> list[ShardLease]:
        """Makes the worker the lease owner if the id is as given: id + 1.

        The id is the test-and-set token of the text (5.3.4): a taker that gets through knows that
        no worker renewed or took the lease since it looked. `sets_consumer` sets the consumer owner
        too, and epoch + 1. An ended lease is not taken.
        """
        ...

    async def become_consumer(
        self, worker: LeaseOwner, renewals: Sequence[Renewal]
    ) -> list[ShardLease]:
        """Sets the consumer owner if the id is as given and this process leases it.

        Both id and epoch + 1. The checkpoint is read after that, in the same transaction, so it
        includes all that the previous consumer saved, and no later save of it lands. A thief that
        reads the checkpoint first misses a flush that lands in between, and processes its records
        again (planted bug "reads the checkpoint before it is consumer").
        """
        ...

    async def save(self, process: str, saves: Sequence[Save]) -> list[str]:
        """Saves checkpoints of shards that this process consumes in this epoch; returns those
        refused.

        It also refuses a smaller seq than is stored, and any other checkpoint after `SHARD_END`.
        """
        ...

    async def hand_over(self, process: str, saves: Sequence[Save]) -> list[ShardLease]:
        """Saves like `save`, and clears the consumer owner if process and epoch match.

        The cleared owner lets a thief begin: by the text alone (5.3.2) each stolen shard idles for
        T, since its thief cannot know when the victim has stopped
        (`test_a_stolen_shard_idles_for_some_polls_only`). A save without checkpoint, or with a seq
        that is too small, only clears.
        """
        ...

    async def release(self, process: str, shards: Sequence[str]) -> list[ShardLease]:
        """Clears the lease owner if this process leases it: id + 1.

        The text has no such call: after a clean exit the shards of a worker would idle for T.
        """
        ...

    async def delete(self, shards: Sequence[str]) -> None:
        """Removes leases that ended; the `deleted_seq` of scans becomes a new `update_seq`."""
        ...

    async def reset(self, checkpoints: Sequence[tuple[str, str | None]]) -> list[str]:
        """Sets checkpoints by hand, of leases without a consumer; returns those refused.

        Also works on ended leases, and backwards; seq + 1.
        """
        ...
