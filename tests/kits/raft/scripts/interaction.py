"""The commands of interaction scripts: several nodes, run step by step."""

from collections.abc import Callable

from raftwood.base.errors import RaftwoodError
from raftwood.raft.core import (
    UNLIMITED,
    Change,
    ChangeV1,
    ChangeV2,
    ConfState,
    Message,
    MessageKind,
    RaftSettings,
    ReadMode,
    Snapshot,
    Transition,
)
from tests.kits.raft.scripts import describing
from tests.kits.raft.scripts.environment import Environment, Node, error_text
from tests.kits.raft.scripts.parsing import Command, ScriptError
from tests.kits.raft.scripts.rules import parse_steps

_LEVELS = ("DEBUG", "INFO", "WARN", "ERROR", "FATAL", "NONE")
_KIND_OF_NAME = {name: kind for kind, name in describing.MESSAGE_NAMES.items()}
_TRANSITIONS = {
    "auto": Transition.AUTO,
    "implicit": Transition.JOINT_IMPLICIT,
    "explicit": Transition.JOINT_EXPLICIT,
}
_READ_MODES = {"safe": ReadMode.SAFE, "lease-based": ReadMode.LEASE}
_FLAGS = {
    "async-storage-writes": "async_storage_writes",
    "prevote": "prevote",
    "checkquorum": "check_quorum",
    "step-down-on-removal": "step_down_on_removal",
}
_NEGATED_FLAGS = {
    "disable-conf-change-validation": "change_validation",
    "disable-proposal-forwarding": "proposal_forwarding",
}
_NUMBERS = {
    "inflight": "inflight_messages_max",
    "inflight-bytes": "inflight_bytes_max",
    "max-committed-size-per-ready": "applying_bytes_max",
    "max-size-per-msg": "message_bytes_max",
    "max-uncommitted-size": "uncommitted_bytes_max",
}


class Refused(Exception):
    """A command that cannot be carried out; its text is the output."""


class InteractionScript:
    """Runs one file's commands against one environment."""

    def __init__(self) -> None:
        self._environment = Environment()
        self._commands: dict[str, Callable[[Command], None]] = {
            "_breakpoint": lambda _: None,
            "add-nodes": self._add_nodes,
            "campaign": self._campaign,
            "compact": self._compact,
            "deliver-msgs": self._deliver,
            "forget-leader": self._forget_leader,
            "log-level": self._log_level,
            "process-append-thread": self._process_append_thread,
            "process-apply-thread": self._process_apply_thread,
            "process-ready": self._process_ready,
            "propose": self._propose,
            "propose-conf-change": self._propose_change,
            "raft-log": self._raft_log,
            "raft-state": self._raft_state,
            "read-index": self._read_index,
            "report-snapshot": self._report_snapshot,
            "report-unreachable": self._report_unreachable,
            "send-snapshot": self._send_snapshot,
            "set-randomized-election-timeout": self._set_election_timeout,
            "stabilize": self._stabilize,
            "status": self._status,
            "tick-election": self._tick_election,
            "tick-heartbeat": self._tick_heartbeat,
            "transfer-leadership": self._transfer_leadership,
        }

    def run(self, command: Command) -> str:
        output = self._environment.output
        output.text = ""
        try:
            handler = self._commands.get(command.name)
            if handler is None:
                raise Refused("unknown command")
            handler(command)
        except (Refused, ScriptError) as error:
            output.text += str(error)
        except RaftwoodError as error:
            # Errors are shown even while everything else is turned off.
            output.text += error_text(error)
        return output.text or "ok"

    def _node(self, command: Command) -> Node:
        return self._environment.node(command.nodes()[0])

    # Nodes

    def _add_nodes(self, command: Command) -> None:
        options: dict[str, int | bool | ReadMode] = {}
        for key, name in _FLAGS.items():
            if command.values(key):
                options[name] = command.value(key) == "true"
        for key, name in _NEGATED_FLAGS.items():
            if command.values(key):
                options[name] = command.value(key) != "true"
        for key, name in _NUMBERS.items():
            if command.values(key):
                options[name] = int(command.value(key))
        read_only = command.value("read-only", "safe")
        if read_only not in _READ_MODES:
            raise Refused(f'invalid read-only option "{read_only}"')
        options.setdefault("message_bytes_max", UNLIMITED)
        options.setdefault("inflight_messages_max", (1 << 31) - 1)
        index = int(command.value("index", "0"))
        configuration = ConfState(
            voters=tuple(int(value) for value in command.values("voters")),
            learners=tuple(int(value) for value in command.values("learners")),
        )
        content = command.value("content").encode()
        bootstrap = Snapshot(index, 1 if index else 0, configuration, content)
        if bootstrap != Snapshot() and index <= 1:
            raise Refused("index must be specified as > 1 due to bootstrap")
        for _ in range(int(command.positional()[0])):
            settings = RaftSettings(
                node=len(self._environment.nodes) + 1,
                election_ticks=3,
                heartbeat_ticks=1,
                election_jitter=lambda _: 0,
                applied=index,
                read_mode=_READ_MODES[read_only],
                **options,  # type: ignore[arg-type]
            )
            self._environment.nodes.append(Node(settings, bootstrap))

    def _log_level(self, command: Command) -> None:
        self._set_level(command.positional()[0])

    def _set_level(self, name: str) -> None:
        if name.upper() not in _LEVELS:
            raise Refused(f"log levels must be either of [{' '.join(_LEVELS)}]")
        self._environment.output.quiet = name.upper() == "NONE"

    # Work

    def _deliver(self, command: Command) -> None:
        name = command.value("type")
        if name and name not in _KIND_OF_NAME:
            raise Refused(f"unknown message type {name}")
        kind = _KIND_OF_NAME[name] if name else None
        count = 0
        for argument in command.arguments:
            if not argument.given:
                count += self._environment.deliver(int(argument.key), kind)
            elif argument.key == "drop":
                for target in argument.values:
                    if target in command.positional():
                        raise Refused(f"can't both deliver and drop msgs to {target}")
                    count += self._environment.deliver(int(target), kind, drop=True)
        if not count:
            self._environment.output.write("no messages\n")

    def _each(self, command: Command, title: str, work: Callable[[int], None]) -> None:
        output, nodes = self._environment.output, command.nodes()
        for node in nodes:
            if len(nodes) == 1:
                work(node)
                continue
            output.write(f"> {node} {title}\n")
            with output.indented():
                work(node)

    def _process_ready(self, command: Command) -> None:
        self._each(command, "handling Ready", self._environment.process_ready)

    def _process_append_thread(self, command: Command) -> None:
        work = self._environment.process_append_thread
        self._each(command, "processing append thread", work)

    def _process_apply_thread(self, command: Command) -> None:
        work = self._environment.process_apply_thread
        self._each(command, "processing apply thread", work)

    def _stabilize(self, command: Command) -> None:
        output = self._environment.output
        before = output.quiet
        if command.values("log-level"):
            self._set_level(command.value("log-level"))
        try:
            self._environment.stabilize(command.nodes())
        finally:
            output.quiet = before

    # Calls

    def _campaign(self, command: Command) -> None:
        self._node(command).raw.campaign()

    def _forget_leader(self, command: Command) -> None:
        self._node(command).raw.forget_leader()

    def _propose(self, command: Command) -> None:
        identity, payload = command.positional()
        self._environment.node(int(identity)).raw.propose([payload.encode()])

    def _propose_change(self, command: Command) -> None:
        steps = tuple(parse_steps(command.input))
        name = command.value("transition", "auto")
        if name not in _TRANSITIONS:
            raise Refused(f"unknown transition {name}")
        change: Change = ChangeV2(steps, _TRANSITIONS[name])
        if command.value("v1") == "true":
            if len(steps) != 1 or name != "auto":
                raise Refused("v1 conf change can only have one operation and no transition")
            change = ChangeV1(steps[0])
        self._node(command).raw.propose_change(change)

    def _read_index(self, command: Command) -> None:
        identity, context = command.positional()
        self._environment.node(int(identity)).raw.read_index(context.encode())

    def _report_unreachable(self, command: Command) -> None:
        first, second = command.nodes()
        self._environment.node(first).raw.report_unreachable(second)

    def _report_snapshot(self, command: Command) -> None:
        first, second = command.nodes()
        failed = command.value("failed") == "true"
        self._environment.node(first).raw.report_snapshot(second, failed=failed)

    def _send_snapshot(self, command: Command) -> None:
        source, target = command.nodes()
        node = self._environment.node(source)
        message = Message(
            MessageKind.SNAPSHOT,
            target,
            source,
            node.raw.raft.term,
            snapshot=node.storage.snapshot(),
        )
        self._environment.messages.append(message)
        self._environment.output.write(describing.message_text(message))

    def _set_election_timeout(self, command: Command) -> None:
        self._node(command).raw.raft.election_timeout = int(command.value("timeout"))

    def _tick_election(self, command: Command) -> None:
        node = self._node(command)
        for _ in range(node.settings.election_ticks):
            node.raw.tick()

    def _tick_heartbeat(self, command: Command) -> None:
        node = self._node(command)
        for _ in range(node.settings.heartbeat_ticks):
            node.raw.tick()

    def _transfer_leadership(self, command: Command) -> None:
        source, target = int(command.value("from")), int(command.value("to"))
        self._environment.node(source).raw.transfer_leadership(target)

    # Looking

    def _compact(self, command: Command) -> None:
        identity, index = command.nodes()
        self._environment.node(identity).storage.compact(index)
        self._show_log(self._environment.node(identity))

    def _raft_log(self, command: Command) -> None:
        self._show_log(self._node(command))

    def _show_log(self, node: Node) -> None:
        storage = node.storage
        first, last = storage.first_index(), storage.last_index()
        if last < first:
            text = f"log is empty: first index={first}, last index={last}"
        else:
            text = describing.entries_text(storage.entries(first, last + 1))
        self._environment.output.write(text)

    def _raft_state(self, _: Command) -> None:
        for node in self._environment.nodes:
            status = node.raw.status()
            state = status.configuration
            votes = status.node in (*state.voters, *state.voters_outgoing)
            self._environment.output.write(
                f"{status.node}: {status.role.value} ({'Voter' if votes else 'Non-Voter'}) "
                f"Term:{status.hard_state.term} Lead:{status.lead}\n"
            )

    def _status(self, command: Command) -> None:
        progress = self._node(command).raw.status().progress
        self._environment.output.write(describing.progress_text(progress))
