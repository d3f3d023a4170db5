"""The launcher of one node (`taskd-run`): where its workers come from, what becomes of them, and the job's manager."""
