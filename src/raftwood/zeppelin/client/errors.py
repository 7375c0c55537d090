"""What a client of Zeppelin is told besides the errors that all packages share.

CommandRefused  a node refused the command: nothing was done, and the same would be refused again
AnswerLost      the command was done, once; a connection ended before its answer came, which the
                node does not keep
Fenced          another one writes under the producer's name, with larger numbers
CheckpointGone  the node does not have the checkpoint any more: begin another one
"""

from raftwood.base.errors import Conflict, InvalidInput, NotFound, RaftwoodError


class CommandRefused(InvalidInput):
    """In the node's words."""

    code = "kv_command_refused"


class AnswerLost(RaftwoodError):
    """It was done: read what there is now."""

    code = "kv_answer_lost"


class Fenced(Conflict):
    """Nothing was written: another one has taken over."""

    code = "kv_fenced"


class CheckpointGone(NotFound):
    """It was ended, its time to live was over, or its node was started again."""

    code = "kv_checkpoint_gone"
