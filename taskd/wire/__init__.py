"""The wire format of taskd's processes: messages to bytes and back (codec), and who may speak (keys)."""
