"""Who holds a copy of what: capturing, recording, moving and checking the state of a training process."""
