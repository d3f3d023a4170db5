"""The network interfaces (NICs) of a node, and which of them are rails."""
