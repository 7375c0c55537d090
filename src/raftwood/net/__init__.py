"""Framing and RPC between processes."""
