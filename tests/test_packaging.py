"""What a user gets from pip: the contents of the wheel, and that it works without this checkout.

Everything is built without build isolation, from the object files that `make venv` left. So the code with torch's
headers is compiled once, not once per test. The clean environments are real ones: venv makes them, and they get links
to the packages that are installed here, except taskd. Nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import taskd
from tests.source import ROOT, files_below

pytestmark = pytest.mark.slow

SITE = Path(sysconfig.get_path("purelib"))
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
NATIVE = {f"taskd/{name}{SUFFIX}" for name in ("_native", "_c10d")}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
FROM_HERE = ["--no-build-isolation", "--no-deps", "--no-index"]
START_UP = "import sys; print(' '.join(sys.modules))"


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """Run a command outside the checkout and return its output. A failure shows the whole output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**clean, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        pytest.fail(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}", pytrace=False)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", *FROM_HERE, "--wheel-dir", folder, ROOT, cwd=folder)
    (found,) = folder.glob("taskd-*.whl")
    return found


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    build = f"import setuptools.build_meta as b; b.build_sdist({str(folder)!r})"
    run(sys.executable, "-c", build, cwd=ROOT)
    (found,) = folder.glob("taskd-*.tar.gz")
    return found


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """Make a new environment with the dependencies of taskd, but without taskd. Return its python."""
    home = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=tmp_path)
    site = home / SITE.relative_to(sys.prefix)
    for entry in SITE.iterdir():
        if not entry.name.startswith(("taskd", "__editable__", "__pycache__")):
            (site / entry.name).symlink_to(entry)
    return home / "bin" / "python"


def shipped_python() -> set[str]:
    return {str(path.relative_to(ROOT)) for path in files_below("taskd") if path.suffix in {".py", ".pyi"}}


def test_wheel_holds_what_ships_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == shipped_python() | NATIVE | {"taskd/py.typed", "taskd_compat.pth"}


def test_versions_agree(wheel: Path) -> None:
    assert wheel.name.split("-")[1] == taskd.__version__


def test_sdist_holds_what_a_build_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {str(path.relative_to(ROOT)) for path in files_below("csrc")}
    needed = {"pyproject.toml", "setup.py", "taskd_compat.pth", "README.md", "LICENSE", "taskd/py.typed"}
    assert sources | needed | shipped_python() <= names
    assert not [name for name in names if name.startswith(("tests/", "samples/", ".")) or name.endswith(".so")]


def test_wheel_works_in_a_clean_environment(wheel: Path, environment: Path, tmp_path: Path) -> None:
    before = set(run(environment, "-c", START_UP, cwd=tmp_path).split())
    run(*PIP, "--python", environment, "install", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    run(*PIP, "--python", environment, "check", cwd=tmp_path)

    # Every Python process on that machine pays for the imports of start-up, also outside training jobs.
    added = set(run(environment, "-c", START_UP, cwd=tmp_path).split()) - before
    assert {"taskd", "taskd.compat"} <= added <= {"taskd", "taskd.compat", "__future__"}
    where = "import taskd._native as n, torch, taskd._c10d as c; print(n.__file__); print(c.__file__)"
    assert run(environment, "-c", where, cwd=tmp_path).count(str(environment.parent.parent)) == 2
    assert "usage" in run(environment.parent / "taskd", "--help", cwd=tmp_path)
    for module in ("mindio_ttp.framework_ttp", "mindx_elastic.api", "taskd.python.adaptor.patch"):
        run(environment, "-c", f"import taskd.api, {module}", cwd=tmp_path)

    run(*PIP, "--python", environment, "uninstall", "--yes", "taskd", cwd=tmp_path)
    assert set(run(environment, "-c", START_UP, cwd=tmp_path).split()) == before


def test_start_up_survives_a_half_removed_taskd(environment: Path, tmp_path: Path) -> None:
    (environment.parent.parent / SITE.relative_to(sys.prefix) / "taskd_compat.pth").write_bytes(
        (ROOT / "taskd_compat.pth").read_bytes()
    )
    assert run(environment, "-c", "print('started')", cwd=tmp_path) == "started\n"


def test_pip_install_without_build_isolation(tmp_path: Path) -> None:
    run(*PIP, "install", *FROM_HERE, "--target", tmp_path / "here", ROOT, cwd=tmp_path)
    assert all((tmp_path / "here" / name).is_file() for name in NATIVE)


def test_editable_install_has_the_import_hook(environment: Path, tmp_path: Path) -> None:
    """It is built here and installed there. The other Python would see other paths and compile everything again."""
    run(
        sys.executable,
        "-c",
        f"import setuptools.build_meta as b; b.build_editable({str(tmp_path)!r})",
        cwd=ROOT,
    )
    (built,) = tmp_path.glob("taskd-*.whl")
    run(*PIP, "--python", environment, "install", "--no-deps", "--no-index", built, cwd=tmp_path)
    found = run(environment, "-c", "import mindx_elastic.api, taskd; print(taskd.__file__)", cwd=tmp_path)
    assert str(ROOT / "taskd" / "__init__.py") in found.splitlines(), found
    run(*PIP, "--python", environment, "uninstall", "--yes", "taskd", cwd=tmp_path)
    assert run(environment, "-c", "print('started')", cwd=tmp_path) == "started\n"


def test_without_torch_the_rest_is_built(sdist: Path, tmp_path: Path, run_python: Callable[..., object]) -> None:
    hidden = tmp_path / "hidden" / "torch"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('hidden by a test')\n")
    shutil.unpack_archive(sdist, tmp_path)
    (folder,) = tmp_path.glob("taskd-*")
    said = run(
        sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=folder, env={"PYTHONPATH": str(hidden.parent)}
    )
    assert "built without taskd._c10d, because torch cannot be imported (hidden by a test)" in said
    assert [path.name for path in (folder / "taskd").glob("*.so")] == [f"_native{SUFFIX}"]
    run_python("import taskd._native", env={"PYTHONPATH": os.pathsep.join([str(folder), str(hidden.parent)])})
