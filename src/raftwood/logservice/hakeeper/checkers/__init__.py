"""Checkers: what HAKeeper's leader orders, decided each tick from the state alone.

Nothing is remembered between two plans but what the state holds: what was lost, refused or
overtaken is seen and planned anew. Start reading at `planner`, then `planning` and `membership`.
"""
