// Python's view of csrc/rail, as far as it needs no torch: interfaces, counters and their sums.
//
// Why apart from module.cpp: an agent, a command or a transport driven from Python needs these where torch is not
// installed. They share nothing with the beat page.
//
// Does not: open connections; the transport itself is in taskd._c10d.
#pragma once

#include <pybind11/pybind11.h>

namespace taskd::native {

void bind_rails(pybind11::module_& module);

}  // namespace taskd::native
