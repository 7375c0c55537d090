"""Who has which slot, as a node told it."""

from collections.abc import Sequence
from typing import Any

from raftwood.base.errors import ProtocolError
from raftwood.zeppelin.slots import SLOTS


class SlotMap:
    """Of one table, as of an epoch; a slot that moved meanwhile is put right by itself."""

    __slots__ = ("addresses", "epoch", "masters", "only", "replicas", "told")

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch
        self.masters: list[str | None] = [None] * SLOTS
        """`HOST:PORT` by slot."""
        self.told = self.masters
        """The same without what moved meanwhile: neighbours of one partition have one master."""
        self.replicas: list[Sequence[str]] = [()] * SLOTS
        self.addresses: list[str] = []
        """Of all nodes that have something."""
        self.only: str | None = None
        """The master of all slots, where there is one."""

    @classmethod
    def decoded(cls, answer: Any, *, epoch: int) -> "SlotMap":
        """From what CLUSTER SLOTS answers."""
        found = cls(epoch)
        known: dict[str, None] = {}
        try:
            for first, last, *nodes in answer:
                addresses = [_address(host, port) for host, port, *_ in nodes]
                count = last - first + 1
                if not 0 <= first <= last < SLOTS or not addresses:
                    raise ValueError(f"slots {first} to {last} of {len(addresses)} nodes")
                found.masters[first : last + 1] = addresses[:1] * count
                found.replicas[first : last + 1] = [tuple(addresses[1:])] * count
                known.update(dict.fromkeys(addresses))
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"a node told who has which slots, and it is no such: {error}"
            ) from error
        found.addresses = list(known)
        first_master = found.masters[0]
        if found.masters.count(first_master) == SLOTS:
            found.only = first_master
        return found

    def moved(self, slot: int, address: str) -> None:
        """A node says who has a slot."""
        if self.masters[slot] != address:
            if self.masters is self.told:
                self.masters = list(self.told)
            self.masters[slot] = address
        if address not in self.addresses:
            self.addresses.append(address)

    @property
    def distinct_masters(self) -> list[str]:
        return list(dict.fromkeys(each for each in self.masters if each is not None))


def _address(host: Any, port: Any) -> str:
    if not isinstance(host, bytes) or not host or not isinstance(port, int):
        raise ValueError(f"{host!r}:{port!r} is no address")
    name = host.decode()
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
