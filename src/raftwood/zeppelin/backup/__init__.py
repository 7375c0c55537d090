"""A table in a folder or an object store, and a table from there again.

`backup_format` says what is in the folder, `backing_up` writes it partition by partition from
checkpoints, `restoring` reads it back, `backup_folder` is the way to the files. They are a client's
work: nothing of it runs on a node.
"""
