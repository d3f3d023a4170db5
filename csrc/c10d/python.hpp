// The few places where C++ meets the interpreter: signals, the autograd thread, and our exception classes.
//
// Why: c10d's functions are called with or without the GIL, from Python or from C++ inside autograd. A wait that holds
// the GIL or swallows Ctrl-C is a hang. These helpers work in all of these cases.
//
// Does not: hold any state but the main thread's id.
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

// Learns which thread serves Python's signals, now and after a fork. To be called once, with the GIL, at import.
void learn_main_thread();
bool on_main_thread();
// Runs Python's signal handlers; throws what they raise.
void serve_signals();

// Blocks while operations are parked. While a step is given up, throws StepAbandoned, except inside autograd.
void wait_until_running();

// True inside a backward pass of this thread, hooks and final callbacks included.
bool in_autograd();

// All throw pybind11::error_already_set. Wherever it leaves torch, it becomes the same Python exception again.
[[noreturn]] void throw_step_abandoned(const std::string& text);
[[noreturn]] void throw_usage_error(const std::string& text);
// Throws a UsageError: `what` belongs to a process from which this one was forked.
[[noreturn]] void throw_inherited(const std::string& what);

// Returns a torch.distributed.DistBackendError with this text.
std::exception_ptr backend_error(const std::string& text);

}  // namespace taskd::comm
