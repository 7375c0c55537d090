"""What can go wrong in clogs beside the errors of `base`."""

from raftwood.base.errors import Conflict, Unavailable


class PlaceMoved(Conflict):
    """A file's batches go elsewhere by now. Nothing was stored, nor ever will be in the place that
    was named under that sequence: ask where the file goes, and send the same again.
    """

    code = "clogs_place_moved"
    retriable = True


class OutOfOrder(Conflict):
    """A batch follows one that the receiver has not stored. Nothing was stored: send that one
    first, then this one again.
    """

    code = "clogs_out_of_order"
    retriable = True


class LinesDropped(Unavailable):
    """There was no room for lines that were not stored yet, and these were the oldest."""

    code = "clogs_lines_dropped"
    retriable = False
