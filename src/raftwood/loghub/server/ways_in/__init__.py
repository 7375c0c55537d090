"""Protocols of other systems that lead into LogHub: a module for each protocol.

Each decodes a batch once, to sections of `records`, and puts them. Start reading at `records`, then
`json_lines`; `http_way` is shared by those over HTTP, `socket_server` by those on ports of their
own.
"""
