"""Nodes as people name them: by their ids, by the beginnings of these, or by where they serve."""

from collections.abc import Iterable

from raftwood.base.errors import InvalidInput, NotFound
from raftwood.zeppelin.model import NodeId, Topology


def node_named(topology: Topology, text: str) -> NodeId:
    """The one node that is meant; else an error that says which could be."""
    if text in topology.nodes:
        return NodeId(text)
    serving = [node for node, each in topology.nodes.items() if each.addresses.data == text]
    found = serving or [node for node in topology.nodes if text and node.startswith(text)]
    if not found:
        raise NotFound(f"there is no node {text!r}: see `raftwood kv node list`")
    if len(found) > 1:
        shown = ", ".join(sorted(found)[:10])
        raise InvalidInput(
            f"{text!r} could be any of {len(found)} nodes ({shown}): give more of it"
        )
    return found[0]


def nodes_named(topology: Topology, texts: Iterable[str]) -> list[NodeId]:
    return list(dict.fromkeys(node_named(topology, text) for text in texts))
