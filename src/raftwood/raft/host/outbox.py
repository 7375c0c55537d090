"""What a turn sends: the messages of all groups, gathered into one frame per peer.

The core behaves as etcd's does, with an append per commit and an answer per append. Here they are
merged: appends of one group that follow one another become one, answers keep the highest index. An
append that only tells of a new commit index waits up to a tick for one with entries, which tells
the same, unless somebody there waits for it to read.
"""

import asyncio
from collections.abc import Callable

from raftwood.base.files import Buffer
from raftwood.raft.core import Message, MessageKind
from raftwood.raft.host.runs import RunBook
from raftwood.raft.host.wire import encode_frames

SendFrame = Callable[[int, list[Buffer]], None]
"""Give a frame, in pieces, to a peer's connection; it may be lost."""

_APPEND = MessageKind.APPEND
_APPEND_RESPONSE = MessageKind.APPEND_RESPONSE
_READ_INDEX_RESPONSE = MessageKind.READ_INDEX_RESPONSE

_Place = tuple[int, int]
"""Peer and group."""
_Item = tuple[int, Message, RunBook]


class Outbox:
    """Messages for all peers until the end of the turn."""

    __slots__ = (
        "_appends",
        "_commit_delay_s",
        "_delayed",
        "_items",
        "_loop",
        "_responses",
        "_send",
        "_timer",
    )

    def __init__(self, send: SendFrame, *, commit_delay_s: float) -> None:
        self._send = send
        self._commit_delay_s = commit_delay_s
        self._loop = asyncio.get_running_loop()
        self._items: dict[int, list[_Item]] = {}
        self._appends: dict[_Place, int] = {}
        self._responses: dict[_Place, int] = {}
        self._delayed: dict[_Place, _Item] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, group: int, message: Message, book: RunBook) -> None:
        target, kind = message.target, message.kind
        if kind is _APPEND:
            place = (target, group)
            if not message.entries and place not in self._appends:
                self._delay(place, (group, message, book))
                return
            if self._delayed:
                self._delayed.pop(place, None)
            if self._merge_append(place, message):
                return
            self._appends[place] = len(self._items.get(target, ()))
        elif kind is _READ_INDEX_RESPONSE:
            delayed = self._delayed.pop((target, group), None)
            if delayed is not None:
                self._items.setdefault(target, []).append(delayed)
        elif kind is _APPEND_RESPONSE:
            place = (target, group)
            if self._merge_response(place, message):
                return
            self._responses[place] = len(self._items.get(target, ()))
        items = self._items.get(target)
        if items is None:
            self._items[target] = [(group, message, book)]
        else:
            items.append((group, message, book))

    def _merge_append(self, place: _Place, message: Message) -> bool:
        position = self._appends.get(place)
        if position is None:
            return False
        before = self._items[place[0]][position][1]
        if before.term != message.term or before.index + len(before.entries) != message.index:
            return False
        # Not in place: the core still holds the list that it handed out.
        before.entries = before.entries + message.entries if before.entries else message.entries
        before.commit = message.commit
        return True

    def _merge_response(self, place: _Place, message: Message) -> bool:
        position = self._responses.get(place)
        if position is None:
            return False
        before = self._items[place[0]][position][1]
        if before.rejected or message.rejected or before.term != message.term:
            return False
        before.index = max(before.index, message.index)
        return True

    def _delay(self, place: _Place, item: _Item) -> None:
        self._delayed[place] = item
        if self._timer is None:
            self._timer = self._loop.call_later(self._commit_delay_s, self._send_delayed)

    def _send_delayed(self) -> None:
        self._timer = None
        delayed, self._delayed = self._delayed, {}
        for (target, _), item in delayed.items():
            self._items.setdefault(target, []).append(item)
        self.flush()

    def flush(self) -> None:
        """The turn ends: one frame to each peer that there is something for."""
        if not self._items:
            return
        items, self._items = self._items, {}
        if self._appends:
            self._appends = {}
        if self._responses:
            self._responses = {}
        for target, messages in items.items():
            for frame in encode_frames(messages):
                self._send(target, frame)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
