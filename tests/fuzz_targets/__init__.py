"""All parsers of outside bytes, each with the valid inputs that a mutator starts from."""

from collections.abc import Callable, Sequence

from tests.fuzz_targets import (
    bookkeeper,
    configuration,
    frames,
    hakeeper,
    log_shards,
    meta_commands,
    meta_snapshots,
    metastore,
    raft_frames,
    segments,
    sessions,
    snapshots,
    stamp,
    ways_in,
)

Target = tuple[Callable[[bytes], object], Sequence[bytes]]

TARGETS: dict[str, Target] = {
    "BookKeeper answers": (bookkeeper.response_target, bookkeeper.response_seeds()),
    "BookKeeper metadata": (bookkeeper.metadata_target, bookkeeper.metadata_seeds()),
    "configuration": (configuration.target, configuration.seeds()),
    "errors": (frames.error_target, frames.error_seeds()),
    "frames": (frames.target, frames.seeds()),
    "hakeeper commands": (hakeeper.command_target, hakeeper.command_seeds()),
    "hakeeper snapshots": (hakeeper.snapshot_target, hakeeper.snapshot_seeds()),
    "hello": (frames.hello_target, frames.hello_seeds()),
    "log flushes": (segments.flush_target, segments.flush_seeds()),
    "log records": (segments.record_target, segments.record_seeds()),
    "log segment header": (segments.header_target, segments.header_seeds()),
    "log shard answers": (log_shards.answer_target, log_shards.answer_seeds()),
    "log shard appends": (log_shards.append_target, log_shards.append_seeds()),
    "log shard entries": (log_shards.entry_target, log_shards.entry_seeds()),
    "log shard reads": (log_shards.records_target, log_shards.records_seeds()),
    "log shard snapshots": (log_shards.snapshot_target, log_shards.snapshot_seeds()),
    "metastore commands": (meta_commands.target, meta_commands.seeds()),
    "metastore entries": (meta_snapshots.entry_target, meta_snapshots.entry_seeds()),
    "metastore snapshots": (meta_snapshots.snapshot_target, meta_snapshots.snapshot_seeds()),
    "metastore": (metastore.target, metastore.seeds()),
    "raft control entries": (sessions.entry_target, sessions.entry_seeds()),
    "raft frames": (raft_frames.target, raft_frames.seeds()),
    "session tables": (sessions.table_target, sessions.table_seeds()),
    "snapshots": (snapshots.target, snapshots.seeds()),
    "store stamp": (stamp.target, stamp.seeds()),
    "way in Elasticsearch": (ways_in.bulk_target, ways_in.bulk_seeds()),
    "way in Fluent": (ways_in.fluent_target, ways_in.fluent_seeds()),
    "way in JSON lines": (ways_in.lines_target, ways_in.lines_seeds()),
    "way in Loki": (ways_in.loki_protobuf_target, ways_in.loki_protobuf_seeds()),
    "way in Loki JSON": (ways_in.loki_json_target, ways_in.loki_json_seeds()),
    "way in OTLP": (ways_in.otlp_target, ways_in.otlp_seeds()),
    "way in OTLP JSON": (ways_in.otlp_json_target, ways_in.otlp_json_seeds()),
    "way in syslog": (ways_in.syslog_target, ways_in.syslog_seeds()),
}
