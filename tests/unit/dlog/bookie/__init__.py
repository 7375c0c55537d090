"""Bookies of our own: one suite on local and on remote ones, storage, metadata, membership."""
