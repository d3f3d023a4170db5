"""Shows on the devices of one machine what taskd does: groups made anew in a living process, ranks killed and healed.

On a GPU it shows this for NCCL, and for gloo with tensors on the GPU. Without a GPU the same code runs on the CPU. NCCL
wants a device for each rank. Where there are fewer, each rank says that it is on a host of its own; then NCCL takes
them over sockets. It prints how long each part took. The exit code is 0 only if every run ended with the weights of
the undisturbed run.

The functions `train` and `make_anew` run in the processes that it starts: this file is a training script, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from tiny_gpt import TextWindows, TinyGPT, weights_hash
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import taskd

RANKS = 2
SIZES = {"cuda": (512, 8), "cpu": (64, 2)}
"""Width and layers of the model on each type of device."""
ALONE = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "GLOO_SOCKET_IFNAME": "lo"}
SAME_BITS = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "OMP_NUM_THREADS": "1"}


def device_of(backend: str, local_rank: int) -> torch.device:
    """The device of a rank, which becomes the current one. Ranks share devices if there are too few."""
    if "cuda" not in backend and os.environ["PROOF_DEVICE"] == "cpu":
        return torch.device("cpu")
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count():
        os.environ["NCCL_HOSTID"] = f"rank-{local_rank}"
    device = torch.device("cuda", local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def train(backend: str, steps: int, until: Path) -> None:
    """One rank of the job: trains, says where it is, and waits at the end until `until` exists."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    device = device_of(backend, int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    rank = dist.get_rank()
    data = TextWindows(1, context=64, count=steps * 8 * dist.get_world_size())
    loader = DataLoader(data, batch_sampler=taskd.StepSampler(data, 8, seed=1))
    model = DistributedDataParallel(TinyGPT(*SIZES[device.type]).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1_000 + rank)  # from here on, each rank draws its own dropout

    session = taskd.session()
    session.register(model=model, optimizer=optimizer)
    began = time.perf_counter()
    for step in session.steps(loader):
        with step as (tokens, answers):
            if step.number % 20 == 0:
                sys.stdout.write(f"rank {rank} pid {os.getpid()} step {step.number} begins\n")
                sys.stdout.flush()
            optimizer.zero_grad()
            loss = model(tokens.to(device), answers.to(device))
            loss.backward()
            optimizer.step()
    milliseconds = (time.perf_counter() - began) * 1e3
    if rank == 0:
        sys.stdout.write(f"weights {weights_hash(model.module)} took {milliseconds:.0f}\n")
        sys.stdout.flush()
    while not until.exists():
        time.sleep(0.05)  # the parent asks the manager; this script knows no event for that
    dist.destroy_process_group()


def make_anew(backend: str, times: int) -> None:
    """One process: its groups are aborted and made anew under the same model. Prints how long each of them took."""
    from taskd import _c10d
    from taskd.comm import guard

    device = device_of(backend, 0)
    guard.install()
    store = dist.HashStore()
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(1024, 1024).to(device))

    def total() -> float:
        model.zero_grad()
        model(torch.ones(4, 1024, device=device)).sum().backward()
        return float(model.module.weight.grad.sum().item())

    wanted, ended, made, first = total(), [], [], []
    for epoch in range(1, times + 1):
        _c10d.control.drain(epoch)
        began = time.perf_counter()
        guard.end_inner_groups(epoch, "a repair", on_devices_alone=False)
        aborted = time.perf_counter()
        guard.rebuild(epoch, dist.PrefixStore("anew", store))
        _c10d.control.resume(epoch)
        rebuilt = time.perf_counter()
        if total() != wanted:
            sys.exit("a group that was made anew computes something else")
        ended.append((aborted - began) * 1e3)
        made.append((rebuilt - aborted) * 1e3)
        first.append((time.perf_counter() - rebuilt) * 1e3)
    dist.destroy_process_group()
    print(json.dumps({"abort": median(ended), "make anew": median(made), "first step": median(first)}))


class Run:
    """One job under taskd-run, and which of its ranks are killed when."""

    def __init__(self, backend: str, device: str, steps: int, kills: list[tuple[int, int]]) -> None:
        self.steps, self.kills = steps, list(kills)
        self.lines: list[str] = []
        self.weights, self.took_ms = "", 0
        self.incidents: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(prefix="taskd-proof-") as directory:
            until = Path(directory) / "until"
            self.environment = os.environ | ALONE | SAME_BITS
            self.environment |= {"TASKD_RUN_DIR": directory, "TASKD_JOB_ID": "proof", "PROOF_DEVICE": device}
            command = [sys.executable, "-m", "taskd.run", "--standalone", "--nproc-per-node", str(RANKS), __file__]
            command += ["--train", backend, "--steps", str(steps), "--until", str(until)]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment
            ) as launcher:
                assert launcher.stdout is not None
                for line in launcher.stdout:
                    self._read(line.rstrip(), until)
            self.code = launcher.returncode

    def _read(self, line: str, until: Path) -> None:
        self.lines.append(line)
        if end := re.search(r"weights (\w+) took (\d+)", line):
            self.weights, self.took_ms = end[1], int(end[2])
            self.incidents = self._ask()
            until.touch()
        for rank, pid, step in re.findall(r"rank (\d+) pid (\d+) step (\d+) begins", line):
            if self.kills and (int(step), int(rank)) == self.kills[0]:
                self.kills.pop(0)
                time.sleep(0.03 * len(self.kills))  # so that each kill comes at another moment of a step
                os.kill(int(pid), signal.SIGKILL)

    def _ask(self) -> list[dict[str, Any]]:
        command = [sys.executable, "-m", "taskd", "incidents", "--json"]
        answer = subprocess.run(command, capture_output=True, text=True, env=self.environment, check=False).stdout
        return list(json.loads(answer)["incidents"]) if answer else []

    def tail(self) -> str:
        """The last lines of what it printed."""
        return "".join(f"\n    {line}" for line in self.lines[-40:])

    def healed(self) -> int:
        """How many of its incidents were healed in place."""
        return sum(one["outcome"] == "healed" for one in self.incidents)


def prove(backend: str, device: str, steps: int) -> bool:
    """Run a job undisturbed and disturbed. Return whether both ended with the same weights after a heal in place."""
    undisturbed = Run(backend, device, steps, [])
    kills = [(steps * part // 5 // 20 * 20, part % RANKS) for part in range(1, 5)]
    disturbed = Run(backend, device, steps, kills)
    for run in (undisturbed, disturbed):
        if run.code != 0 or not run.weights:
            print(f"{backend}: the job failed with exit code {run.code}; its last lines:{run.tail()}")
            return False
    same = undisturbed.weights == disturbed.weights
    print(f"{backend}: {steps} steps on {device} in {undisturbed.took_ms} ms; then with {len(kills)} kills:")
    for incident in disturbed.incidents:
        phases = ", ".join(f"{phase['name']} {phase['ms']} ms" for phase in incident["phases"])
        print(f"  {incident['outcome']} in {incident['duration_ms']} ms: {incident['reason']} ({phases})")
    if disturbed.healed() != len(kills):
        print(f"  not every kill was healed in place; the job's last lines:{disturbed.tail()}")
    print(f"  weights identical: {'yes' if same else 'no'}")
    return same and disturbed.healed() == len(kills)


def prove_anew(backend: str, device: str) -> bool:
    """Print how long it takes to make the groups of one process anew."""
    command = [sys.executable, __file__, "--anew", backend]
    environment = os.environ | ALONE | SAME_BITS | {"PROOF_DEVICE": device}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if ran.returncode != 0:
        print(f"{backend}: groups could not be made anew in one process:\n{ran.stdout}{ran.stderr}")
        return False
    times = ", ".join(f"{name} {took:.2f} ms" for name, took in json.loads(ran.stdout.splitlines()[-1]).items())
    print(f"{backend}: groups of a living process: {times} (median)")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--train", metavar="BACKEND", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--anew", metavar="BACKEND", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.steps, arguments.until)
        return 0
    if arguments.anew:
        make_anew(arguments.anew, 20)
        return 0
    print(f"torch {torch.__version__}, {device_words(arguments.device)}", flush=True)
    backends = ["gloo"] if arguments.device == "cpu" else ["cpu:gloo,cuda:nccl", "nccl", "gloo"]
    if arguments.device == "cpu":
        print("left out: NCCL, and gloo with tensors on a GPU (torch sees no GPU, or --device says so)")
    proved = [prove_anew(backends[0], arguments.device)]
    proved += [prove(backend, arguments.device, arguments.steps) for backend in backends]
    return 0 if all(proved) else 1


def device_words(device: str) -> str:
    """The name of the device, and the versions of what drives it."""
    if device == "cpu":
        return "on the CPU"
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, CUDA {torch.version.cuda}, NCCL {nccl}"


if __name__ == "__main__":
    sys.exit(main())
