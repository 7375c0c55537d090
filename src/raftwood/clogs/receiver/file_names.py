"""From the name that a shipper gives a file to a path below a folder, which it can never leave.

Letters, digits and `._-` stay as they are; a `/` between two others separates folders; all else is
percent-encoded. A dot at the beginning is encoded too: so nothing is hidden, nothing is called
`..`, and what begins with a dot in the folder is the receiver's own. To decode the path gives the
name again, so two names never share a file. A part that is too long for a file system is cut, and
the hash of the whole stands behind `%~`, which no encoding makes.
"""

import hashlib
import re
from typing import Final

PART_BYTES_MAX: Final = 255
_HASH_BYTES: Final = 16
_ENCODED: Final = re.compile(rb"[^A-Za-z0-9._-]|(?<=^)\.")


def safe_path(name: str) -> str:
    """Relative, without a part that is empty or begins with a dot."""
    parts: list[str] = []
    for each in re.split(r"(?<=[^/])/(?=[^/])", name):
        data = each.encode()
        part = _ENCODED.sub(lambda found: b"%%%02X" % found[0][0], data).decode()
        if len(part) > PART_BYTES_MAX:
            digest = hashlib.blake2b(data, digest_size=_HASH_BYTES).hexdigest()
            part = f"{part[: PART_BYTES_MAX - 2 - len(digest)]}%~{digest}"
        parts.append(part)
    return "/".join(parts)
