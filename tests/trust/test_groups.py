"""Process groups that a script makes while it trains. All ranks have the same groups after any death.

Failure modes: a rank dies while others wait for it in `new_group`; in a step that is given up, some ranks had come
further than others; a newcomer has made the groups of one step, and the others those of many steps; a group was made
once and is kept, and the newcomer alone asks for it again, or never does.
"""

from __future__ import annotations

import pytest

from tests.trust.test_trust import Run, calm, check_healed
from tests.trust.test_trust import run as run  # a fixture

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("place", ["before", "made", "used", "backward"])
@pytest.mark.parametrize("at", ["1", "4"])
@pytest.mark.parametrize("kind", ["each", "kept"])
def test_a_group_that_is_made_in_a_step_is_the_same_on_all_ranks(run: Run, kind: str, place: str, at: str) -> None:
    check_healed(run("groups", f"{kind}, {place}", at), calm(run, "groups", kind))


@pytest.mark.parametrize("place", ["before", "made", "used", "backward"])
@pytest.mark.parametrize("at", ["2", "3", "4"])
def test_a_group_that_is_made_late_is_the_newcomers_too(run: Run, place: str, at: str) -> None:
    check_healed(run("groups", f"late, {place}", at), calm(run, "groups", "late"))


@pytest.mark.parametrize("place", ["used", "backward"])
@pytest.mark.parametrize("at", ["1", "4"])
def test_a_group_may_be_made_outside_of_the_step(run: Run, place: str, at: str) -> None:
    check_healed(run("groups", f"outside, {place}", at), calm(run, "groups", "outside"))
