"""Tests that start a Spark of their own. The other ones share one."""
