// taskd._c10d: the guard and its control, as Python sees them.
//
// A c10d backend is a C++ subclass and fits only one minor version of torch. So the import first compares the version
// that it was built for with the one that runs. If they differ, it refuses in one sentence. The rest of taskd works
// without this module.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "c10d/control.hpp"
#include "c10d/ending.hpp"
#include "c10d/guard.hpp"
#include "c10d/progress.hpp"
#include "c10d/python.hpp"
#include "c10d/rail_module.hpp"
#include "c10d/record.hpp"
#include "c10d/store.hpp"

#ifndef TASKD_TORCH_VERSION
#error "TASKD_TORCH_VERSION is the minor version of the torch that this is compiled against, such as \"2.13\""
#endif

namespace py = pybind11;

namespace taskd::comm {

namespace {

void check_torch() {
    const auto running = py::module_::import("torch").attr("__version__").attr("__str__")().cast<std::string>();
    const std::string built = TASKD_TORCH_VERSION;
    if (running.rfind(built + ".", 0) == 0)
        return;
    throw py::import_error("taskd._c10d was built for torch " + built + ", but torch " + running +
                           " runs; reinstall taskd with `pip install --no-build-isolation` under this torch.");
}

py::tuple as_tuple(const Failure& failure) {
    return py::make_tuple(failure.group, failure.kind, failure.sequence, failure.error, failure.epoch, failure.at_ns);
}

// The interpreter's exit handler. Work that needs the interpreter ends here, and no such work begins any more.
void leave() {
    end_stretches(std::chrono::milliseconds(2000));
}

void bind_control(py::module_& m) {
    py::enum_<Mode>(m, "Mode")
        .value("NORMAL", Mode::kNormal)
        .value("PARKED", Mode::kParked)
        .value("DRAINING", Mode::kDraining)
        .value("SANDBOX", Mode::kSandbox);
    const auto free = py::call_guard<py::gil_scoped_release>();
    py::class_<Control, std::unique_ptr<Control, py::nodelete>>(m, "Control")
        .def_property_readonly("mode", [](Control& control) { return control.mode(control.lock()); })
        .def_property_readonly("epoch", [](Control& control) { return control.epoch(control.lock()); })
        .def_property_readonly("event_fd", &Control::event_fd)
        .def_property(
            "attached", [](Control& control) { return control.attached(control.lock()); }, &Control::set_attached)
        .def_property(
            "rehearsing", [](Control& control) { return control.rehearsing(control.lock()); }, &Control::set_rehearsing)
        .def_property_readonly("begun", [](Control& control) { return control.begun(control.lock()); })
        .def("drain", &Control::drain, py::arg("epoch"), free)
        .def("park", &Control::park, py::arg("epoch"), free)
        .def("resume", &Control::resume, py::arg("epoch"), free)
        .def("abort", &Control::abort, py::arg("reason"), free)
        .def(
            "sandbox",
            [](Control& control, py::object record) {
                Replay::instance().load(py::isinstance<py::int_>(record) ? read_file(record.cast<int>())
                                                                         : std::string(py::bytes(record)));
                control.enter_sandbox();
            },
            py::arg("record"))
        .def("replay_left", [](Control&) { return Replay::instance().left(); })
        .def(
            "start_record", [](Control&, int fd) { Recorder::instance().start(fd); }, py::arg("fd"))
        .def("stop_record", [](Control&) { Recorder::instance().stop(); })
        .def("give_up_record", [](Control&) { Recorder::instance().give_up(); })
        .def_property_readonly("recording", [](Control&) { return Recorder::instance().active(); })
        .def(
            "attach_page", [](Control&, int fd) { attach_page(fd); }, py::arg("fd"))
        .def("wait_until_running", [](Control&) { wait_until_running(); })
        .def("take_events", [](Control& control) {
            py::list events;
            for (const Failure& failure : control.take_events())
                events.append(as_tuple(failure));
            return events;
        });
    m.attr("control") = py::cast(&Control::instance(), py::return_value_policy::reference);
}

// Returns an attribute that torch, or torch_npu, asks of its own backend and that only this backend has.
py::object attribute_of_inner(Guard& guard, const std::string& name) {
    const Guard::BackendPointer inner = guard.inner();
    if (!inner)
        throw py::attribute_error("a guard before " + guard.kind().name + " has no " + name);
    return py::cast(inner).attr(name.c_str());
}

// Torch copies these for a group that it splits off. Without an inner group, they are those the group was made with:
// plain options cannot be copied.
py::object options_of(Guard& guard) {
    if (guard.kind().stream_ordered && !guard.inner()) {
        const py::object made = py::module_::import("taskd.comm.guard").attr("options_of")(guard.identity());
        if (!made.is_none())
            return made;
    }
    return py::cast(guard.getBackendOptions());
}

void bind_guard(py::module_& m) {
    py::class_<Guard, ::c10d::Backend, c10::intrusive_ptr<Guard>>(m, "Guard")
        .def(py::init([](int rank, int size, Guard::BackendPointer inner, std::vector<int64_t> members, int64_t ordinal,
                         Guard::Milliseconds timeout, const std::vector<int>& sockets, std::string backend,
                         bool stream_ordered) {
                 return Guard::make(rank, size, std::move(inner), std::move(members), ordinal, timeout, sockets,
                                    {std::move(backend), stream_ordered});
             }),
             py::arg("rank"), py::arg("size"), py::arg("inner").none(true), py::arg("members"), py::arg("ordinal"),
             py::kw_only(), py::arg("timeout") = std::chrono::milliseconds(kBackendDefaultTimeout),
             py::arg("sockets") = std::vector<int>{}, py::arg("backend") = "gloo", py::arg("stream_ordered") = false)
        .def("reconfigure", &Guard::reconfigure, py::arg("epoch"), py::arg("inner").none(true), py::kw_only(),
             py::arg("sockets") = std::vector<int>{})
        .def("_set_default_timeout", &Guard::setTimeout, py::arg("timeout"))  // torch's name for it
        .def("__getattr__", &attribute_of_inner)
        .def_property_readonly("options", &options_of)
        .def_property_readonly("identity", &Guard::identity)
        .def_property_readonly("number", &Guard::number)
        .def_property_readonly("message_number", &Guard::message_number)
        .def_property_readonly("backend", [](const Guard& guard) { return guard.kind().name; })
        .def_property_readonly("stream_ordered", [](const Guard& guard) { return guard.kind().stream_ordered; })
        .def_property_readonly("inner", &Guard::inner)
        .def_property_readonly("members", &Guard::members)
        .def_property_readonly("ordinal", &Guard::ordinal)
        .def_property_readonly("timeout", &Guard::timeout)
        .def_property_readonly("sequence", &Guard::sequence)
        .def_property_readonly("joined", &Guard::joined)
        .def_property_readonly("idle", &Guard::idle)
        .def_property_readonly("handing_over", &Guard::handing_over)
        .def(
            "monitored_barrier",
            [](Guard& guard, std::chrono::milliseconds timeout, bool wait_all_ranks) {
                ::c10d::BarrierOptions options;
                options.timeout = timeout;
                guard.monitoredBarrier(options, wait_all_ranks);
            },
            py::arg("timeout") = ::c10d::kUnsetTimeout, py::arg("wait_all_ranks") = false,
            py::call_guard<py::gil_scoped_release>());
    m.def("live_guards", &Guard::live);
    m.def("quiesce", &Guard::quiesce, py::arg("timeout"), py::call_guard<py::gil_scoped_release>());
    m.def("identity_of", &identity_of, py::arg("members"), py::arg("ordinal"));
    m.def("inner_groups_alive", &inner_groups_alive);
    m.def("wait_for_teardown", &wait_for_teardown, py::arg("at_most"), py::arg("timeout"),
          py::call_guard<py::gil_scoped_release>());
    m.def("pool_threads", [] { return Pool::instance().threads(); });
}

}  // namespace

}  // namespace taskd::comm

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    taskd::comm::check_torch();
    py::module_::import("torch.distributed");  // the types of c10d must be known first
    taskd::comm::learn_main_thread();
    taskd::comm::bind_control(m);
    taskd::comm::bind_guard(m);
    taskd::comm::bind_store(m);
    taskd::comm::bind_rail(m);
    py::module_::import("atexit").attr("register")(
        py::cpp_function(&taskd::comm::leave, py::call_guard<py::gil_scoped_release>()));
}
