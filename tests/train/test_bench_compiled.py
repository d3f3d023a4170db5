"""The benchmark of compiled models: it measures what it says, and says what it could not measure.

These tests do not ask whether a figure is good.
"""

from __future__ import annotations

import pytest

from taskd.bench import compiled
from taskd.bench.job import Broken
from taskd.bench.recovery import PHASES


def names_of(model: str) -> set[str]:
    """Return the names of the figures of one model."""
    times = {f"{model}_{side}_{what}ms" for side in compiled.SIDES for what in ("", *(f"{one}_" for one in PHASES))}
    return {f"{model}_ratio", *times}


def test_all_figures_are_there_whatever_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise Broken("it broke")

    monkeypatch.setattr(compiled, "Job", broken)
    figures = compiled.measure()
    assert set(figures) == {"weights_identical_share"} | set.union(*map(names_of, compiled.MODELS))
    assert all(figures[f"{model}_ratio"].value is None for model in compiled.MODELS), figures
    assert all(figures[f"{model}_ratio"].reason == "it broke" for model in compiled.MODELS), figures
    assert figures["weights_identical_share"].value == 0


def test_the_ratio_is_that_of_the_medians() -> None:
    model = compiled._Model(seconds={"plain": [1.0, 2.0, 4.0], "compiled": [2.0, 6.0, 9.0]})
    figure = model.figures("layers")["layers_ratio"]
    assert figure.value == 3 and list(figure.runs) == [2, 3, 2.25]


@pytest.mark.slow
def test_two_jobs_are_killed_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FAULTS", 1), ("WORDS", (32, 1, 60_000)), ("MODELS", ("attention",))):
        monkeypatch.setattr(compiled, name, value)
    figures = compiled.measure()
    assert set(figures) == {"weights_identical_share"} | names_of("attention")
    assert all(figure.value is not None and not figure.reason for figure in figures.values()), figures
    assert figures["weights_identical_share"].value == 1
    assert len(figures["attention_ratio"].runs) == 1
