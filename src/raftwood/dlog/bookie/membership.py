"""Bookies' identities: an id is bound to one data folder for ever, and registered while it runs.

    dlog/instances/<id>     which instance of a data folder the id belongs to; stays
    dlog/bookies/<id>       the running bookie: its rack, whether it takes writes; under a lease
    dlog/limbo/<id>         set if it began anew and its entries were not copied back yet: the
                            number of the next ledger at that time

A bookie whose folder was wiped would deny every entry, and a recovery that believes it loses acked
entries. So a folder other than the one registered under the id is refused, until an operator lets
the bookie begin anew: then it knows that it has forgotten (docs/decisions/0032;
`test_a_wiped_folder_is_refused_under_its_old_id_until_it_may_begin_anew`).
The same rule keeps two processes with two folders from serving under one id, each with half of the
entries (`test_a_folder_belongs_to_one_id_and_an_id_to_one_folder`).
"""

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

import msgspec

from raftwood.base.errors import Conflict, Overloaded, StoreDamaged, StoreError
from raftwood.base.seams import MetaStore, SetKey
from raftwood.dlog.ledgers.metadata import BookieId, BookieInfo
from raftwood.dlog.ledgers.seams import BookieBeginning

INSTANCES: Final = "dlog/instances/"
BOOKIES: Final = "dlog/bookies/"
LIMBO: Final = "dlog/limbo/"
_PAGE: Final = 1_000
_ATTEMPTS: Final = 5
_BOOKIES_MAX: Final = 100_000


class RegisteredBookie(msgspec.Struct, frozen=True):
    """The record of a running bookie; fields of later versions are ignored."""

    instance: str
    rack: str = ""
    is_read_only: bool = False
    address: str = ""
    """The address of the bookie, if that is not its id."""


class WrongFolder(StoreError):
    """A bookie's data folder is not the one that its id is bound to."""

    code = "wrong_folder"


class BookieAdmission(Enum):
    """The decision on a bookie that starts."""

    KNOWN = 1
    BIND = 2
    """The id is new, or free again: it belongs to this folder from now on."""
    WIPED = 3
    """The id belongs to another folder."""
    UNKNOWN = 4
    """The folder has ledgers, and the metastore does not know the id: it may be that of
    another cluster, whose ledgers have the same numbers.
    """
    NOT_EMPTY = 5
    """The bookie was to begin anew, and the folder has ledgers: they could be half of the entries
    that it should have, and would be taken for all."""


def admission(
    *, registered: str | None, instance: str, holds_ledgers: bool, begins_anew: bool
) -> BookieAdmission:
    """Decides by the instance that is registered under the id, and the folder of the bookie."""
    if registered == instance:
        return BookieAdmission.KNOWN
    if holds_ledgers:
        if begins_anew:
            return BookieAdmission.NOT_EMPTY
        return BookieAdmission.UNKNOWN if registered is None else BookieAdmission.WIPED
    return BookieAdmission.BIND if registered is None or begins_anew else BookieAdmission.WIPED


async def admit(
    store: MetaStore,
    bookie: BookieId,
    *,
    instance: str,
    holds_ledgers: bool,
    begin_anew: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Binds a new bookie's id to its folder; `WrongFolder` if it is bound to another.

    With `begin_anew`, an empty folder is bound all the same, after that call.
    """
    key = f"{INSTANCES}{bookie}"
    for _ in range(_ATTEMPTS):
        found = await store.get(key)
        registered = None if found is None else found.value.decode(errors="replace")
        decision = admission(
            registered=registered,
            instance=instance,
            holds_ledgers=holds_ledgers,
            begins_anew=begin_anew is not None,
        )
        if decision is BookieAdmission.KNOWN:
            return
        if decision is not BookieAdmission.BIND:
            raise WrongFolder(_refusal(decision, bookie, instance, registered))
        if begin_anew is not None:
            # Before the id is bound: from then on the folder counts as one that lacks nothing. A
            # crash in between would leave a bookie that has forgotten and does not know it.
            await begin_anew()
        version = 0 if found is None else found.version
        if await store.compare_and_set(key, instance.encode(), version=version) is not None:
            return
    raise Conflict(f"somebody else is starting bookie {bookie} as well: stop that one")


def _refusal(decision: BookieAdmission, bookie: str, instance: str, registered: str | None) -> str:
    if decision is BookieAdmission.NOT_EMPTY:
        return (
            f"bookie {bookie} was to begin anew, but its folder holds ledgers: give "
            "bookie.data_folder a new folder"
        )
    if decision is BookieAdmission.UNKNOWN:
        return (
            f"the folder of bookie {bookie} holds ledgers, but this metastore has never heard of "
            "it: connect to the metastore that the bookie was registered with"
        )
    return (
        f"bookie {bookie} is registered with data folder {registered}, and this one is {instance}: "
        "it was wiped, or is another one's. Started so, the bookie would deny entries that it has "
        "acked. Bring that very folder back, never a copy made earlier; or start it with "
        f"--begin-anew and an empty folder, then run `raftwood bookie repair {bookie}`, which "
        "copies its entries from other bookies"
    )


async def note_limbo(store: MetaStore, bookie: BookieId, end: int) -> None:
    """Notes that a bookie begins anew: its entries of ledgers below `end` are to be copied back."""
    await store.transact((), (SetKey(f"{LIMBO}{bookie}", b"%d" % end),))


async def beginning_of(store: MetaStore, bookie: BookieId) -> BookieBeginning:
    """The data folder of a bookie, and the first ledger that it has whole."""
    instance = await store.get(f"{INSTANCES}{bookie}")
    note = await store.get(f"{LIMBO}{bookie}")
    try:
        return BookieBeginning(
            instance="" if instance is None else instance.value.decode(errors="replace"),
            limbo_end=None if note is None else int(note.value),
        )
    except ValueError as error:
        raise StoreDamaged(
            f"the note that bookie {bookie} began anew cannot be read: {error}"
        ) from None


async def limbo_version(store: MetaStore, bookie: BookieId) -> int:
    """The version of the note that a bookie began anew; 0: there is none."""
    found = await store.get(f"{LIMBO}{bookie}")
    return 0 if found is None else found.version


async def end_limbo(store: MetaStore, bookie: BookieId, *, version: int) -> None:
    """Removes the note once the entries were copied back.

    By the version from before the repair: a bookie that was wiped once more while it was repaired
    has lost the copies too, and its doubts must go on.
    """
    if version:
        await store.compare_and_set(f"{LIMBO}{bookie}", None, version=version)


async def bookies_in_limbo(store: MetaStore) -> list[BookieId]:
    """The bookies that began anew, and were not repaired yet."""
    return await _ids(store, LIMBO)


async def known_bookies(store: MetaStore) -> list[BookieId]:
    """All bookies that ever registered, in order of their ids."""
    return await _ids(store, INSTANCES)


async def _ids(store: MetaStore, prefix: str) -> list[BookieId]:
    found: list[BookieId] = []
    start: str | None = ""
    while start is not None and len(found) < _BOOKIES_MAX:
        page = await store.range(prefix=prefix, start=start, limit=_PAGE)
        found += [BookieId(entry.key.removeprefix(prefix)) for entry in page.entries]
        start = page.next_start
    return found


async def bookie_address(store: MetaStore, bookie: BookieId) -> str:
    """The address of a bookie now: its id, unless it registered another one."""
    found = await store.get(f"{BOOKIES}{bookie}")
    return (decode_registered(found.value, bookie=bookie).address if found else "") or bookie


async def running_bookies(store: MetaStore) -> list[BookieInfo]:
    """The bookies that are registered now, in order of their ids."""
    found: list[BookieInfo] = []
    start: str | None = ""
    while start is not None:
        page = await store.range(prefix=BOOKIES, start=start, limit=_PAGE)
        for entry in page.entries:
            id_ = BookieId(entry.key.removeprefix(BOOKIES))
            registered = decode_registered(entry.value, bookie=id_)
            found.append(
                BookieInfo(id=id_, rack=registered.rack, is_read_only=registered.is_read_only)
            )
        start = page.next_start
        if len(found) > _BOOKIES_MAX:
            raise Overloaded(f"more than {len(found)} bookies are registered")
    return found


def decode_registered(value: bytes, *, bookie: str) -> RegisteredBookie:
    try:
        return msgspec.json.decode(value, type=RegisteredBookie)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreDamaged(f"the registration of bookie {bookie} cannot be read: {error}") from None
