"""Who may do what, and how much: keys, roles, quotas."""

import asyncio
from pathlib import Path

import pytest

from raftwood.base.errors import InvalidName, NotFound, PermissionDenied
from raftwood.loghub.errors import ProjectNotFound, QuotaExceeded
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.loghub.server.access import check_role
from raftwood.loghub.settings import GatewaySettings
from raftwood.loghub.wire import (
    CreateLogstore,
    CreateProject,
    DeleteProject,
    GetLogstore,
    ListProjects,
    UpdateProject,
)
from tests.kits.loghub.streams import gateway_kit
from tests.kits.running import run


def test_a_key_may_do_what_its_role_in_a_project_says(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            admin = await kit.admin()
            for name in ("p", "q"):
                await gateway.control(admin, CreateProject(project=name))
            writer = await gateway.access.create({"p": AccessRole.WRITER})
            with pytest.raises(PermissionDenied, match="admin"):
                await gateway.control(writer, CreateLogstore(project="p", logstore="s"))
            await gateway.control(admin, CreateLogstore(project="p", logstore="s"))
            assert (await gateway.control(writer, GetLogstore(project="p", logstore="s"))).shards
            with pytest.raises(ProjectNotFound):
                await gateway.control(writer, GetLogstore(project="q", logstore="s"))
            listed = await gateway.control(writer, ListProjects())
            assert [each.name for each in listed.projects] == ["p"]
            assert (await gateway.control(admin, ListProjects())).total == 2
            local = await gateway.access.create({"r": AccessRole.ADMIN})
            for control in (CreateProject(project="r"), DeleteProject(project="p")):
                with pytest.raises((PermissionDenied, ProjectNotFound)):
                    await gateway.control(local, control)

    run(body())


def test_roles_everywhere_and_in_one_project_add_up(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            key = await gateway.access.create({"*": AccessRole.READER, "p": AccessRole.WRITER})
            check_role(key, "p", AccessRole.WRITER)
            check_role(key, "q", AccessRole.READER)
            with pytest.raises(PermissionDenied):
                check_role(key, "q", AccessRole.WRITER)
            with pytest.raises(InvalidName):
                await gateway.access.create({"../p": AccessRole.READER})

    run(body())


def test_a_revoked_key_is_gone_and_others_stay(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            gateway = await kit.gateway()
            one, two = await kit.admin(), await kit.admin()
            assert one.id != two.id
            assert one.secret != two.secret
            await gateway.access.revoke(one.id)
            assert gateway.access.key(one.id) is None
            assert [each.id for each in await gateway.access.keys()] == [two.id]
            with pytest.raises(NotFound):
                await gateway.access.revoke(one.id)

    run(body())


def test_a_project_that_puts_too_much_is_told_to_slow_down(tmp_path: Path) -> None:
    async def body() -> None:
        settings = GatewaySettings(write_bytes_per_s_max=1000)
        async with gateway_kit(tmp_path, settings=settings) as kit:
            gateway = await kit.gateway()
            admin = await kit.admin()
            await gateway.control(admin, CreateProject(project="p"))
            gateway.quotas.take("p", 100_000)
            with pytest.raises(QuotaExceeded, match="slow down"):
                gateway.quotas.take("p", 1)
            gateway.quotas.take("other", 10)
            assert gateway.quotas.refused == 1
            more = UpdateProject(project="p", write_bytes_per_s_max=1 << 40)
            await gateway.control(admin, more)
            gateway.quotas.take("q", 1)

    run(body())


def test_what_came_before_there_was_a_quota_is_not_owed(tmp_path: Path) -> None:
    async def body() -> None:
        settings = GatewaySettings(write_requests_per_s_max=1000)
        async with gateway_kit(tmp_path, settings=settings) as kit:
            gateway = await kit.gateway()
            admin = await kit.admin()
            await gateway.control(admin, CreateProject(project="p"))
            gateway.quotas.take("p", 1 << 40)
            await gateway.control(admin, UpdateProject(project="p", write_bytes_per_s_max=1000))
            await asyncio.sleep(0.01)
            gateway.quotas.take("p", 1)

    run(body())


def test_a_key_that_is_printed_keeps_its_secret() -> None:
    key = AccessKey(id="RWX", secret="hush", roles={"p": AccessRole.READER}, created_s=0)
    assert "hush" not in f"{key} {key!r}"
    assert "RWX" in repr(key)
