"""The proof that all ranks hold the same state: what is compared when, what differs, and what follows."""
