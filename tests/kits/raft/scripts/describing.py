"""The texts that scripts show: messages, entries, Ready, progress, memberships."""

import json
from collections.abc import Iterable, Sequence

from raftwood.raft.core import (
    APPEND_THREAD,
    APPLY_THREAD,
    IS_CHANGE,
    NOBODY,
    ChangeStep,
    ChangeV1,
    ConfState,
    Entry,
    EntryKind,
    FollowerStatus,
    HardState,
    Message,
    MessageKind,
    Ready,
    Snapshot,
    SoftState,
    StepKind,
    change_of,
)

MESSAGE_NAMES = {
    MessageKind.HUP: "MsgHup",
    MessageKind.PROPOSE: "MsgProp",
    MessageKind.APPEND: "MsgApp",
    MessageKind.APPEND_RESPONSE: "MsgAppResp",
    MessageKind.VOTE: "MsgVote",
    MessageKind.VOTE_RESPONSE: "MsgVoteResp",
    MessageKind.SNAPSHOT: "MsgSnap",
    MessageKind.HEARTBEAT: "MsgHeartbeat",
    MessageKind.HEARTBEAT_RESPONSE: "MsgHeartbeatResp",
    MessageKind.UNREACHABLE: "MsgUnreachable",
    MessageKind.SNAPSHOT_STATUS: "MsgSnapStatus",
    MessageKind.TRANSFER_LEADER: "MsgTransferLeader",
    MessageKind.TIMEOUT_NOW: "MsgTimeoutNow",
    MessageKind.READ_INDEX: "MsgReadIndex",
    MessageKind.READ_INDEX_RESPONSE: "MsgReadIndexResp",
    MessageKind.PREVOTE: "MsgPreVote",
    MessageKind.PREVOTE_RESPONSE: "MsgPreVoteResp",
    MessageKind.STORAGE_APPEND: "MsgStorageAppend",
    MessageKind.STORAGE_APPEND_RESPONSE: "MsgStorageAppendResp",
    MessageKind.STORAGE_APPLY: "MsgStorageApply",
    MessageKind.STORAGE_APPLY_RESPONSE: "MsgStorageApplyResp",
    MessageKind.FORGET_LEADER: "MsgForgetLeader",
}
_ENTRY_NAMES = {
    EntryKind.NORMAL: "EntryNormal",
    EntryKind.CHANGE_V1: "EntryConfChange",
    EntryKind.CHANGE_V2: "EntryConfChangeV2",
    EntryKind.CONTROL: "EntryControl",
}
STEP_LETTERS = {
    "v": StepKind.ADD_VOTER,
    "l": StepKind.ADD_LEARNER,
    "r": StepKind.REMOVE,
    "u": StepKind.UPDATE,
}
_LETTER_OF_STEP = {kind: letter for letter, kind in STEP_LETTERS.items()}


def _numbers(ids: Iterable[int]) -> str:
    return f"[{' '.join(str(node) for node in ids)}]"


def set_text(ids: Iterable[int]) -> str:
    return f"({' '.join(str(node) for node in sorted(ids))})"


def membership_text(state: ConfState) -> str:
    text = f"voters={set_text(state.voters)}"
    if state.voters_outgoing:
        text += f"&&{set_text(state.voters_outgoing)}"
    if state.learners:
        text += f" learners={set_text(state.learners)}"
    if state.learners_next:
        text += f" learners_next={set_text(state.learners_next)}"
    return text + (" autoleave" if state.auto_leave else "")


def conf_state_text(state: ConfState) -> str:
    return (
        f"Voters:{_numbers(state.voters)} VotersOutgoing:{_numbers(state.voters_outgoing)} "
        f"Learners:{_numbers(state.learners)} LearnersNext:{_numbers(state.learners_next)} "
        f"AutoLeave:{str(state.auto_leave).lower()}"
    )


def snapshot_text(snapshot: Snapshot) -> str:
    return (
        f"Index:{snapshot.index} Term:{snapshot.term} "
        f"ConfState:{conf_state_text(snapshot.configuration)}"
    )


def steps_text(steps: Sequence[ChangeStep]) -> str:
    return " ".join(f"{_LETTER_OF_STEP[step.kind]}{step.node}" for step in steps)


def entry_text(entry: Entry) -> str:
    if not IS_CHANGE[entry.kind]:
        content = json.dumps(entry.payload.decode(errors="replace"), ensure_ascii=False)
    else:
        change = change_of(entry)
        content = steps_text((change.step,) if isinstance(change, ChangeV1) else change.steps)
    text = f"{entry.term}/{entry.index} {_ENTRY_NAMES[entry.kind]}"
    return f"{text} {content}" if content else text


def entries_text(entries: Iterable[Entry]) -> str:
    return "".join(f"{entry_text(entry)}\n" for entry in entries)


def _target_text(node: int) -> str:
    names = {NOBODY: "None", APPEND_THREAD: "AppendThread", APPLY_THREAD: "ApplyThread"}
    return names.get(node, f"{node:x}")


def message_text(message: Message, indent: str = "") -> str:
    text = (
        f"{indent}{_target_text(message.source)}->{_target_text(message.target)} "
        f"{MESSAGE_NAMES[message.kind]} Term:{message.term} Log:{message.log_term}/{message.index}"
    )
    if message.rejected:
        text += f" Rejected (Hint: {message.reject_hint})"
    if message.commit:
        text += f" Commit:{message.commit}"
    if message.vote:
        text += f" Vote:{message.vote}"
    if len(message.entries) == 1:
        text += f" Entries:[{entry_text(message.entries[0])}]"
    elif message.entries:
        lines = "".join(f"\n{indent}  {entry_text(entry)}" for entry in message.entries)
        text += f" Entries:[{lines}\n{indent}]"
    if message.snapshot is not None:
        text += f"\n{indent}  Snapshot: {snapshot_text(message.snapshot)}"
    if message.responses:
        lines = "".join(f"\n{message_text(inner, indent + '  ')}" for inner in message.responses)
        text += f" Responses:[{lines}\n{indent}]"
    return text


def hard_state_text(state: HardState) -> str:
    vote = f" Vote:{state.vote}" if state.vote else ""
    return f"Term:{state.term}{vote} Commit:{state.commit}"


def _soft_state_text(state: SoftState) -> str:
    return f"Lead:{state.lead} State:{state.role.value}"


def ready_text(ready: Ready) -> str:
    lines = ""
    if ready.soft_state is not None:
        lines += f"{_soft_state_text(ready.soft_state)}\n"
    if ready.hard_state is not None:
        lines += f"HardState {hard_state_text(ready.hard_state)}\n"
    if ready.read_states:
        states = " ".join(
            f"{{{state.index} {_numbers(state.context)}}}" for state in ready.read_states
        )
        lines += f"ReadStates [{states}]\n"
    if ready.entries:
        lines += f"Entries:\n{entries_text(ready.entries)}"
    if ready.snapshot is not None:
        lines += f"Snapshot {snapshot_text(ready.snapshot)}\n"
    if ready.committed_entries:
        lines += f"CommittedEntries:\n{entries_text(ready.committed_entries)}"
    if ready.messages:
        lines += "Messages:\n" + "".join(f"{message_text(item)}\n" for item in ready.messages)
    if not lines:
        return "<empty Ready>"
    return f"Ready MustSync={str(ready.must_sync).lower()}:\n{lines}"


def progress_text(progress: dict[int, FollowerStatus]) -> str:
    return "".join(f"{node}: {_follower_text(progress[node])}\n" for node in sorted(progress))


def _follower_text(status: FollowerStatus) -> str:
    text = f"{status.state.value} match={status.match} next={status.next}"
    if status.is_learner:
        text += " learner"
    if status.paused:
        text += " paused"
    if status.pending_snapshot:
        text += f" pendingSnap={status.pending_snapshot}"
    if not status.recently_active:
        text += " inactive"
    if status.inflight_messages:
        text += f" inflight={status.inflight_messages}"
        if status.inflight_full:
            text += "[full]"
    return text
