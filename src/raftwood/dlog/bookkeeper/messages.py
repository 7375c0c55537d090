"""BookKeeper's protobuf messages, as far as a client needs them, described in place.

Names and numbers are BookKeeper's own: format 2 of the metadata contains the names as text.
Statuses and operations are plain numbers here, so that unknown ones are seen, not dropped.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE: Final = "raftwood.bookkeeper"
_KINDS: Final = {
    "int": _Field.TYPE_INT64,
    "bytes": _Field.TYPE_BYTES,
    "text": _Field.TYPE_STRING,
}
_MESSAGES: Final[dict[str, dict[str, tuple[int, str]]]] = {
    "Header": {"version": (1, "int"), "operation": (2, "int"), "txnId": (3, "int"),
               "priority": (4, "int")},
    "ReadRequest": {"flag": (100, "int"), "ledgerId": (1, "int"), "entryId": (2, "int"),
                    "masterKey": (3, "bytes"), "previousLAC": (4, "int"), "timeOut": (5, "int")},
    "AddRequest": {"flag": (100, "int"), "ledgerId": (1, "int"), "entryId": (2, "int"),
                   "masterKey": (3, "bytes"), "body": (4, "bytes")},
    "WriteLacRequest": {"ledgerId": (1, "int"), "lac": (2, "int"), "masterKey": (3, "bytes"),
                        "body": (4, "bytes")},
    "ReadLacRequest": {"ledgerId": (1, "int")},
    "StartTLSRequest": {},
    "Request": {"header": (1, "Header"), "readRequest": (100, "ReadRequest"),
                "addRequest": (101, "AddRequest"), "writeLacRequest": (103, "WriteLacRequest"),
                "readLacRequest": (104, "ReadLacRequest"),
                "startTLSRequest": (106, "StartTLSRequest")},
    "ReadResponse": {"status": (1, "int"), "ledgerId": (2, "int"), "entryId": (3, "int"),
                     "body": (4, "bytes"), "maxLAC": (5, "int")},
    "AddResponse": {"status": (1, "int"), "ledgerId": (2, "int"), "entryId": (3, "int")},
    "WriteLacResponse": {"status": (1, "int"), "ledgerId": (2, "int")},
    "ReadLacResponse": {"status": (1, "int"), "ledgerId": (2, "int"), "lacBody": (3, "bytes"),
                        "lastEntryBody": (4, "bytes")},
    "Response": {"header": (1, "Header"), "status": (2, "int"),
                 "readResponse": (100, "ReadResponse"), "addResponse": (101, "AddResponse"),
                 "writeLacResponse": (103, "WriteLacResponse"),
                 "readLacResponse": (104, "ReadLacResponse")},
    "Segment": {"ensembleMember": (1, "text*"), "firstEntryId": (2, "int")},
    "CustomMetadata": {"key": (1, "text"), "value": (2, "bytes")},
    "LedgerMetadata": {"quorumSize": (1, "int"), "ensembleSize": (2, "int"), "length": (3, "int"),
                       "lastEntryId": (4, "int"), "state": (5, "State"), "segment": (6, "Segment*"),
                       "digestType": (7, "DigestType"), "password": (8, "bytes"),
                       "ackQuorumSize": (9, "int"), "ctime": (10, "int"),
                       "customMetadata": (11, "CustomMetadata*"), "cToken": (12, "int")},
    "Endpoint": {"id": (1, "text"), "port": (2, "int"), "host": (3, "text"),
                 "protocol": (4, "text")},
    "BookieServiceInfo": {"endpoints": (6, "Endpoint*")},
}  # fmt: skip
_ENUMS: Final = {
    "State": {"OPEN": 1, "IN_RECOVERY": 2, "CLOSED": 3},
    "DigestType": {"CRC32": 1, "HMAC": 2, "CRC32C": 3, "DUMMY": 4},
}


def _describe() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="raftwood/bookkeeper.proto", package=_PACKAGE, syntax="proto2"
    )
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            of = kind.removesuffix("*")
            message.field.add(
                name=field,
                number=number,
                label=_Field.LABEL_REPEATED if kind.endswith("*") else _Field.LABEL_OPTIONAL,
                type=_KINDS.get(of, _Field.TYPE_ENUM if of in _ENUMS else _Field.TYPE_MESSAGE),
                type_name=None if of in _KINDS else f".{_PACKAGE}.{of}",
            )
    return file


_pool: Final = descriptor_pool.DescriptorPool()
_pool.Add(_describe())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


Request: Final = _message("Request")
Response: Final = _message("Response")
LedgerMetadataFormat: Final = _message("LedgerMetadata")
BookieServiceInfo: Final = _message("BookieServiceInfo")
