"""Starts taskd's manager. Run it on the host of rank 0, beside the launcher: `python manager.py &`."""

import os

from taskd.api import init_taskd_manager, start_taskd_manager

job_id = os.getenv("MINDX_TASK_ID")
node_nums = int(os.getenv("NODE_NUMS", "2"))  # how many nodes the job has
proc_per_node = int(os.getenv("PROC_PER_NODE", "2"))  # how many training processes run on each

init_taskd_manager({"job_id": job_id, "node_nums": node_nums, "proc_per_node": proc_per_node})
start_taskd_manager()
