"""What `raftwood store check` verifies of a bookie's folder: the record of each ledger, and whose
folder it is. Entries are records of the log, which has a checksum for each.
"""

from raftwood.base.environment import Environment
from raftwood.base.errors import StoreDamaged
from raftwood.disk.inspection import Findings, FolderContent
from raftwood.disk.segment_log.recovery import Damage
from raftwood.dlog.bookie.held_ledger import decode_note
from raftwood.dlog.ledgers.model import LEDGER_MAX


def _id(owner: bytes) -> str:
    """The bookie's id, before whatever else is kept with it."""
    return owner.partition(b"\0")[0].decode(errors="replace")


def _remedy(name: str) -> str:
    id_ = name.removeprefix("bookie ") if name.startswith("bookie ") else "ID"
    return (
        "start the bookie with --begin-anew and a new, empty folder, then run 'raftwood bookie "
        f"repair {id_}', which copies its entries from other bookies"
    )


async def check_bookie(_: Environment, content: FolderContent) -> Findings:
    """Each ledger needs its key; the folder needs the bookie's id."""
    owner = content.state(LEDGER_MAX)  # no ledger's group: its state is the bookie's id
    name = "a bookie" if owner is None else f"bookie {_id(owner)}"
    found = Findings(role=name, remedy=_remedy(name))
    ledgers = [group for group in sorted(content.groups) if group != LEDGER_MAX]
    if owner is None and ledgers:
        found.damages.append(
            Damage(content.log_path, None, "the bookie's id is missing from the log")
        )
    for ledger in ledgers:
        state = content.state(ledger)
        try:
            if state is None:
                raise StoreDamaged(f"ledger {ledger} has entries and no key")
            decode_note(state, ledger=ledger)
        except StoreDamaged as error:
            found.damages.append(Damage(content.log_path, None, error.message))
    found.checked = f"{len(ledgers)} ledgers"
    return found
