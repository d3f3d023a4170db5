"""Copies of records on other nodes: what a rank cannot go on without when its node is lost."""
