"""The unbounded log: a list of ledgers in a metastore, with one writer in the world.

Imports `ledgers` and `base`, and DLOG's `settings`. Start reading at `meta` and `writer_rules`,
then `log_writer` and `log_reader`; `dlogs` makes, opens, shrinks and ends logs.
"""
