"""Which messages are work for a group, and which only come of time passing."""

from raftwood.raft.core import Message, MessageKind

_HEARTBEAT_RESPONSE = MessageKind.HEARTBEAT_RESPONSE
_HEARTBEAT = MessageKind.HEARTBEAT


def is_chatter(message: Message) -> bool:
    """Whether a message comes of mere time, and is no work."""
    kind = message.kind
    return (kind is _HEARTBEAT or kind is _HEARTBEAT_RESPONSE) and not message.context


def wakes(message: Message) -> bool:
    """Whether a message ends a sleep; a late answer to a heartbeat does not."""
    return message.kind is not _HEARTBEAT_RESPONSE or bool(message.context)
