"""A gateway: the server side of LogHub, over RPC and over HTTP."""
