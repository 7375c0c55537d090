"""Redis's protocol on the server's side: `requests` parses what clients send, `answers` encodes."""
