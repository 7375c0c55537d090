"""Which path and method is which call of SLS's API.

front = HttpFront(environment, [SlsRoutes(environment, gateway, body_bytes_max=...)], ...)
"""

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, RaftwoodError
from raftwood.loghub.decode_bounds import DEFAULT_BOUNDS, DecodeBounds
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.http.routes import Answer, Route
from raftwood.loghub.server.sls.catalog_calls import CatalogCalls
from raftwood.loghub.server.sls.error_answers import error_answer
from raftwood.loghub.server.sls.group_calls import GroupCalls
from raftwood.loghub.server.sls.login import signing_key
from raftwood.loghub.server.sls.stream_calls import StreamCalls


class SlsRoutes:
    """A `RouteGroup`: `/` and all below `/logstores`."""

    name = "sls"

    def __init__(
        self,
        environment: Environment,
        gateway: Gateway,
        *,
        body_bytes_max: int,
        bounds: DecodeBounds = DEFAULT_BOUNDS,
    ) -> None:
        self._clock = environment.clock
        self._access = gateway.access
        catalog = CatalogCalls(gateway)
        streams = StreamCalls(gateway, body_bytes_max=body_bytes_max, bounds=bounds)
        groups = GroupCalls(gateway)
        put = Route("put", streams.put)
        self._unknown = Route("unknown", _unknown)
        self._routes = {
            "POST /": Route("create_project", catalog.create_project),
            "PUT /": Route("update_project", catalog.update_project),
            "GET /": Route("get_or_list_projects", catalog.get_or_list_projects),
            "DELETE /": Route("delete_project", catalog.delete_project),
            "POST /logstores": Route("create_logstore", catalog.create_logstore),
            "GET /logstores": Route("list_logstores", catalog.list_logstores),
            "POST /logstores/*": put,
            "PUT /logstores/*": Route("update_logstore", catalog.update_logstore),
            "GET /logstores/*": Route("get_logstore", catalog.get_logstore),
            "DELETE /logstores/*": Route("delete_logstore", catalog.delete_logstore),
            "GET /logstores/*/shards": Route("list_shards", streams.list_shards),
            "POST /logstores/*/shards/lb": put,
            "POST /logstores/*/shards/route": Route("put_by_key", streams.put_by_key),
            "GET /logstores/*/shards/*": Route("pull", streams.get_of_shard),
            "POST /logstores/*/shards/*": Route("reshard", streams.reshard),
            "DELETE /logstores/*/shards/*": Route("delete_shard", streams.delete_shard),
            "POST /logstores/*/consumergroups": Route("create_group", groups.create),
            "GET /logstores/*/consumergroups": Route("list_groups", groups.list),
            "PUT /logstores/*/consumergroups/*": Route("update_group", groups.update),
            "DELETE /logstores/*/consumergroups/*": Route("delete_group", groups.delete),
            "POST /logstores/*/consumergroups/*": Route("post_to_group", groups.post),
            "GET /logstores/*/consumergroups/*": Route("get_checkpoints", groups.get_checkpoints),
        }

    def find(self, method: str, path: str) -> Route | None:
        if path not in ("/", "/logstores") and not path.startswith("/logstores/"):
            return None
        return self._routes.get(f"{method} {_shape(path)}", self._unknown)

    def authenticate(self, request: Request) -> AccessKey:
        return signing_key(request, self._access.key, self._clock)

    def error_answer(self, error: RaftwoodError, request: Request) -> Answer:  # noqa: ARG002
        return error_answer(error)


def _shape(path: str) -> str:
    """The path with a star for each name in it."""
    parts = path.split("/")
    if len(parts) > 2 and parts[1] == "logstores":
        parts[2] = "*"
        if len(parts) == 5 and not (parts[3] == "shards" and parts[4] in ("lb", "route")):
            parts[4] = "*"
    return "/".join(parts)


async def _unknown(request: Request) -> Answer:
    raise NotFound(f"SLS's API has no {request.method} {request.path[:200]}, or not here")
