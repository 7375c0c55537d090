"""What a client of Zeppelin is told besides the errors that all packages share.

CommandRefused  a node refused the command: nothing was done, and the same would be refused again
AnswerLost      the command was done, once; a connection ended before its answer came, which the
                node does not keep
"""

from raftwood.base.errors import InvalidInput, RaftwoodError


class CommandRefused(InvalidInput):
    """In the node's words."""

    code = "kv_command_refused"


class AnswerLost(RaftwoodError):
    """It was done: read what there is now."""

    code = "kv_answer_lost"
