"""What Redis answers, written down a second time and as plainly as possible, to compare with."""

from decimal import Decimal
from typing import Any

from tests.kits.zeppelin.decoding import AnswerError

NOT_AN_INTEGER = AnswerError("ERR value is not an integer or out of range")
SYNTAX = AnswerError("ERR syntax error")
_LOW, _HIGH = -(2**63), 2**63 - 1


class RedisModel:
    """Keys with values and absolute ends; `now_ms` is moved by the test."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.data: dict[bytes, bytes] = {}
        self.ends: dict[bytes, int] = {}

    def expire_all(self) -> None:
        for key, end in list(self.ends.items()):
            if end <= self.now_ms:
                self._drop(key)

    def __call__(self, *arguments: bytes) -> Any:
        self.expire_all()
        name = arguments[0].decode().lower()
        return getattr(self, f"do_{name}")(*arguments[1:])

    def _drop(self, key: bytes) -> bool:
        self.ends.pop(key, None)
        return self.data.pop(key, None) is not None

    def _end(self, key: bytes, end: int) -> None:
        if end <= self.now_ms:
            self._drop(key)
        else:
            self.ends[key] = end

    def do_get(self, key: bytes) -> Any:
        return self.data.get(key)

    def do_set(self, key: bytes, value: bytes, *options: bytes) -> Any:
        words = [option.upper() for option in options]
        old = self.data.get(key)
        if (b"NX" in words and old is not None) or (b"XX" in words and old is None):
            return old if b"GET" in words else None
        kept = self.ends.pop(key, None)
        self.data[key] = value
        for word, factor, base in (
            (b"EX", 1000, self.now_ms),
            (b"PX", 1, self.now_ms),
            (b"EXAT", 1000, 0),
            (b"PXAT", 1, 0),
        ):
            if word in words:
                self._end(key, base + factor * int(options[words.index(word) + 1]))
        if b"KEEPTTL" in words and kept:
            self.ends[key] = kept
        return old if b"GET" in words else "OK"

    def do_setnx(self, key: bytes, value: bytes) -> int:
        return int(self.do_set(key, value, b"NX") == "OK")

    def do_setex(self, key: bytes, seconds: bytes, value: bytes) -> Any:
        return self.do_set(key, value, b"EX", seconds)

    def do_psetex(self, key: bytes, ms: bytes, value: bytes) -> Any:
        return self.do_set(key, value, b"PX", ms)

    def do_getset(self, key: bytes, value: bytes) -> Any:
        return self.do_set(key, value, b"GET")

    def do_getdel(self, key: bytes) -> Any:
        old = self.data.get(key)
        self._drop(key)
        return old

    def do_getex(self, key: bytes, *options: bytes) -> Any:
        old = self.data.get(key)
        if old is not None and options:
            if options[0] == b"PERSIST":
                self.ends.pop(key, None)
            else:
                self.do_set(key, old, *options)
        return old

    def do_cas(self, key: bytes, old: bytes, new: bytes, *options: bytes) -> int:
        if self.data.get(key) != old:
            return 0
        self.do_set(key, new, *options)
        return 1

    def do_mget(self, *keys: bytes) -> Any:
        return [self.data.get(key) for key in keys]

    def do_mset(self, *words: bytes) -> Any:
        for key, value in zip(words[::2], words[1::2], strict=True):
            self.do_set(key, value)
        return "OK"

    def do_msetnx(self, *words: bytes) -> Any:
        if any(key in self.data for key in words[::2]):
            return 0
        self.do_mset(*words)
        return 1

    def do_del(self, *keys: bytes) -> int:
        return sum([self._drop(key) for key in keys])

    do_unlink = do_del

    def do_exists(self, *keys: bytes) -> int:
        return sum([key in self.data for key in keys])

    def do_incrby(self, key: bytes, amount: bytes) -> Any:
        old = self.data.get(key, b"0")
        if str(_number(old)).encode() != old:
            return NOT_AN_INTEGER
        total = int(old) + int(amount)
        if not _LOW <= total <= _HIGH:
            return AnswerError("ERR increment or decrement would overflow")
        self.data[key] = str(total).encode()
        return total

    def do_incr(self, key: bytes) -> Any:
        return self.do_incrby(key, b"1")

    def do_decr(self, key: bytes) -> Any:
        return self.do_incrby(key, b"-1")

    def do_decrby(self, key: bytes, amount: bytes) -> Any:
        return self.do_incrby(key, str(-int(amount)).encode())

    def do_incrbyfloat(self, key: bytes, amount: bytes) -> Any:
        try:
            total = Decimal(self.data.get(key, b"0").decode("latin-1")) + Decimal(amount.decode())
        except ArithmeticError:
            return AnswerError("ERR value is not a valid float")
        shown = f"{total:.17f}".rstrip("0").rstrip(".")
        self.data[key] = (shown if shown != "-0" else "0").encode()
        return self.data[key]

    def do_append(self, key: bytes, more: bytes) -> int:
        self.data[key] = self.data.get(key, b"") + more
        return len(self.data[key])

    def do_strlen(self, key: bytes) -> int:
        return len(self.data.get(key, b""))

    def do_getrange(self, key: bytes, first: bytes, last: bytes) -> bytes:
        data = self.data.get(key, b"")
        begin, end = int(first), int(last)
        if begin < 0 and end < 0 and begin > end:
            return b""
        begin = max(begin + len(data), 0) if begin < 0 else begin
        end = max(end + len(data), 0) if end < 0 else end
        return bytes(byte for place, byte in enumerate(data) if begin <= place <= end)

    def do_setrange(self, key: bytes, offset: bytes, piece: bytes) -> int:
        data = bytearray(self.data.get(key, b""))
        if piece:
            data.extend(bytes(max(int(offset) + len(piece) - len(data), 0)))
            data[int(offset) : int(offset) + len(piece)] = piece
            self.data[key] = bytes(data)
        return len(data)

    def do_expire(self, key: bytes, seconds: bytes, *options: bytes) -> int:
        return self._expire(key, self.now_ms + 1000 * int(seconds), options)

    def do_pexpire(self, key: bytes, ms: bytes, *options: bytes) -> int:
        return self._expire(key, self.now_ms + int(ms), options)

    def do_expireat(self, key: bytes, seconds: bytes, *options: bytes) -> int:
        return self._expire(key, 1000 * int(seconds), options)

    def do_pexpireat(self, key: bytes, ms: bytes, *options: bytes) -> int:
        return self._expire(key, int(ms), options)

    def _expire(self, key: bytes, end: int, options: tuple[bytes, ...]) -> int:
        if key not in self.data:
            return 0
        before = self.ends.get(key)
        later = before is not None and end > before
        sooner = before is None or end < before
        allowed = {b"NX": before is None, b"XX": before is not None, b"GT": later, b"LT": sooner}
        if not all(allowed[option] for option in options):
            return 0
        self._end(key, end)
        return 1

    def do_persist(self, key: bytes) -> int:
        return int(self.ends.pop(key, None) is not None)

    def do_pexpiretime(self, key: bytes) -> int:
        return self.ends.get(key, -1) if key in self.data else -2

    def do_expiretime(self, key: bytes) -> int:
        end = self.do_pexpiretime(key)
        return (end + 500) // 1000 if end > 0 else end

    def do_pttl(self, key: bytes) -> int:
        end = self.do_pexpiretime(key)
        return end - self.now_ms if end > 0 else end

    def do_ttl(self, key: bytes) -> int:
        left = self.do_pttl(key)
        return (left + 500) // 1000 if left > 0 else left

    def do_type(self, key: bytes) -> str:
        return "string" if key in self.data else "none"


def _number(word: bytes) -> int | None:
    try:
        number = int(word)
    except ValueError:
        return None
    return number if _LOW <= number <= _HIGH else None
