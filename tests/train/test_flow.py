"""What a loop hands on from one step to the next: read from sources as people write them."""

from __future__ import annotations

import pytest

from tests.train.test_counters import found_in


def handed_on(body: str) -> tuple[set[str], set[str]]:
    """Names that are handed on, and those among them that are used."""
    counts, doubtful, others, used = found_in(body)
    all_names = {name for one in (counts, doubtful, others) for name in (*one.local, *one.attributes, *one.module)}
    return all_names, {name for _, name in used}


@pytest.mark.parametrize(
    ("body", "names", "used"),
    [
        ("other, n = self.model(step, n)", "n", "n"),  # a hidden state
        ("n = tuple(one.detach() for one in n)\nother, n = self.model(step, n)", "n", "n"),
        ("running = 0.9 * running + 0.1 * step.loss()", "running", ""),
        ("running = 0.9 * running + 0.1 * step.loss()\n(step.loss() / running).backward()", "running", "running"),
        ("(step.loss() / running).backward()\nrunning = 0.9 * running + 0.1 * step.loss()", "running", "running"),
        ("running += step.loss()\nprint(running)", "running", ""),
        ("print(other)\nother = step.loss()", "", ""),
        ("if other is not None and step.loss() > other:\n    step.skip()\nother = step.loss()", "other", "other"),
        ("other = step.loss()\nother = other + step.more()\nother.backward()", "", ""),
        ("with step as other:\n    other = other / 255\n    n = other", "other", ""),
        ("if step:\n    other = 1\nelse:\n    other = 2\nprint(other, self.run(other))", "", ""),
        ("if step:\n    other = 1\nself.run(other)", "other", "other"),
        ("if not step:\n    continue\nelse:\n    other = step.loss()\nself.run(other)", "", ""),
        ("try:\n    other = step.loss()\nexcept ValueError:\n    continue\nself.run(other)", "", ""),
        ("try:\n    other = step.loss()\nexcept ValueError:\n    pass\nself.run(other)", "other", "other"),
        ("for at in step:\n    other = at\nself.run(other)", "other", "other"),
        ("for at in step:\n    other = at\n    self.run(other)", "", ""),
        ("while step:\n    self.run(other)\n    other = step.loss()", "other", "other"),
        (
            "match step:\n    case 1:\n        other = 1\n    case _:\n        other = 2\nself.run(other)",
            "other",
            "other",
        ),
        ("self.hidden = self.model(step, self.hidden)", "hidden", "hidden"),
        ("self.loss = step.loss()\nself.loss.backward()", "", ""),
        ("self.early(step)\nself.run(self.hidden)", "hidden", "hidden"),
        ("self.both(step)\nself.run(self.hidden)", "", ""),
        ("helper()\nself.run(total)", "total", "total"),
        ("n = self.after(n)", "n", "n"),
        ("lists = [n for n in step]\nn = 1", "n", "n"),
    ],
)
def test_what_is_handed_on(body: str, names: str, used: str) -> None:
    found, found_used = handed_on(body)
    assert {*names.split()} <= found and {*used.split()} == found_used & {*found} and found_used <= found


@pytest.mark.parametrize(
    ("body", "roots"),
    [
        ("other.mul_(0.9).add_(step)", "other"),
        ("for name, one in other.items():\n    one.mul_(0.9)", "other"),
        ("for mine, its in zip(self.averages, self.model.parameters()):\n    mine.lerp_(its, 0.1)", "self"),
        ("torch._foreach_mul_(other, 0.9)", "other torch"),
        ("other['a'] = 0.9 * other['a'] + step", "other"),
        ("self.averages['a'] *= 0.9", "self"),
        ("with step as batch:\n    batch['x'] = batch['x'] / 255\n    batch['x'].clamp_(0, 1)", ""),
        ("for group in self.optimizer.param_groups:\n    group['lr'] *= 0.9", "self"),
        ("noise = step.noise()\nnoise.clamp_(0, 1)", ""),
    ],
)
def test_what_is_changed_in_place(body: str, roots: str) -> None:
    assert {place.root for place in found_in(body).counts.changed} == {*roots.split()}
