"""What ways in over HTTP share: login, choice of the logstore, bodies, statuses.

The project comes from the first of: the path, the query's `project`, the header
`X-Raftwood-Project`, the only project in which the access key may write. The logstore likewise: the
path (or Elasticsearch's index), `logstore`, `X-Raftwood-Logstore`, the setting `ways_in.logstore`.
Records that are sent with the same `key` or `X-Raftwood-Key` stay in order; all others are spread
over the shards.
"""

from collections.abc import Sequence
from typing import Final

from raftwood.base.errors import DeadlineExceeded, Overloaded, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.loghub.decode_bounds import DecodeBounds
from raftwood.loghub.errors import InvalidParameter, QuotaExceeded
from raftwood.loghub.model import AccessKey, AccessRole, allows
from raftwood.loghub.server.access import check_role
from raftwood.loghub.server.content_encoding import unpacked_in_turns
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.http import Headers, HttpRequest, key_of_authorization
from raftwood.loghub.server.long_work import LongWork
from raftwood.loghub.server.streams import PutResult
from raftwood.loghub.server.ways_in.records import LogstoreName, RecordSection, SectionWriter
from raftwood.loghub.server.ways_in.settings import WaysInSettings
from raftwood.loghub.settings import GatewaySettings
from raftwood.loghub.shards import hash_key

_CHALLENGE: Final = (b"www-authenticate", b'Basic realm="raftwood"')
_LATER: Final = (b"retry-after", b"1")


class HttpWay:
    """The base of a way in over HTTP; each subclass adds its routes and its own answers."""

    def __init__(
        self,
        gateway: Gateway,
        putting: SectionWriter,
        settings: WaysInSettings,
        limits: GatewaySettings,
    ) -> None:
        self._gateway = gateway
        self._settings = settings
        self._limits = limits
        self.putting = putting

    def authenticate(self, request: HttpRequest) -> AccessKey:
        return key_of_authorization(request, self._gateway.access.key)

    @property
    def bounds(self) -> DecodeBounds:
        return self._settings.bounds

    @property
    def raw_bytes_max(self) -> int:
        return self._limits.raw_bytes_max

    @property
    def long_work(self) -> LongWork:
        return self._gateway.long_work

    async def body(self, request: HttpRequest, *, own_encoding: str = "") -> Buffer:
        """Reads and unpacks the body by its Content-Encoding, within the gateway's bounds; the way
        in unpacks `own_encoding` itself.
        """
        body = await request.body(bytes_max=self._limits.body_bytes_max)
        encoding = request.header(b"content-encoding")
        if encoding == own_encoding or not encoding:
            return body
        data = await unpacked_in_turns(
            body,
            encoding,
            self._gateway.decoding,
            self.long_work,
            bytes_max=self._limits.raw_bytes_max,
        )
        request.reserve(len(data))
        return data

    def project(self, request: HttpRequest, given: str = "") -> str:
        """Returns the request's project; raises if the key may not write there."""
        project = given or _named(request, "project") or _only_project(request)
        assert request.key is not None
        check_role(request.key, project, AccessRole.WRITER)
        return project

    def place(self, request: HttpRequest, *, project: str = "", logstore: str = "") -> LogstoreName:
        """Returns the request's logstore; raises if the key may not write there."""
        logstore = logstore or _named(request, "logstore") or self._settings.logstore
        if not logstore:
            raise InvalidParameter(
                "no logstore is named: send the header X-Raftwood-Logstore, or set ways_in.logstore"
            )
        return LogstoreName(self.project(request, project), logstore)

    async def put(
        self, request: HttpRequest, place: LogstoreName, sections: Sequence[RecordSection]
    ) -> list[PutResult]:
        """Puts records; they are durable on return."""
        key = _named(request, "key")
        return await self.putting.put(
            place,
            sections,
            source=request.client.encode(),
            key=hash_key(key.encode()) if key else None,
        )


def _named(request: HttpRequest, name: str) -> str:
    return request.parameters.get(name) or request.header(f"x-raftwood-{name}".encode())


def _only_project(request: HttpRequest) -> str:
    roles = request.key.roles if request.key is not None else {}
    found = [
        project
        for project, role in roles.items()
        if project != "*" and allows(role, AccessRole.WRITER)
    ]
    if len(found) != 1:
        raise InvalidParameter(
            "no project is named, and the access key has not just one: send the header "
            "X-Raftwood-Project"
        )
    return found[0]


def media_type(request: HttpRequest) -> str:
    return request.header(b"content-type").partition(";")[0].strip().lower()


def status_of(error: RaftwoodError) -> int:
    """Maps errors to the statuses after which clients retry: 429, 503 and 504."""
    if isinstance(error, QuotaExceeded | Overloaded):
        return 429
    if error.retriable:
        return 504 if isinstance(error, DeadlineExceeded) else 503
    return error.http_status


def headers_of(status: int) -> Headers:
    if status == 401:
        return (_CHALLENGE,)
    return (_LATER,) if status in (429, 503) else ()
