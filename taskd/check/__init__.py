"""The check of real nodes: what a probe measures on each, and how its answers reach the core that judges them."""
