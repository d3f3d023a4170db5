"""Adds `pytest tests/scripts --rewrite`. It rewrites the expected traces and the diagrams; review them in the diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the expected traces and diagrams anew")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether to rewrite the files instead of comparing them."""
    return bool(request.config.getoption("--rewrite", default=False))
