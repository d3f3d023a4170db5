"""The launcher of one node (`taskd-run`): it starts, watches and ends its workers, and runs the job's manager."""
