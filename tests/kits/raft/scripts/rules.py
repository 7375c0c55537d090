"""Scripts of single rules: quorum tables and membership changes, without nodes or messages."""

from raftwood.raft.core import ChangeStep, InvalidChange
from raftwood.raft.core.membership import Changer
from raftwood.raft.core.messages import UNLIMITED
from raftwood.raft.core.quorum import (
    describe_committed,
    joint_committed,
    joint_vote,
    majority_committed,
    majority_vote,
)
from raftwood.raft.core.raw_node import follower_status
from raftwood.raft.core.tracker import Tracker
from tests.kits.raft.scripts.describing import STEP_LETTERS, membership_text, progress_text
from tests.kits.raft.scripts.parsing import Command, ScriptError

QUORUM_COMMANDS = {"committed", "vote"}
CHANGE_COMMANDS = {"simple", "enter-joint", "leave-joint"}


def parse_steps(text: str) -> list[ChangeStep]:
    steps = []
    for token in text.split():
        if token[0] not in STEP_LETTERS or not token[1:].isdigit():
            raise ScriptError(f"unknown input: {token}")
        steps.append(ChangeStep(STEP_LETTERS[token[0]], int(token[1:])))
    return steps


class QuorumScript:
    """`committed` and `vote` over one or two voter sets."""

    def run(self, command: Command) -> str:
        incoming = [int(value) for value in command.values("cfg")]
        joint = any(argument.key == "cfgj" for argument in command.arguments)
        outgoing = [int(value) for value in command.values("cfgj") if value != "zero"]
        given = command.values("idx" if command.name == "committed" else "votes")
        # Values belong to the voters in the order of their first mention.
        voters = list(dict.fromkeys([*incoming, *outgoing]))
        if len(given) != len(voters):
            return f"error: mismatched input (explicit or _) for voters {voters}: {given}"
        known = {voter: value for voter, value in zip(voters, given, strict=True) if value != "_"}
        if command.name == "committed":
            return self._committed(incoming, outgoing, known, joint=joint)
        votes = {voter: value == "y" for voter, value in known.items()}
        result = joint_vote(incoming, outgoing, votes) if joint else majority_vote(incoming, votes)
        return f"{result.value}\n"

    def _committed(
        self, incoming: list[int], outgoing: list[int], known: dict[int, str], *, joint: bool
    ) -> str:
        acknowledged = {voter: int(value) for voter, value in known.items()}
        index = (
            joint_committed(incoming, outgoing, acknowledged)
            if joint
            else majority_committed(incoming, acknowledged)
        )
        table = describe_committed({*incoming, *outgoing}, acknowledged)
        return f"{table}{'∞' if index == UNLIMITED else index}\n"


class ChangeScript:
    """A membership to which changes are applied; each command counts as one more index."""

    def __init__(self) -> None:
        self._tracker = Tracker(10)
        self._last_index = 0

    def run(self, command: Command) -> str:
        changer = Changer(self._tracker, last_index=self._last_index)
        self._last_index += 1
        steps = parse_steps(command.input)
        try:
            if command.name == "simple":
                result = changer.simple(steps)
            elif command.name == "enter-joint":
                auto_leave = command.value("autoleave") == "true"
                result = changer.enter_joint(steps, auto_leave=auto_leave)
            elif command.name == "leave-joint":
                if steps:
                    raise InvalidChange("this command takes no input")
                result = changer.leave_joint()
            else:
                return "unknown command"
        except InvalidChange as error:
            return f"{error.message}\n"
        self._tracker.adopt(*result)
        progress = {node: follower_status(item) for node, item in self._tracker.progress.items()}
        text = membership_text(self._tracker.members.conf_state())
        return f"{text}\n{progress_text(progress)}"
