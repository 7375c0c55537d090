"""What all senders of batches share: batches in order, each once, one in doubt at a time.

A sender has *lanes*: a file of clogs' shipper, a shard of LogHub's producer or of the Spark sink, a
captured partition. A lane's batches have one producer's name and sequences without a gap. The log
stores each of them once, so a batch in doubt is sent again as it was, under its sequence, and no
batch behind it is stored before. What a batch is and how it is routed is each sender's own; its
rules do no I/O. The parts that they share stand here:

- `deliveries`: what a sender gives back for what it took: to be awaited, or waited for in a thread.
- `pump`: gives the rules their turn after an event, and when time has come.
- `lanes`: failures in a row and the next attempt; which errors leave a batch in doubt; who takes
  over from a log that has ended.

May import `base` alone. Start reading at `deliveries`.
"""
