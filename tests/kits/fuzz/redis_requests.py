"""Requests of Redis's clients, as a target for a mutator: all at once and in pieces, the same."""

from raftwood.zeppelin.resp import BEFORE_LOGIN, RequestLimits, Requests

_LIMITS = (RequestLimits(arguments_max=64, bulk_bytes_max=4096), BEFORE_LOGIN)


def target(data: bytes) -> None:
    limits = _LIMITS[len(data) % 2]
    whole, pieces = Requests(limits), Requests(limits)
    middle = len(data) // 2
    found = whole.feed(data)
    assert found == pieces.feed(data[:middle]) + pieces.feed(data[middle:])
    assert whole.failure == pieces.failure
    assert [] not in found


def seeds() -> list[bytes]:
    return [
        b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$2\r\n\r\n\r\n",
        b"PING\r\nset a \"b\\x41\" 'c'\r\n*1\r\n$4\r\nPING\r\n",
        b"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n*0\r\n*-1\r\n",
    ]
