"""What a slave takes, and from whom."""

from raftwood.zeppelin.model import NodeId
from raftwood.zeppelin.records import BinlogRecord, KeyWrite
from raftwood.zeppelin.replication.slave import ReceiverRules, RecordVerdict, as_arrived

MASTER, OTHER = NodeId("m"), NodeId("o")


def rules() -> ReceiverRules:
    made = ReceiverRules(master=MASTER)
    made.propose(101, epoch=3, last=10)
    return made


def test_only_the_current_master_is_heard_and_only_in_the_latest_session() -> None:
    slave = rules()
    assert slave.hears(source=MASTER, session=101)
    assert not slave.hears(source=OTHER, session=101)
    slave.propose(102, epoch=3, last=10)
    assert not slave.hears(source=MASTER, session=101)
    slave.follow(OTHER)
    assert not slave.hears(source=MASTER, session=102)
    assert not slave.hears(source=OTHER, session=102)


def test_records_are_taken_in_exact_sequence_and_those_that_are_there_are_known() -> None:
    slave = rules()
    assert slave.judge(BinlogRecord(3, 10, ())) is RecordVerdict.KNOWN
    assert slave.judge(BinlogRecord(3, 11, ())) is RecordVerdict.TAKE
    assert slave.judge(BinlogRecord(3, 11, ())) is RecordVerdict.KNOWN
    assert slave.judge(BinlogRecord(5, 12, ())) is RecordVerdict.TAKE
    assert slave.judge(BinlogRecord(5, 14, ())) is RecordVerdict.RESYNC
    assert slave.session == 0


def test_an_epoch_below_the_last_one_is_no_continuation() -> None:
    slave = rules()
    assert slave.judge(BinlogRecord(2, 11, ())) is RecordVerdict.RESYNC


def test_a_write_that_has_expired_on_arrival_deletes_and_others_stay() -> None:
    record = BinlogRecord(
        1, 1, (KeyWrite(b"a", b"1", 100), KeyWrite(b"b", b"2", 300), KeyWrite(b"c", b"3"))
    )
    assert as_arrived(record, now_ms=99) is record
    assert as_arrived(record, now_ms=100).writes == (
        KeyWrite(b"a", None),
        KeyWrite(b"b", b"2", 300),
        KeyWrite(b"c", b"3"),
    )
