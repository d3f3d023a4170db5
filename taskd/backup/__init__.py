"""Copies of records on other nodes: a rank needs them to go on when its node is lost."""
