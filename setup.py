"""Builds taskd's two native extensions and puts its import hook where Python starts.

pyproject.toml says everything about the package that can be said without running code; here is the rest:

* `taskd._native` (csrc/native and parts of csrc/rail): C++17 and pybind11 only, so it builds and loads where torch is
  absent.
* `taskd._c10d` (csrc/c10d, csrc/rail): C++20, compiled against the torch that is installed *now*. A c10d backend is a
  subclass across a C++ boundary that has no stable ABI, so it fits exactly one torch minor; the version it was built
  for is compiled in as TASKD_TORCH_VERSION and compared when the module is imported. Without torch it is left out.
* `taskd_compat.pth`: one line at the top of site-packages, so that scripts that import a module taskd stands in for
  find it although they never imported taskd.

It does not choose a torch: build with `--no-build-isolation` (CONTRIBUTING.md says why).
"""

from __future__ import annotations

import base64
import fcntl
import filecmp
import hashlib
import os
import shutil
import sys
import zipfile
from pathlib import Path

import pybind11
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext as plain_build_ext
from setuptools.command.build_py import build_py as plain_build_py
from setuptools.command.editable_wheel import editable_wheel as plain_editable_wheel

ROOT = Path(__file__).resolve().parent
PTH_NAME = "taskd_compat.pth"

# torch finds ninja through PATH, where it is only if the virtual environment was activated.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])

try:
    import torch
    from torch.utils import cpp_extension
except ImportError as absent:
    torch = None
    build_ext_base = plain_build_ext
    print(f"taskd: built without taskd._c10d, because torch cannot be imported ({absent}); the rest works without it.")
else:
    # Its ninja back end compiles only what changed, headers included, with MAX_JOBS compilers at a time.
    build_ext_base = cpp_extension.BuildExtension

# -O2 and -g0 come after Python's own flags and so win over its -O3 -g; -s strips the symbol table.
COMPILE = ["-O2", "-g0", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra"]
LINK = ["-pthread", "-s"]


# Our headers are named with their folder, as in "rail/io/link.hpp".
INCLUDES = str(ROOT / "csrc")

# What of the rail transport is needed where torch is absent: to find rails, and to read what others count.
RAIL_PARTS = ("counters", "io/interfaces", "tally")


def files(*patterns: str) -> list[str]:
    """Paths below the root, relative (an absolute one would end up in the wheel's metadata) and sorted."""
    return sorted(str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern))


def native_extension() -> Extension:
    return Extension(
        "taskd._native",
        sources=files("csrc/native/*.cpp", *(f"csrc/rail/{part}.cpp" for part in RAIL_PARTS)),
        depends=files("csrc/native/*.hpp", "csrc/rail/**/*.hpp"),
        include_dirs=[INCLUDES, pybind11.get_include()],
        extra_compile_args=["-std=c++17", *COMPILE],
        extra_link_args=LINK,
        language="c++",
    )


def c10d_extension() -> Extension:
    extension = cpp_extension.CppExtension(
        "taskd._c10d",
        sources=files("csrc/c10d/*.cpp", "csrc/rail/**/*.cpp", "csrc/native/fork_guard.cpp"),
        depends=files("csrc/**/*.hpp"),
        define_macros=[("TASKD_TORCH_VERSION", '"{}"'.format(".".join(torch.__version__.split(".")[:2])))],
        extra_link_args=LINK,
    )
    # torch's headers do not compile without warnings at -Wextra; ours do, so torch's are included as the system's.
    system = [flag for path in extension.include_dirs for flag in ("-isystem", path)]
    extension.include_dirs = [INCLUDES]
    extension.extra_compile_args = ["-std=c++20", *COMPILE, *system]
    return extension


class BuildExt(build_ext_base):
    """One lasting object folder per extension, and an in-place copy that running processes survive."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # An editable install would compile everything anew in a temporary folder; a wheel and it share this one. The
        # name holds torch's version, since ninja does not look into another package's headers.
        built_against = f"torch-{torch.__version__}" if torch else "no-torch"
        self.objects_root = ROOT / "build" / "objects" / f"{sys.implementation.cache_tag}-{built_against}"

    def run(self) -> None:
        self.objects_root.mkdir(parents=True, exist_ok=True)
        with open(self.objects_root / "lock", "w") as lock:
            # Two builds at once, from two terminals say, would write the same object files.
            fcntl.flock(lock, fcntl.LOCK_EX)
            super().run()

    def build_extension(self, extension: Extension) -> None:
        # Two extensions in one folder would overwrite each other's build.ninja.
        self.build_temp = str(self.objects_root / extension.name)
        super().build_extension(extension)

    def copy_file(self, infile: str, outfile: str, *args: object, **kwargs: object) -> tuple[str, bool]:
        # A process that has mapped the old file must keep it whole: replace the name, never the contents.
        if os.path.exists(outfile) and filecmp.cmp(infile, outfile, shallow=False):
            return outfile, False
        fresh = f"{outfile}.{os.getpid()}"
        shutil.copy2(infile, fresh)
        os.replace(fresh, outfile)
        return outfile, True


class BuildPy(plain_build_py):
    """Starts from an empty folder (a module removed since would else be shipped) and adds the import hook's line."""

    def run(self) -> None:
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib) / "taskd", ignore_errors=True)
        super().run()
        if not self.editable_mode:
            self.copy_file(str(ROOT / PTH_NAME), os.path.join(self.build_lib, PTH_NAME))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), os.path.join(self.build_lib, PTH_NAME)]


class EditableWheel(plain_editable_wheel):
    """setuptools has no place for a top-level .pth of ours in an editable wheel, so it is added to the finished one."""

    def run(self) -> None:
        super().run()
        line = (ROOT / PTH_NAME).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(line).digest()).rstrip(b"=").decode()
        for wheel in Path(self.dist_dir).glob("taskd-*.whl"):
            fresh = wheel.with_suffix(".new")
            with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(fresh, "w", zipfile.ZIP_DEFLATED) as new:
                new.writestr(PTH_NAME, line)
                for entry in old.infolist():
                    content = old.read(entry)
                    if entry.filename.endswith(".dist-info/RECORD"):
                        content = f"{PTH_NAME},sha256={digest},{len(line)}\n".encode() + content
                    new.writestr(entry, content)
            os.replace(fresh, wheel)


setup(
    ext_modules=[native_extension(), *([c10d_extension()] if torch else [])],
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy, "editable_wheel": EditableWheel},
)
