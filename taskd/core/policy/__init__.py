"""The policy of a job: which fault may be repaired, how much of the job starts again with it, and how often."""
