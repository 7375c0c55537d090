"""Bodies of batches are decompressed within a bound, whatever they say of themselves."""

import pytest

from raftwood.base.compression import Codec
from raftwood.loghub.batches import decompress
from raftwood.loghub.errors import BatchTooLarge


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("said", [-1, 101, 1 << 60])
def test_a_raw_size_above_the_bound_is_refused_before_anything_is_done(
    codec: Codec, said: int
) -> None:
    with pytest.raises(BatchTooLarge):
        decompress(b"", codec, raw_bytes=said, raw_bytes_max=100)
