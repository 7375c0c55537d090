"""`Backfill`: what a stream ever had of a time range, from its archive and its log, once more."""

from raftwood.pipeline.jobs.replay import Replay, ReplayOptions


class BackfillOptions(ReplayOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As of a replay."""

    archive: str
    """The archive's folder, or where it is in an object store."""


class Backfill(Replay):
    """History and tail have one space of positions, so that one query reads both."""

    kind = "backfill"
    options_type = BackfillOptions
    options: BackfillOptions

    def source_options(self) -> dict[str, str]:
        return {**super().source_options(), "archive": self.place(self.options.archive)}
