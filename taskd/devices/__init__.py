"""What the devices of a node (GPUs, NPUs) report: asked of their libraries, in a process of its own."""
