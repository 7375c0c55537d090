"""`raftwood project`: the name spaces of LogHub, each with rights and a quota of its own."""

from typing import Annotated, Any

import msgspec
from cyclopts import App, Parameter

from raftwood.base.errors import InvalidInput
from raftwood.cli.loghub_target import HUB, HubTarget, size_of
from raftwood.cli.output import time_text, write_rows
from raftwood.loghub.client.hub_client import AsyncLogHubClient
from raftwood.loghub.model import Project

app = App(name="project", help_format="plaintext")

PAGE = 500
_COLUMNS = {
    "name": "project",
    "description": "description",
    "owner": "owner",
    "created": "made",
    "quota": "writes per s",
}
_Contains = Annotated[str, Parameter(help="Only those with this in their names.")]


@app.command
def create(project: str, *, description: str = "", hub: HubTarget = HUB) -> int:
    """Make a project; it takes a key that is admin of every project."""

    async def work(client: AsyncLogHubClient) -> int:
        await client.create_project(project, description=description)
        return await _show(client, project, hub)

    return hub.run(work)


@app.command(name="list")
def list_projects(*, contains: _Contains = "", hub: HubTarget = HUB) -> int:
    """List the projects in which the key has a role."""

    async def work(client: AsyncLogHubClient) -> int:
        found: list[Project] = []
        while True:
            page = await client.projects(offset=len(found), size=PAGE, contains=contains)
            found += page.projects
            if not page.projects or len(found) >= page.total:
                break
        write_rows([_row(each) for each in found], _COLUMNS, hub.output)
        return 0

    return hub.run(work)


@app.command
def show(project: str, *, hub: HubTarget = HUB) -> int:
    """Show a project."""

    async def work(client: AsyncLogHubClient) -> int:
        return await _show(client, project, hub)

    return hub.run(work)


@app.command
def update(
    project: str,
    *,
    description: str | None = None,
    write_bytes_per_s_max: Annotated[
        str | None,
        Parameter(
            help='What each gateway takes in a second, as "5MiB"; 0: as gateway.'
            "write_bytes_per_s_max says."
        ),
    ] = None,
    hub: HubTarget = HUB,
) -> int:
    """Change what is given."""
    quota = size_of("--write-bytes-per-s-max", write_bytes_per_s_max)
    if description is None and quota is None:
        raise InvalidInput("nothing is to be changed: give --description or a quota")

    async def work(client: AsyncLogHubClient) -> int:
        await client.update_project(project, description=description, write_bytes_per_s_max=quota)
        return await _show(client, project, hub)

    return hub.run(work)


@app.command
def delete(project: str, *, hub: HubTarget = HUB) -> int:
    """Remove a project that has no logstores."""

    async def work(client: AsyncLogHubClient) -> int:
        await client.delete_project(project)
        write_rows([{"name": project}], {"name": "deleted project"}, hub.output)
        return 0

    return hub.run(work)


async def _show(client: AsyncLogHubClient, project: str, hub: HubTarget) -> int:
    write_rows([_row(await client.project(project))], _COLUMNS, hub.output)
    return 0


def _row(project: Project) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(project)
    row["created"] = time_text(project.created_s)
    row["quota"] = project.write_bytes_per_s_max or None
    return row
