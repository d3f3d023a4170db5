"""Messages to bytes and back (codec), and who may speak (keys): where taskd's processes agree on a format."""
