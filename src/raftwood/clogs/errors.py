"""The errors of clogs beside those of `base`."""

from raftwood.base.errors import Conflict, Unavailable


class PlaceMoved(Conflict):
    """The file's batches now go to another place. The batch is not stored, and never will be at the
    named place under this sequence: ask where the file goes, and send the same batch again.
    """

    code = "clogs_place_moved"
    retriable = True


class OutOfOrder(Conflict):
    """A batch follows one that the receiver has not stored. It is not stored: send that one first,
    then this one again.
    """

    code = "clogs_out_of_order"
    retriable = True


class LinesDropped(Unavailable):
    """These lines were dropped: they were the oldest of the lines that were not stored yet."""

    code = "clogs_lines_dropped"
    retriable = False
