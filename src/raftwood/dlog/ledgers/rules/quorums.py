"""The arithmetic of quorums; places of an ensemble are bits of a number."""

from raftwood.dlog.ledgers.model import LedgerConfig


def write_sets(config: LedgerConfig) -> tuple[int, ...]:
    """By entry modulo the ensemble: the places that an entry goes to."""
    return tuple(
        sum(1 << place for place in config.places(start)) for start in range(config.ensemble)
    )


def is_covered(config: LedgerConfig, places: int) -> bool:
    """Whether no entry can be acked without one of the places.

    Fencing these is enough, and nothing that was acked is unknown to all of them.
    """
    return all(
        (members & ~places).bit_count() < config.ack_quorum for members in write_sets(config)
    )


def is_enough(config: LedgerConfig, places: int) -> bool:
    """Whether every entry can be acked by the places alone."""
    return all(
        (members & places).bit_count() >= config.ack_quorum for members in write_sets(config)
    )


def misses_needed(config: LedgerConfig) -> int:
    """So many bookies without the entry leave too few for an ack: it never was acked."""
    return config.write_quorum - config.ack_quorum + 1
