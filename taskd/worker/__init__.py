"""taskd's part of a training process: who it is, its link to the node's agent, and what it says about its progress."""
