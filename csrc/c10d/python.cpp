// See python.hpp.
#include "c10d/python.hpp"

#include <c10/util/Exception.h>
#include <pthread.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>

#include "c10d/control.hpp"

namespace taskd::comm {

namespace py = pybind11;

namespace {

std::atomic<pthread_t> main_thread{};

[[noreturn]] void throw_python(const char* name, const std::string& text) {
    const py::gil_scoped_acquire gil;
    const py::object type = py::module_::import("taskd.errors").attr(name);
    PyErr_SetString(type.ptr(), text.c_str());
    throw py::error_already_set();
}

}  // namespace

WithoutGil::WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check())
        released_.emplace();
}

void learn_main_thread() {
    const auto ident = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
    main_thread = static_cast<pthread_t>(ident);
    // In a forked child the thread that forked is Python's main thread.
    pthread_atfork(nullptr, nullptr, [] { main_thread = pthread_self(); });
}

bool on_main_thread() {
    return pthread_equal(main_thread.load(), pthread_self()) != 0;
}

void serve_signals() {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0)
        throw py::error_already_set();
}

void wait_until_running() {
    const WithoutGil released;
    for (;;) {
        const Mode mode = Control::instance().wait_while_parked(std::chrono::milliseconds(100));
        if (mode == Mode::kDraining && !in_autograd())
            throw_step_abandoned("the step was given up.");
        if (mode != Mode::kParked)
            return;
        if (on_main_thread())
            serve_signals();
    }
}

bool in_autograd() {
    return torch::autograd::get_current_graph_task_id() != -1;
}

void throw_step_abandoned(const std::string& text) {
    throw_python("StepAbandoned", text);
}

void throw_usage_error(const std::string& text) {
    throw_python("UsageError", text);
}

void throw_inherited(const std::string& what) {
    throw_usage_error(what + " belongs to the process that forked this one; make a process group of this one's own.");
}

std::exception_ptr backend_error(const std::string& text) {
    return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

}  // namespace taskd::comm
