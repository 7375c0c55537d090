"""SLS's protobuf messages: producers encode LogGroups, readers decode them.

Keys and values are bytes here, because they may hold anything; on the wire they are the same as the
strings of SLS's own definition. The messages are described in place, without generated files.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from raftwood.base.errors import InvalidInput
from raftwood.base.files import Buffer

_Field = descriptor_pb2.FieldDescriptorProto
_REQUIRED, _OPTIONAL, _REPEATED = (
    _Field.LABEL_REQUIRED,
    _Field.LABEL_OPTIONAL,
    _Field.LABEL_REPEATED,
)
_BYTES, _UINT32, _FIXED32, _MESSAGE = (
    _Field.TYPE_BYTES,
    _Field.TYPE_UINT32,
    _Field.TYPE_FIXED32,
    _Field.TYPE_MESSAGE,
)
_PACKAGE: Final = "raftwood.loghub"


def _describe() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="raftwood/loghub/log_groups.proto", package=_PACKAGE, syntax="proto2"
    )

    def add(owner: descriptor_pb2.DescriptorProto, *fields: tuple[Any, ...]) -> None:
        for name, number, label, kind, *type_name in fields:
            owner.field.add(
                name=name,
                number=number,
                label=label,
                type=kind,
                type_name=f".{_PACKAGE}.{type_name[0]}" if type_name else None,
            )

    pair = (("Key", 1, _REQUIRED, _BYTES), ("Value", 2, _REQUIRED, _BYTES))
    log = file.message_type.add(name="Log")
    add(log.nested_type.add(name="Content"), *pair)
    add(
        log,
        ("Time", 1, _REQUIRED, _UINT32),
        ("Contents", 2, _REPEATED, _MESSAGE, "Log.Content"),
        ("Time_ns", 4, _OPTIONAL, _FIXED32),
    )
    add(file.message_type.add(name="LogTag"), *pair)
    add(
        file.message_type.add(name="LogGroup"),
        ("Logs", 1, _REPEATED, _MESSAGE, "Log"),
        ("Reserved", 2, _OPTIONAL, _BYTES),
        ("Topic", 3, _OPTIONAL, _BYTES),
        ("Source", 4, _OPTIONAL, _BYTES),
        ("MachineUUID", 5, _OPTIONAL, _BYTES),
        ("LogTags", 6, _REPEATED, _MESSAGE, "LogTag"),
    )
    add(
        file.message_type.add(name="LogGroupList"),
        ("LogGroups", 1, _REPEATED, _MESSAGE, "LogGroup"),
    )
    return file


_pool: Final = descriptor_pool.DescriptorPool()
_pool.Add(_describe())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


Log: Final = _message("Log")
LogGroup: Final = _message("LogGroup")
LogGroupList: Final = _message("LogGroupList")


def decode_log_group(data: Buffer) -> Any:
    """Decodes a `LogGroup`; `InvalidInput` if the bytes are not one."""
    try:
        group = LogGroup.FromString(bytes(data))
    except DecodeError as error:
        raise InvalidInput("the body is no LogGroup: encode it as SLS does") from error
    # Serializing would find this as well, and faster; but its error lists all missing fields, and a
    # hostile message can make that list gigabytes long.
    if not group.IsInitialized():
        raise InvalidInput("the LogGroup lacks a required field: give each log a time")
    return group
