"""What all senders of batches share: batches in order, each once, one in doubt at a time.

A sender has *lanes*: a file of clogs' shipper, a shard of LogHub's producer or of the Spark sink, a
captured partition. A lane's batches have one producer's name and sequences without a gap. The log
stores each of them once, so a batch in doubt is sent again as it was, under its sequence, and no
batch behind it is stored before. Each sender decides itself what a batch is and how to route it;
its rules do no I/O. This package holds what the senders share:

- `deliveries`: what a sender returns for a record or a batch; the caller awaits it, or waits for it
in a thread.
- `pump`: runs the rules after an event, and when a time is due.
- `lanes`: counts failures in a row and schedules the next attempt; lists the errors that leave a
batch in doubt; finds the successor of a log that has ended.

May import `base` alone. Start reading at `deliveries`.
"""
