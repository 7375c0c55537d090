"""One file per command; each has an `app` that `command_line` loads when it is called."""
