"""The front of a gateway's HTTP port: what all ways in over HTTP share.

Start reading at `front`; a way in is a `RouteGroup` of `routes`.
"""
