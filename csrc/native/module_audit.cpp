#include "native/module_audit.hpp"

#include <cstring>

namespace py = pybind11;

namespace taskd::native {
namespace {

// Never freed: a hook cannot be taken out again. The GIL protects it.
PyObject* g_listener = nullptr;
bool g_installed = false;

bool is_act(const char* event) noexcept {
    if (*event != 'o' && *event != 's')
        return false;
    for (const char* kind : {"os.", "socket.", "subprocess.", "sqlite3."})
        if (std::strncmp(event, kind, std::strlen(kind)) == 0)
            return true;
    return std::strcmp(event, "open") == 0;
}

// An error of the listener keeps the act from happening, and is raised where it was to happen.
int hear(const char* event, PyObject* arguments, void*) {
    if (g_listener == nullptr || g_listener == Py_None || !is_act(event))
        return 0;
    const auto listener = py::reinterpret_borrow<py::object>(g_listener);
    PyObject* answer = PyObject_CallFunction(listener.ptr(), "sO", event, arguments);
    Py_XDECREF(answer);
    return answer == nullptr ? -1 : 0;
}

void listen(const py::object& listener) {
    PyObject* before = g_listener;
    g_listener = py::object(listener).release().ptr();
    Py_XDECREF(before);
    if (g_installed)
        return;
    if (PySys_AddAuditHook(&hear, nullptr) != 0)
        throw py::error_already_set();
    g_installed = true;
}

}  // namespace

void bind_audit(py::module_& module) {
    module.def("listen", &listen, py::arg("listener"));
}

}  // namespace taskd::native
