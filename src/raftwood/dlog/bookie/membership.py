"""Who is a bookie: an id is bound to one data folder for ever, and registered while it runs.

    dlog/instances/<id>     which instance of a data folder the id belongs to; stays
    dlog/bookies/<id>       that it runs, its rack, whether it takes writes; under a lease

A bookie whose folder was wiped would say of every entry that it never had it, and a recovery that
believes this loses acked entries. So a folder that is not the one registered under the id is
refused, until somebody says that the id's ledgers need it no longer.
"""

from enum import Enum
from typing import Final

import msgspec

from raftwood.base.errors import Conflict, Overloaded, StoreDamaged, StoreError
from raftwood.base.seams import MetaStore
from raftwood.dlog.ledgers.model import BookieId, BookieInfo

INSTANCES: Final = "dlog/instances/"
BOOKIES: Final = "dlog/bookies/"
_PAGE: Final = 1_000
_ATTEMPTS: Final = 5


class Registered(msgspec.Struct, frozen=True):
    """What is kept of a running bookie; fields of later versions are left alone."""

    instance: str
    rack: str = ""
    is_read_only: bool = False
    address: str = ""
    """Where it is reached, if that is not its id."""


class WrongFolder(StoreError):
    """A bookie's data folder is not the one that its id is bound to."""

    code = "wrong_folder"


class Admission(Enum):
    """What becomes of a bookie that starts."""

    KNOWN = 1
    BIND = 2
    """The id is new, or free again: it belongs to this folder from now on."""
    WIPED = 3
    """The id belongs to another folder."""
    UNKNOWN = 4
    """The folder has ledgers, and nothing is known of the id."""
    NOT_EMPTY = 5
    """It was to begin anew, and the folder has ledgers."""


def admission(
    *, registered: str | None, instance: str, holds_ledgers: bool, begins_anew: bool
) -> Admission:
    """By the instance that is registered under the id, and the folder that the bookie has."""
    if registered == instance:
        return Admission.KNOWN
    if holds_ledgers:
        if begins_anew:
            return Admission.NOT_EMPTY
        return Admission.UNKNOWN if registered is None else Admission.WIPED
    return Admission.BIND if registered is None or begins_anew else Admission.WIPED


async def admit(
    store: MetaStore,
    bookie: BookieId,
    *,
    instance: str,
    holds_ledgers: bool,
    begins_anew: bool = False,
) -> None:
    """Bind a new bookie's id to its folder; `WrongFolder` where it is bound to another."""
    key = f"{INSTANCES}{bookie}"
    for _ in range(_ATTEMPTS):
        found = await store.get(key)
        registered = None if found is None else found.value.decode(errors="replace")
        decision = admission(
            registered=registered,
            instance=instance,
            holds_ledgers=holds_ledgers,
            begins_anew=begins_anew,
        )
        if decision is Admission.KNOWN:
            return
        if decision is not Admission.BIND:
            raise WrongFolder(_refusal(decision, bookie, instance, registered))
        version = 0 if found is None else found.version
        if await store.compare_and_set(key, instance.encode(), version=version) is not None:
            return
    raise Conflict(f"somebody else is starting bookie {bookie} as well: stop that one")


def _refusal(decision: Admission, bookie: str, instance: str, registered: str | None) -> str:
    if decision is Admission.NOT_EMPTY:
        return (
            f"bookie {bookie} was to begin anew, but its folder holds ledgers: give "
            "bookie.data_folder a new folder"
        )
    if decision is Admission.UNKNOWN:
        return (
            f"the folder of bookie {bookie} holds ledgers, but this metastore has never heard of "
            "it: connect to the metastore that the bookie was registered with"
        )
    return (
        f"bookie {bookie} is registered with data folder {registered}, and this one is {instance}: "
        "it was wiped, or is another one's. Started so, the bookie would deny entries that it has "
        "acked. Bring the old folder back; or, once its ledgers were copied elsewhere or are given "
        "up, start it with --begin-anew"
    )


async def bookie_address(store: MetaStore, bookie: BookieId) -> str:
    """Where a bookie is reached now: its id, unless it registered under another name."""
    found = await store.get(f"{BOOKIES}{bookie}")
    return (decode_registered(found.value, bookie=bookie).address if found else "") or bookie


async def running_bookies(store: MetaStore) -> list[BookieInfo]:
    """Those that are registered now, in order of their ids."""
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
        if len(found) > 100 * _PAGE:
            raise Overloaded(f"more than {len(found)} bookies are registered")
    return found


def decode_registered(value: bytes, *, bookie: str) -> Registered:
    try:
        return msgspec.json.decode(value, type=Registered)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StoreDamaged(f"the registration of bookie {bookie} cannot be read: {error}") from None
