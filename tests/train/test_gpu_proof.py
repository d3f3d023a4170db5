"""Runs samples/gpu_proof.py without a GPU: the same code over gloo on the CPU, and what is left out is said."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def test_the_proof_runs_on_the_cpu() -> None:
    command = [sys.executable, "samples/gpu_proof.py", "--device", "cpu", "--steps", "160"]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=2 * PATIENCE_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "left out: NCCL" in ran.stdout and "weights identical: yes" in ran.stdout, ran.stdout
    assert ran.stdout.count("healed in ") == 4, ran.stdout
