"""The numbers of all RPC methods, in one table: a number on the wire means one method for ever.

A new method takes the next number of its group; a number that was released is never used again.
0 to 15 are free for tests and examples. Processes of release 0.1.0 know all numbers except those
marked as newer: a server answers an unknown number with `NotFound`.
"""

from enum import IntEnum


class MethodNumber(IntEnum):
    """Number → method; its name in lower case, with hyphens, is the method's name."""

    # raft: stores among themselves
    RAFT_FRAME = 16
    INTRODUCE = 17
    PING = 18
    SLEEP = 19
    SNAPSHOT_OFFER = 20
    SNAPSHOT_PIECE = 21
    SNAPSHOT_END = 22
    REMOVED = 23
    ASK_MEMBERSHIP = 24
    REPAIR = 25
    LOG_ENDS = 26  # newer than 0.1.0
    GROUP_BEGUN = 27  # newer than 0.1.0
    # raft: clients and operators of groups
    RAFT_PROPOSE = 32
    RAFT_READ = 33
    RAFT_REGISTER = 34
    RAFT_GROUPS = 35
    RAFT_STATUS = 36
    RAFT_CHANGE_MEMBERS = 37
    RAFT_TRANSFER = 38
    RAFT_SNAPSHOT = 39
    RAFT_RENEW = 40  # newer than 0.1.0
    RAFT_HEARTBEAT = 41  # newer than 0.1.0
    # a store as a process
    STORE_DESCRIBE = 64
    STORE_METRICS = 65
    # log service
    LOG_APPEND = 80
    LOG_READ = 81
    LOG_UPDATE = 82
    LOG_INFO = 83
    LOG_CONNECT = 84
    LOG_LOCATE = 85
    STORE_HEARTBEAT = 86
    SERVICE_HEARTBEAT = 87
    KEEPER_COMMAND = 88
    KEEPER_QUERY = 89
    ALLOCATE_IDS = 90
    ORDERS_WAIT = 91
    # LogHub: native clients of a gateway
    LOGHUB_PUT = 110
    LOGHUB_PULL = 111
    LOGHUB_SHARDS = 112
    LOGHUB_CURSOR = 113
    LOGHUB_DESCRIBE = 114
    LOGHUB_CONTROL = 115
    # bookies
    BOOKIE_ADD = 128
    BOOKIE_READ = 129
    BOOKIE_FENCE = 130
    BOOKIE_LAST_CONFIRMED = 131
    BOOKIE_WAIT = 132
    BOOKIE_PUBLISH = 133
    # DLOG: gateways among themselves, on ports of their own. Release 0.1.0 gave them numbers of
    # bookies; no server has both.
    DLOG_APPEND = 130
    DLOG_TAIL = 131
    DLOG_SEAL = 132
    # Zeppelin: nodes among themselves, and their operators
    KV_TRY_SYNC = 140
    KV_RECORDS = 141
    KV_ACK = 142
    KV_REPAIR_KEYS = 143
    KV_FULL_SYNC = 144
    KV_STATUS = 145
    # receivers of clogs
    CLOGS_STORE = 150
    CLOGS_PING = 151
    CLOGS_CONFIGURATION = 152
