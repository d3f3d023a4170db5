#!/usr/bin/env bash
# Makes the virtual environment and installs the pinned versions into it: make_venv.sh PYTHON VENV
#
# An environment that is there already is kept when its interpreter runs and is new enough, whoever made it; otherwise it
# is made anew. It does not build taskd: the Makefile does that, because it knows what changed.
set -euo pipefail

python=$1
venv=$2
new_enough='import sys; sys.exit(sys.version_info < (3, 10))'

say() { echo "taskd: $*" >&2; }

if ! "$venv/bin/python" -c "$new_enough" 2>/dev/null; then
    if ! command -v "$python" >/dev/null; then
        say "there is no '$python' on this machine; install Python 3.10 or newer, or name one: make PYTHON=/path/to/python3"
        exit 1
    fi
    if ! "$python" -c "$new_enough"; then
        say "$("$python" --version 2>&1) is too old, taskd needs Python 3.10 or newer; name another: make PYTHON=/path/to/python3"
        exit 1
    fi
    if ! "$python" -m venv --clear "$venv"; then
        say "'$python -m venv' failed; Debian and Ubuntu keep it in a package of its own: apt-get install python3-venv"
        exit 1
    fi
fi
if ! command -v c++ >/dev/null; then
    say "there is no C++ compiler (c++) on this machine; install gcc 11 or newer (apt-get install build-essential)"
    exit 1
fi
if ! printf '#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 11\n#error\n#endif\n' | c++ -E -x c++ - >/dev/null 2>&1; then
    say "$(c++ --version | head -n 1) is too old, torch's headers need gcc 11 or newer; install one and make it the machine's c++"
    exit 1
fi
if ! "$venv/bin/python" -c 'import os, sysconfig, sys; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then
    say "Python's headers (Python.h) are missing; install them (apt-get install python3-dev)"
    exit 1
fi
say "installing the pinned versions of requirements.txt into $venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
