"""`raftwood raft recover`: give a group that lost its quorum for good other members."""

from typing import Annotated

from cyclopts import App, Parameter

from raftwood.app.commands.confirmation import is_confirmed
from raftwood.app.event_loop import run
from raftwood.app.output import write_line
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.disk.real_environment import real_environment
from raftwood.raft.host.recovering import GroupCopy, examine_group, recover_group

app = App(name="recover", help_format="plaintext")


@app.default
def recover(
    *,
    data_folder: Annotated[str, Parameter(help="The folder of a store that is stopped.")],
    group: Annotated[int, Parameter(help="The raft group.")],
    members: Annotated[
        str,
        Parameter(help="STORE=HOST:PORT[,…]: this store, and others that never were in the group."),
    ],
    yes: Annotated[bool, Parameter(help="Do it without asking.", negative=())] = False,
) -> int:
    """Let a group go on from this store's copy, after its other members were lost for good.

    Run it on one store alone: of those that are left, on the one with the highest last term, then
    the highest last index. Entries that only the lost stores had are gone.
    """
    named = _members(members)

    async def main(environment: Environment) -> int:
        _tell(await examine_group(environment, data_folder, group), named)
        if not yes and not is_confirmed():
            write_line("nothing was changed")
            return 1
        await recover_group(environment, data_folder, group, named)
        write_line(
            f"done: start the store, and it leads group {group} with its new members. Stores join "
            "with new numbers and empty folders."
        )
        return 0

    with real_environment() as environment:
        return run(main(environment))


def _members(text: str) -> dict[int, str]:
    found: dict[int, str] = {}
    for part in text.split(","):
        store, equals, address = part.partition("=")
        if not equals or not store.isdecimal() or not int(store) or int(store) in found:
            raise InvalidInput(f"--members {text!r}: give STORE=HOST:PORT[,…], each store once")
        found[int(store)] = address
    return found


def _tell(copy: GroupCopy, members: dict[int, str]) -> None:
    gone = [str(store) for store in copy.stores if store not in members]
    write_line(
        f"store {copy.store} has group {copy.group} up to entry {copy.last_index} of term "
        f"{copy.last_term}; entries up to {copy.commit} are known to be committed"
    )
    write_line(
        "From now on all of them count as committed. What only other stores had is lost, also what "
        "was acknowledged to clients. Before you go on, compare this copy with those of all stores "
        "that are left, and choose the one with the highest term, then the highest entry."
    )
    write_line(f"new members: {', '.join(f'{store} ({members[store]})' for store in members)}")
    write_line(f"given up: {', '.join(gone) or 'none'}. Never start these with their old folders.")
