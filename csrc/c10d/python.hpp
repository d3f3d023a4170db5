// The few places where C++ meets the interpreter: signals, the autograd thread, and our exception classes.
//
// Why: c10d's functions are called with or without the GIL, from Python or from C++ inside autograd, and a wait that
// holds the GIL or swallows Ctrl-C is a hang. These helpers work in every one of those cases.
//
// Does not: hold any state but the main thread's name.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <optional>
#include <string>

namespace taskd::comm {

// Releases the GIL for a scope if this thread holds it.
class WithoutGil {
  public:
    WithoutGil();

  private:
    std::optional<pybind11::gil_scoped_release> released_;
};

// To be called once, with the GIL, at import: learns which thread Python serves signals in, now and after a fork.
void learn_main_thread();
bool on_main_thread();
// Runs Python's signal handlers; throws what they raise.
void serve_signals();

// Blocks while operations are parked; throws StepAbandoned, outside autograd, while a step is given up.
void wait_until_running();

// True inside a backward pass of this thread, hooks and final callbacks included.
bool in_autograd();

// Both throw pybind11::error_already_set, which every face of torch turns back into that very Python exception.
[[noreturn]] void throw_step_abandoned(const std::string& text);
[[noreturn]] void throw_usage_error(const std::string& text);

// A torch.distributed.DistBackendError with this text.
std::exception_ptr backend_error(const std::string& text);

}  // namespace taskd::comm
