"""Plays every file in stories/. Each must give its trace again, and its replayed journal the same decisions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts import trace
from tests.scripts.commands import Story

STORIES = sorted((Path(__file__).parent / "stories").glob("*.txt"))


def play(script: str) -> str:
    """Return the whole file again, with the traces that its commands produce."""
    story = Story()
    out = []
    for block in script.strip().split("\n\n"):
        commands = block.partition("\n----")[0]
        story.world.lines.clear()
        for line in commands.splitlines():
            if not line.startswith("#"):
                story.do(line)
        if all(line.startswith("#") for line in commands.splitlines()):
            out.append(commands + "\n")
        else:
            out.append(f"{commands}\n----\n{trace.text(story.world.lines)}")
    story.world.check_replay()
    return "\n".join(out)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_story(path: Path, rewrite: bool) -> None:
    expected = path.read_text()
    found = play(expected)
    if rewrite:
        path.write_text(found)
    else:
        assert found == expected, (
            f"{path.name} tells another story; if it is the right one: pytest tests/scripts --rewrite"
        )


def test_a_story_is_the_same_every_time() -> None:
    script = next(path for path in STORIES if path.stem == "kill").read_text()
    assert play(script) == play(script)
