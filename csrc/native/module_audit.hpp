// The audit hook: tells Python code of what is about to be opened, removed, started or connected.
//
// Why here: Python calls a hook for each id() and for each look at a function's code, more than a hundred times in a
// training step. A hook that is written in Python takes 200 ns each time, this one a few.
//
// Does not: know who wants to hear of what (taskd/worker/audit.py does), or decide anything.
#pragma once

#include <pybind11/pybind11.h>

namespace taskd::native {

void bind_audit(pybind11::module_& module);

}  // namespace taskd::native
