"""The pure core: what taskd knows and what it decides. No clock, no random, no thread, no socket, no log lives here."""
