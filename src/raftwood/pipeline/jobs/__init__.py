"""Jobs on streams: repeated work, described in a TOML file or subclassed in Python.

Start reading at `job`, then `query`; `pipeline_file` makes jobs of a file, and `runner` runs them.
"""
