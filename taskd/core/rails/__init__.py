"""Rails: how the lines between nodes stand, which rail carries traffic, and what operators order."""
