"""Commands proposed to HAKeeper's raft group, queries, and the answers, as bytes.

Unknown fields of commands are refused: skipping them could fail on one replica and not on another.
"""

from typing import TypeVar

import msgspec

from raftwood.base.errors import InternalError, InvalidInput, RaftwoodError, TooLarge, error_class
from raftwood.base.names import checked_name
from raftwood.logservice.hakeeper import messages
from raftwood.logservice.hakeeper.messages import Alarm, Order, Orders, ServiceKind
from raftwood.logservice.hakeeper.state import ClusterPhase, FailedOrder

STORES_MAX = 1000
SHARDS_MAX = 10_000
SERVICES_MAX = 10_000
ORDERS_MAX = 10_000
REPLICAS_MAX = 64
"""Members of one shard."""
GUESTS_MAX = 64
TEXT_MAX = 1024
ALARMS_MAX = 100
IDS_MAX = 1_000_000
TICKS_MAX = 10_000_000
_NUMBER_MAX = (1 << 63) - 1


class KeeperTick(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """Advances HAKeeper's clock by one tick."""

    bootstrap_ticks: int
    service_removed_ticks: int


class HearStore(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """A store's heartbeat; the result is its `Ordered`."""

    heartbeat: messages.StoreHeartbeat


class HearService(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """A service's heartbeat; the result is its `Ordered`."""

    heartbeat: messages.ServiceHeartbeat


class Schedule(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """A plan of the leader of a term; ignored if a newer term was seen.

    Also ignored if it was planned at another tick: stores that lived then may be gone.
    """

    term: int
    tick: int
    orders: tuple[Order, ...]


class SetInitialCluster(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5
):
    """The first shards and stores of the cluster; only the first proposal counts."""

    log_shards: int
    tn_shards: int
    log_replicas: int
    hakeeper_replicas: int
    members: dict[int, str]
    """The first stores and their addresses; all of them begin HAKeeper's own shard."""
    guests: dict[int, str] = {}
    """Shards that are no logs, by number, and their names; with as many replicas as HAKeeper."""


class AllocateIds(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6):
    """Reserves unique numbers."""

    count: int


class AddShard(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=7):
    """A new log shard; the same name and nonce again answer the same shard."""

    name: str
    replicas: int
    learners: int
    nonce: str


class RemoveShard(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8):
    """Remove a log shard and all its data."""

    shard: int


class DrainStore(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=9):
    """Has other stores take a living store's replicas over, or ends that."""

    store: int
    is_draining: bool


class ForgetStore(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=10):
    """Removes a store from the state; it may not be a member of any shard."""

    store: int


class RemoveService(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=11
):
    """Gives a service's work to others at once."""

    service: str


class AddTnShard(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=12):
    """A new TN shard, which writes a log shard; the same nonce again answers the same."""

    log_shard: int
    nonce: str


class RemoveTnShard(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=13
):
    """Remove a TN shard; its log shard stays."""

    tn_shard: int


class AddGuests(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=14):
    """Adds guests to a cluster that began without them; existing ones stay."""

    guests: dict[int, str]


KeeperCommand = (
    KeeperTick
    | HearStore
    | HearService
    | Schedule
    | SetInitialCluster
    | AllocateIds
    | AddShard
    | RemoveShard
    | DrainStore
    | ForgetStore
    | RemoveService
    | AddTnShard
    | RemoveTnShard
    | AddGuests
)


class KeeperDone(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The command was carried out; `id` is the new or first number if it asked for one."""

    id: int = 0


class Ordered(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The answer to a heartbeat."""

    orders: Orders


class Scheduled(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """How many orders of a batch were taken; the others no longer fit the state."""

    taken: int
    is_outdated: bool = False
    """The batch was of an older term or another tick, and was ignored."""


class InitialCluster(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Whether this proposal counted, or an earlier one."""

    is_first: bool


class KeeperFailed(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """The command changed nothing; code and text of an error in `base.errors`."""

    code: str
    message: str


KeeperSuccess = KeeperDone | Ordered | Scheduled | InitialCluster
KeeperResult = KeeperSuccess | KeeperFailed

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[KeeperCommand] = msgspec.msgpack.Decoder(KeeperCommand)
_results: msgspec.msgpack.Decoder[KeeperResult] = msgspec.msgpack.Decoder(KeeperResult)


def encode_command(command: KeeperCommand) -> bytes:
    return _encoder.encode(command)


def decode_command(data: bytes) -> KeeperCommand:
    try:
        return _commands.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"not a command of HAKeeper: {error}") from None


def encode_result(result: KeeperResult) -> bytes:
    return _encoder.encode(result)


def decode_result(data: bytes) -> KeeperSuccess:
    """Returns the result, or raises the error in it."""
    result = _results.decode(data)
    if isinstance(result, KeeperFailed):
        raise error_class(result.code)(result.message)
    return result


def decode_orders(data: bytes) -> Orders:
    """Returns the orders in an answer to a heartbeat."""
    result = decode_result(data)
    if not isinstance(result, Ordered):
        raise InternalError(f"HAKeeper answered a heartbeat with {result!r:.80}")
    return result.orders


def decode_id(data: bytes) -> int:
    """Returns the number in an answer."""
    result = decode_result(data)
    if not isinstance(result, KeeperDone):
        raise InternalError(f"HAKeeper answered {result!r:.80} where a number was asked for")
    return result.id


def failed(error: RaftwoodError) -> KeeperFailed:
    return KeeperFailed(error.code, error.message)


def check_command(command: KeeperCommand) -> None:
    """Checks that a command keeps to the limits, before it is carried out."""
    match command:
        case HearStore(heartbeat):
            _check_store(heartbeat)
        case HearService(heartbeat):
            _check_service(heartbeat)
        case SetInitialCluster():
            _check_initial(command)
        case AddGuests(guests):
            _check_guests(guests)
        case AddShard(name, replicas, learners, nonce):
            checked_name("shard", name)
            _check_text(nonce)
            _check_range("replicas", replicas, least=1, most=REPLICAS_MAX)
            _check_range("learners", learners, least=0, most=REPLICAS_MAX)
        case AddTnShard(_, nonce):
            _check_text(nonce)
        case AllocateIds(count):
            _check_range("count", count, least=1, most=IDS_MAX)
        case Schedule(term, _, orders):
            _check_range("term", term, least=0, most=_NUMBER_MAX)
            if len(orders) > ORDERS_MAX:
                raise TooLarge(f"a batch has {ORDERS_MAX} orders at the most: split it")
        case _:
            pass


def _check_range(what: str, number: int, *, least: int, most: int) -> None:
    if not least <= number <= most:
        raise InvalidInput(f"{what} is {number}: give {least} to {most}")


def _check_text(*texts: str) -> None:
    for text in texts:
        if len(text) > TEXT_MAX:
            raise TooLarge(f"{text[:40]!r}… is longer than {TEXT_MAX} characters: shorten it")


def _check_store(heartbeat: messages.StoreHeartbeat) -> None:
    _check_range("store", heartbeat.store, least=1, most=(1 << 32) - 1)
    _check_text(heartbeat.address, heartbeat.failure_domain, heartbeat.incarnation)
    _check_text(heartbeat.version, *heartbeat.alarms, *(each.error for each in heartbeat.finished))
    if len(heartbeat.alarms) > ALARMS_MAX or len(heartbeat.finished) > ORDERS_MAX:
        raise TooLarge(f"the heartbeat of store {heartbeat.store} says too much: shorten it")
    if len(heartbeat.replicas) > SHARDS_MAX:
        raise TooLarge(f"store {heartbeat.store} has more than {SHARDS_MAX} replicas: remove some")
    for report in heartbeat.replicas:
        _check_text(report.problem)
        members = len(report.voters) + len(report.learners)
        if members > 2 * REPLICAS_MAX or len(report.lagging) > 2 * REPLICAS_MAX:
            raise TooLarge(f"shard {report.shard} has more than {REPLICAS_MAX} members")
        if not (0 <= report.epoch <= _NUMBER_MAX and 0 <= report.term <= _NUMBER_MAX):
            raise InvalidInput(f"shard {report.shard} is reported at an impossible epoch or term")


def _check_service(heartbeat: messages.ServiceHeartbeat) -> None:
    checked_name("service", heartbeat.service)
    _check_text(heartbeat.address, *heartbeat.labels, *heartbeat.labels.values())
    _check_text(*(each.error for each in heartbeat.finished))
    if len(heartbeat.labels) > ALARMS_MAX or len(heartbeat.finished) > ORDERS_MAX:
        raise TooLarge(f"the heartbeat of service {heartbeat.service} says too much: shorten it")
    if len(heartbeat.replicas) > SHARDS_MAX:
        raise TooLarge(f"service {heartbeat.service} has more than {SHARDS_MAX} TN shards")


def _check_initial(command: SetInitialCluster) -> None:
    _check_range("log_shards", command.log_shards, least=0, most=SHARDS_MAX - 1)
    _check_range("tn_shards", command.tn_shards, least=0, most=command.log_shards)
    most = min(len(command.members), REPLICAS_MAX)
    if not most or not all(0 < store < 1 << 32 for store in command.members):
        raise InvalidInput("name the first stores: each by a number above 0, with its address")
    _check_text(*command.members.values())
    _check_range("log_replicas", command.log_replicas, least=1, most=most)
    _check_range("hakeeper_replicas", command.hakeeper_replicas, least=1, most=most)
    _check_guests(command.guests)


def _check_guests(guests: dict[int, str]) -> None:
    _check_range("guests", len(guests), least=0, most=GUESTS_MAX)
    for number, name in guests.items():
        _check_range("the number of a guest", number, least=messages.GUESTS_FIRST, most=_NUMBER_MAX)
        checked_name("guest", name)
    if len({*guests.values()}) < len(guests):
        raise InvalidInput("two guests have the same name: give each its own")


class DescribeCluster(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Asks for the whole cluster; the answer is a `ClusterView`."""


class FindShard(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Asks for a shard, by its name if given, else by its number; answers a `KeeperShardView`."""

    shard: int = 0
    name: str = ""


class ListAddresses(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Asks for the addresses of stores; the answer is `Addresses`."""


class ListLogs(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Asks for logs whose names begin with a prefix; the answer is `LogNames`."""

    prefix: str = ""


KeeperQuery = DescribeCluster | FindShard | ListAddresses | ListLogs


class StoreView(msgspec.Struct, frozen=True, array_like=True):
    """A store, as HAKeeper sees it."""

    store: int
    address: str
    failure_domain: str
    version: str
    is_live: bool
    is_draining: bool
    silent_ticks: int
    replicas: int
    leaders: int
    disk_bytes: int
    disk_free_bytes: int


class KeeperShardView(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A shard, as HAKeeper sees it."""

    shard: int
    name: str
    wanted_voters: int
    wanted_learners: int
    voters: tuple[int, ...]
    learners: tuple[int, ...]
    addresses: dict[int, str]
    """The addresses of all members."""
    leader: int
    term: int
    epoch: int
    lagging: dict[int, int]
    """By how many entries each member is behind the leader; only members that answered it."""
    retained_bytes: int = 0
    """The size of its log, at the store that keeps most."""


class ServiceView(msgspec.Struct, frozen=True, array_like=True):
    """A service, as HAKeeper sees it."""

    service: str
    kind: ServiceKind
    address: str
    labels: dict[str, str]
    is_live: bool
    silent_ticks: int


class TnShardView(msgspec.Struct, frozen=True, array_like=True):
    """A TN shard and its owner."""

    tn_shard: int
    log_shard: int
    owner: str
    holder: int


class ClusterView(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The whole cluster."""

    phase: ClusterPhase
    reason: str
    tick: int
    term: int
    stores: tuple[StoreView, ...]
    shards: tuple[KeeperShardView, ...]
    services: tuple[ServiceView, ...]
    tn_shards: tuple[TnShardView, ...]
    alarms: tuple[Alarm, ...]
    orders: tuple[Order, ...]
    """Orders under way."""
    failures: tuple[FailedOrder, ...]
    """Orders that were not carried out, the newest last."""


class Addresses(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The address of each store, as reported or as named at the beginning."""

    stores: dict[int, str]


class LogNames(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Names of logs, in order."""

    names: list[str]


KeeperAnswer = ClusterView | KeeperShardView | Addresses | LogNames
AnswerType = TypeVar("AnswerType", ClusterView, KeeperShardView, Addresses, LogNames)

_answers: msgspec.msgpack.Decoder[KeeperAnswer | KeeperFailed] = msgspec.msgpack.Decoder(
    KeeperAnswer | KeeperFailed
)


def encode_query(query: KeeperQuery) -> bytes:
    return _encoder.encode(query)


def decode_answer(data: bytes, expected: type[AnswerType]) -> AnswerType:
    """Returns the answer, or raises the error in it."""
    said = _answers.decode(data)
    if isinstance(said, KeeperFailed):
        raise error_class(said.code)(said.message)
    if not isinstance(said, expected):
        raise InternalError(f"HAKeeper answered {said!r:.80} to another question")
    return said
