"""What a command is refused with, in Redis's words, so that clients know what to do."""

from raftwood.base.errors import InvalidInput

SYNTAX = "ERR syntax error"
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
NOT_A_FLOAT = "ERR value is not a valid float"
CROSSSLOT = "CROSSSLOT Keys in request don't hash to the same slot"
NOT_SERVED = "CLUSTERDOWN Hash slot not served"
CLUSTER_DOWN = "CLUSTERDOWN The cluster is down"
NOBODY_SERVES = (NOT_SERVED, CLUSTER_DOWN)
DONE = "DONE This was executed before; its answer is not kept"
TOO_LARGE = "ERR string exceeds maximum allowed size (proto-max-bulk-len)"


class Refused(InvalidInput):
    """The client is told this, and nothing was done."""

    code = "command_refused"


def wrong_number(name: str) -> Refused:
    return Refused(f"ERR wrong number of arguments for '{name}' command")


def unknown_command(arguments: list[bytes]) -> Refused:
    shown = "".join(f"'{_shown(each)}' " for each in arguments[1:20])[:128]
    return Refused(
        f"ERR unknown command '{_shown(arguments[0])}', with args beginning with: {shown}"
    )


def unknown_subcommand(command: str, word: bytes) -> Refused:
    return Refused(f"ERR unknown subcommand '{_shown(word)}'. Try {command} HELP.")


def invalid_expire(name: str) -> Refused:
    return Refused(f"ERR invalid expire time in '{name}' command")


def _shown(word: bytes) -> str:
    return word[:128].decode("utf-8", "backslashreplace")
