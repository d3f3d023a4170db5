"""taskd leaves alone what it does not understand, and says so once. Each job ends as it does without taskd.

Each kind trains twice undisturbed, with a session and in a plain loop, and once with a death. The death is healed, or
all start over for the reason that was given when the loop began. The weights are the same in all runs.
"""

from __future__ import annotations

import pytest

from tests.trust.test_trust import Run, check_healed, check_started_over
from tests.trust.test_trust import run as run  # a fixture
from tests.verdicts import same_bits

pytestmark = pytest.mark.slow
KINDS = {
    "delegating": "",
    "lazy": "does not understand what steps have left (ValueError: Attempted to use an uninitialized parameter",
    "parametrized": "",
    "tied": "",
    "named": "does not understand the registered objects (TypeError",
    "trap": "",
    "hollow": "taskd does not understand optimizer, a Hollow (AttributeError",
    "subclass": "first.weight is a Wrapped, a tensor of its own kind, which taskd does not copy",
    "closed": "does not understand the registered objects (RuntimeError: its state is elsewhere)",
    "uncopied": "does not understand what a step begins with (RuntimeError: there is one of it)",
    "meta": "unused is on the meta device, which taskd does not copy",
    "sparse": "mask is sparse, which taskd does not copy",
    "quantized": "table is quantized, which taskd does not copy",
    "nested_batch": "",
    "jagged_batch": "",
    "nested": "rows is nested, which taskd does not copy",
    "uneven": "the model is sharded (model.0.weight is a DTensor)",
}
"""What taskd says about each kind. If it says nothing, a death is healed."""


@pytest.mark.parametrize("kind", [*KINDS])
def test_a_job_with_what_is_not_understood_ends_as_it_does_without_taskd(run: Run, kind: str) -> None:
    plain = run("kinds", f"{kind}, plain", "-1")
    assert len(plain.said("weights")) == 2, plain.text
    calm = run("kinds", kind, "-1")
    same_bits(sorted(calm.said("weights")), sorted(plain.said("weights")), calm.text)
    said = [line for line in calm.lines if line.startswith("taskd[rank 0]: ") and "starts over" in line]
    assert len(said) == bool(KINDS[kind]) and KINDS[kind] in "".join(said), calm.text
    job = run("kinds", f"{kind}, backward", "3")
    if KINDS[kind]:
        check_started_over(job, sorted(plain.said("weights")), KINDS[kind])
    else:
        check_healed(job, sorted(plain.said("weights")))
