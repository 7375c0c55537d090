"""How large what a partition is told to write may be."""

from collections.abc import Iterable

import msgspec

from raftwood.base.errors import TooLarge
from raftwood.zeppelin.node.seams import KEY_BYTES_MAX, Write


class WriteSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one partition."""

    record_bytes_max: int
    value_bytes_max: int

    def check(self, writes: Iterable[Write], size: int) -> None:
        """`TooLarge` where writes of so many bytes together are, or one of them is."""
        if size > self.record_bytes_max:
            raise TooLarge(
                f"a write of {size} bytes is above the limit of {self.record_bytes_max}: split it"
            )
        for write in writes:
            if len(write.key) > KEY_BYTES_MAX:
                raise TooLarge(
                    f"a key of {len(write.key)} bytes is above the limit of {KEY_BYTES_MAX}: take "
                    "a shorter one"
                )
            if write.data is not None and len(write.data) > self.value_bytes_max:
                raise TooLarge(
                    f"a value of {len(write.data)} bytes is above the limit of "
                    f"{self.value_bytes_max}: split it"
                )
