"""SLS's calls about projects and logstores."""

from typing import Any

import msgspec

from raftwood.loghub.controls import (
    AnyControl,
    CreateLogstore,
    CreateProject,
    DeleteLogstore,
    DeleteProject,
    GetLogstore,
    GetProject,
    ListLogstores,
    ListProjects,
    UpdateLogstore,
    UpdateProject,
)
from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.http.routes import Answer
from raftwood.loghub.server.sls.messages import (
    CreateProjectBody,
    LogstoreBody,
    LogstoresAnswer,
    ProjectsAnswer,
    UpdateProjectBody,
    logstore_answer,
    project_answer,
)
from raftwood.loghub.server.sls.parameters import json_body, number_parameter, project_of

EMPTY = Answer()
_PAGE = 100


async def control(gateway: Gateway, request: Request, call: AnyControl) -> Any:
    assert request.key is not None
    return await gateway.control(request.key, call)


def json_answer(value: Any) -> Answer:
    return Answer(body=msgspec.json.encode(value))


def logstore_of(request: Request) -> str:
    """From `/logstores/NAME/...`."""
    return request.path.split("/", 3)[2]


class CatalogCalls:
    """Each is a handler; paths are matched in `routes`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create_project(self, request: Request) -> Answer:
        body = await json_body(request, CreateProjectBody)
        if request.project and request.project != body.project_name:
            raise InvalidParameter(
                f"Host names project {request.project[:140]!r} and the body another: name the same"
            )
        call = CreateProject(project=body.project_name, description=body.description)
        await control(self._gateway, request, call)
        return EMPTY

    async def update_project(self, request: Request) -> Answer:
        body = await json_body(request, UpdateProjectBody)
        call = UpdateProject(project=project_of(request), description=body.description)
        await control(self._gateway, request, call)
        return EMPTY

    async def get_or_list_projects(self, request: Request) -> Answer:
        """A list where Host names no project; and for its paging, as what looks like a project may
        be the name of the gateway."""
        given = request.parameters
        if request.project and "offset" not in given and "size" not in given:
            project = await control(self._gateway, request, GetProject(project=request.project))
            return json_answer(project_answer(project))
        call = ListProjects(
            offset=number_parameter(request, "offset", 0),
            size=number_parameter(request, "size", _PAGE),
            contains=given.get("projectName", ""),
        )
        found = await control(self._gateway, request, call)
        projects = [project_answer(each) for each in found.projects]
        return json_answer(
            ProjectsAnswer(count=len(projects), total=found.total, projects=projects)
        )

    async def delete_project(self, request: Request) -> Answer:
        await control(self._gateway, request, DeleteProject(project=project_of(request)))
        return EMPTY

    async def create_logstore(self, request: Request) -> Answer:
        body = await json_body(request, LogstoreBody)
        call = CreateLogstore(
            project=project_of(request),
            logstore=body.logstore_name,
            shard_count=2 if body.shard_count is None else body.shard_count,
            options=body.options(),
        )
        await control(self._gateway, request, call)
        return EMPTY

    async def update_logstore(self, request: Request) -> Answer:
        body = await json_body(request, LogstoreBody)
        call = UpdateLogstore(
            project=project_of(request), logstore=logstore_of(request), options=body.options()
        )
        await control(self._gateway, request, call)
        return EMPTY

    async def get_logstore(self, request: Request) -> Answer:
        if "type" in request.parameters:
            raise InvalidParameter("logs are not searched here: pull them, or consume them")
        call = GetLogstore(project=project_of(request), logstore=logstore_of(request))
        return json_answer(logstore_answer(await control(self._gateway, request, call)))

    async def delete_logstore(self, request: Request) -> Answer:
        call = DeleteLogstore(project=project_of(request), logstore=logstore_of(request))
        await control(self._gateway, request, call)
        return EMPTY

    async def list_logstores(self, request: Request) -> Answer:
        call = ListLogstores(
            project=project_of(request),
            offset=number_parameter(request, "offset", 0),
            size=number_parameter(request, "size", _PAGE),
            contains=request.parameters.get("logstoreName", ""),
        )
        found = await control(self._gateway, request, call)
        names = found.logstores
        return json_answer(LogstoresAnswer(count=len(names), total=found.total, logstores=names))
