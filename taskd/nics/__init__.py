"""The network interfaces (NICs) of a node: which of them are rails."""
