"""Which server a file goes to: consistent hashing, exactly as twemproxy does it."""
