"""Keys that are sent as they are, with their secret; SLS clients sign instead.

For what a key may do see `access.check_role`.
"""

import base64
import binascii
import hmac
from collections.abc import Callable

from raftwood.base.errors import Unauthenticated
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.http.request import Request

FindKey = Callable[[str], AccessKey | None]


def key_of_authorization(request: Request, find: FindKey) -> AccessKey:
    """The key of `Authorization: Basic base64(id:secret)` or `Bearer id:secret`."""
    scheme, _, rest = request.header(b"authorization").partition(" ")
    name, _, secret = _credentials(scheme.lower(), rest.strip()).partition(":")
    key = find(name)
    # An unknown key is compared too, so that it takes as long as a wrong secret.
    known = key.secret if key is not None else ""
    is_right = hmac.compare_digest(secret.encode(), known.encode())
    if key is None or not is_right or not known:
        raise Unauthenticated(
            "the access key or its secret is wrong: send `Authorization: Basic` with id:secret in "
            "base64, or `Authorization: Bearer id:secret`"
        )
    return key


def _credentials(scheme: str, text: str) -> str:
    if scheme == "bearer":
        return text
    if scheme in ("basic", "apikey"):  # the latter is Elasticsearch's
        try:
            return base64.b64decode(text, validate=True).decode()
        except (binascii.Error, ValueError):
            return ""
    return ""
