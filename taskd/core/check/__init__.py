"""The check of nodes: which nodes test each other, and what follows for nodes, links and rails from what they see."""
