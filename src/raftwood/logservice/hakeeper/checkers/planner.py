"""`plan`: all checkers, one after the other."""

from raftwood.logservice.hakeeper.checkers.balance import plan_balance
from raftwood.logservice.hakeeper.checkers.bootstrap import plan_bootstrap
from raftwood.logservice.hakeeper.checkers.membership import plan_members
from raftwood.logservice.hakeeper.checkers.planning import Planning
from raftwood.logservice.hakeeper.checkers.room import plan_room
from raftwood.logservice.hakeeper.checkers.services import plan_services
from raftwood.logservice.hakeeper.checkers.zombies import plan_zombies
from raftwood.logservice.hakeeper.orders import Order
from raftwood.logservice.hakeeper.settings import HaKeeperSettings
from raftwood.logservice.hakeeper.state import Phase, State

BATCH_MAX = 1000
"""Orders of one plan; what is left out is planned at the next tick."""


def plan(state: State, settings: HaKeeperSettings) -> list[Order]:
    """The orders that are missing, to be proposed as a `Schedule` in the leader's term."""
    planning = Planning(state, settings)
    if state.phase is Phase.CREATED:
        return []
    plan_bootstrap(planning)
    if state.phase in (Phase.RUNNING, Phase.BOOTSTRAP_FAILED):
        plan_members(planning)
        plan_room(planning)
        plan_zombies(planning)
        plan_services(planning)
        plan_balance(planning)
    return planning.orders[:BATCH_MAX]
