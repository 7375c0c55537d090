"""How long a master may go on without the meta server. No I/O."""


class Lease:
    """One node's; it counts from the moment that the question was sent which the server answered.

    The server waits longer than that before it makes another node master. It has to be of a
    topology that this node has applied: else it may be master of less than it believes.
    """

    def __init__(self) -> None:
        self.until_ns = 0

    def renew(self, *, asked_ns: int, length_ns: int) -> None:
        self.until_ns = max(self.until_ns, asked_ns + length_ns)

    def is_on(self, now_ns: int) -> bool:
        return now_ns < self.until_ns
