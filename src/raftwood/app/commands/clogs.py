"""`raftwood clogs`: rings of log servers, and the clients that ship to them."""

from cyclopts import App

app = App(name="clogs", help_format="plaintext")
for name, (place, line) in {
    "ring": ("clogs_ring:app", "Show which server of a ring takes which file."),
    "config": ("clogs_config:app", "Show and change the configuration of a ring."),
    "status": ("clogs_status:app", "Show how a process that ships files is."),
}.items():
    # Loaded when they are called.
    app.command(f"raftwood.app.commands.{place}", name=name, help=line)
