"""The unbounded log: a list of ledgers in a metastore, with one writer in the world.

Start reading at `dlogs` (make and open logs), `meta` (what a log is), `rules/writer_rules` (who may
write, without I/O), then `log_writer` and `log_reader`; `messages` and `entries` are the bytes. It
doesn't matter here which store the ledgers are in, nor which metastore the records.
"""
