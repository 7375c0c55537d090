"""Ways into LogHub that clients of others speak: a module for each protocol.

Each decodes a batch once, to sections of `records`, and puts them. Start reading at `records`, then
`json_lines`; `http_way` is what those over HTTP share, `socket_server` what those on ports of their
own share.
"""
