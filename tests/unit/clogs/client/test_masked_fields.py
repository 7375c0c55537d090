"""What is beside a line leaves no more unmasked than the line itself."""

from raftwood.base.compression import Codec
from raftwood.clogs.client.backlog import Backlog
from raftwood.clogs.client.batch_builder import BatchEncoding, PendingLines
from raftwood.clogs.client.shipping_rules import ShippingLimits, ShippingRules
from raftwood.clogs.client.status import Counters
from raftwood.clogs.masking import Masking, built_in_rules
from raftwood.loghub.log_groups import decode_log_group
from tests.kits.clogs.ring import settings_of


def test_fields_beside_a_line_are_masked_too() -> None:
    masking = Masking(built_in_rules(["secrets"]))
    encoding = BatchEncoding(b"life", Codec.NONE, "host", (), masking.mask_lines)
    pending = PendingLines("a.log")
    pending.add([b"password=first"], 5, None)
    pending.add_records([b"plain"], [6], [{"level": "INFO", "url": "/login?token=second"}])
    pending.add_records([b"token=third"], [7], [{}])
    group = decode_log_group(encoding.batch(pending, bytes(16), 1).body)
    records = [{each.Key: each.Value for each in log.Contents} for log in group.Logs]
    assert [set(each) for each in records] == [
        {b"message"},
        {b"message", b"level", b"url"},
        {b"message"},
    ]
    assert records[1][b"level"] == b"INFO"
    stored = b" ".join(value for each in records for value in each.values())
    for secret in (b"first", b"second", b"third"):
        assert secret not in stored


def test_a_line_that_is_too_long_is_masked_before_it_is_cut() -> None:
    masking = Masking(built_in_rules(["cards"]))
    encoding = BatchEncoding(b"life", Codec.NONE, "host", (), masking.mask_lines)
    settings = settings_of(line_bytes_max=64)
    rules = ShippingRules(ShippingLimits(), lambda _: None)
    backlog = Backlog(settings, encoding, rules, Counters(), lambda _: None)
    backlog.take("a.log", [b"x" * 46 + b" 4111111111111111 and more"], time_ns=1, now=0.0)
    backlog.form_all()
    (entry,) = rules.entries()
    assert entry.batch is not None
    group = decode_log_group(entry.batch.body)
    (line,) = (each.Value for each in group.Logs[0].Contents)
    assert b"4111" not in line
    assert len(line) <= 64
