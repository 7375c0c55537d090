"""Jobs on streams: what runs again and again, told in a TOML file or subclassed in Python.

Each is a class of its own: `transform`, `aggregate`, `sessionize`, `archive`, `replay`, `backfill`.
Start reading at `job`, then `streaming_job`; `pipeline_file` makes jobs of a file, and
`running` runs them.
"""
