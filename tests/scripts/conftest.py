"""`pytest tests/scripts --rewrite` writes the expected traces and the diagrams anew, to be read in the diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the expected traces and diagrams anew")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether to write instead of to compare."""
    return bool(request.config.getoption("--rewrite", default=False))
