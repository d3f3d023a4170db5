// See rail_module.hpp.
#include "c10d/rail_module.hpp"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <future>

#include "c10d/forks.hpp"
#include "c10d/pool.hpp"
#include "c10d/python.hpp"
#include "native/fork_guard.hpp"

namespace py = pybind11;

namespace taskd::comm {

namespace {

constexpr std::chrono::milliseconds kSignalPeriod{100};

using NamedAddress = std::tuple<std::string, std::string, std::string, bool>;  // rail, address, interface, expected

// The engines of this process, and none of a parent's. A group keeps its engine alive, whatever becomes of Python's
// objects.
struct Engines {
    std::mutex mutex;
    std::vector<std::weak_ptr<rail::Engine>> all;
};

Engines& engines = one_per_process<Engines>();

std::shared_ptr<RailEngine> make_engine(const std::vector<NamedAddress>& rails, const py::bytes& key,
                                        const std::string& title, const std::string& node, std::pair<int, int> ports,
                                        bool retry_enabled, int retry_count, RailEngine::Milliseconds retry_hold,
                                        RailEngine::Milliseconds retry_interval) {
    rail::Settings settings;
    for (const auto& [name, address, interface, expected] : rails)
        settings.rails.push_back({name, address, interface, expected});
    settings.key = key;
    settings.title = title;
    settings.node = node;
    settings.first_port = ports.first;
    settings.last_port = ports.second;
    settings.retry.enabled = retry_enabled;
    settings.retry.count = retry_count;
    settings.retry.hold = retry_hold;
    settings.retry.interval = retry_interval;
    settings.close_on_fork = native::close_on_fork;
    settings.keep_on_fork = native::keep_on_fork;
    const py::gil_scoped_release released;
    return std::make_shared<RailEngine>(std::move(settings));
}

void close(rail::Engine& engine) {
    try {
        engine.close();
    } catch (const rail::Trouble&) {
        // Python's object of a parent's engine: the peers do not wait for this process.
    }
}

// Runs at the interpreter's exit: a peer may still be in the operation that was the last one here.
void close_engines() {
    std::vector<std::weak_ptr<rail::Engine>> all;
    {
        const std::lock_guard<std::mutex> held(engines.mutex);
        all = engines.all;
    }
    for (const auto& each : all) {
        if (const std::shared_ptr<rail::Engine> engine = each.lock())
            close(*engine);
    }
}

}  // namespace

RailEngine::RailEngine(rail::Settings settings) : engine_(std::make_shared<rail::Engine>(std::move(settings))) {
    const std::lock_guard<std::mutex> held(engines.mutex);
    auto& all = engines.all;
    all.erase(std::remove_if(all.begin(), all.end(), [](const auto& each) { return each.expired(); }), all.end());
    all.push_back(engine_);
}

void RailEngine::close() {
    comm::close(*engine_);
}

RailEngine::BackendPointer RailEngine::join(int64_t epoch, std::string identity, std::vector<std::string> endpoints,
                                            std::vector<int> ranks, int me, Milliseconds within, Milliseconds timeout) {
    auto joining = std::make_shared<std::packaged_task<std::shared_ptr<rail::Group>()>>(
        [engine = engine_, epoch, identity = std::move(identity), endpoints = std::move(endpoints),
         ranks = std::move(ranks), me, within] { return engine->join(epoch, identity, endpoints, ranks, me, within); });
    std::future<std::shared_ptr<rail::Group>> joined = joining->get_future();
    if (on_main_thread()) {
        // If Ctrl-C leaves this job behind, it ends by itself.
        Pool::instance().run([joining] { (*joining)(); });
        while (joined.wait_for(kSignalPeriod) != std::future_status::ready)
            serve_signals();
    } else {
        (*joining)();
    }
    BackendPointer backend = c10::make_intrusive<RailBackend>(engine_, joined.get(), timeout);
    const std::lock_guard<std::mutex> held(mutex_);
    groups_.erase(std::remove_if(groups_.begin(), groups_.end(), [](const auto& one) { return one.second.expired(); }),
                  groups_.end());
    groups_.emplace_back(epoch, backend);
    return backend;
}

void RailEngine::abort(int64_t epoch, const std::string& reason) {
    std::vector<BackendPointer> ending;
    {
        const std::lock_guard<std::mutex> held(mutex_);
        for (const auto& [their_epoch, group] : groups_) {
            BackendPointer backend = their_epoch <= epoch ? group.lock() : BackendPointer();
            if (backend)
                ending.push_back(std::move(backend));
        }
    }
    engine_->abort(epoch, reason);  // ends all groups at once, however many there are
    for (const BackendPointer& backend : ending)
        backend->end(reason);
}

void bind_rail(py::module_& m) {
    const auto free = py::call_guard<py::gil_scoped_release>();
    py::class_<RailBackend, ::c10d::Backend, c10::intrusive_ptr<RailBackend>>(m, "RailBackend")
        .def_property_readonly("identity", &RailBackend::identity)
        .def("_set_default_timeout", &RailBackend::setTimeout, py::arg("timeout"))  // torch's name for it
        .def(
            "monitored_barrier",
            [](RailBackend& backend, RailBackend::Milliseconds timeout, bool wait_all_ranks) {
                ::c10d::BarrierOptions options;
                options.timeout = timeout;
                backend.monitoredBarrier(options, wait_all_ranks);
            },
            py::arg("timeout") = ::c10d::kUnsetTimeout, py::arg("wait_all_ranks") = false, free);
    py::class_<RailEngine, std::shared_ptr<RailEngine>>(m, "RailEngine")
        .def(py::init(&make_engine), py::arg("rails"), py::arg("key"), py::kw_only(), py::arg("title") = "",
             py::arg("node") = "", py::arg("ports") = std::pair<int, int>(0, 0), py::arg("retry_enabled") = true,
             py::arg("retry_count") = 3, py::arg("retry_hold") = RailEngine::Milliseconds(5000),
             py::arg("retry_interval") = RailEngine::Milliseconds(1000))
        .def_property_readonly("endpoint", [](const RailEngine& engine) { return py::bytes(engine.endpoint()); })
        .def(
            "join",
            [](RailEngine& engine, int64_t epoch, std::string identity, std::vector<std::string> endpoints,
               std::vector<int> ranks, int me, RailEngine::Milliseconds within, RailEngine::Milliseconds timeout) {
                return engine.join(epoch, std::move(identity), std::move(endpoints), std::move(ranks), me, within,
                                   timeout);
            },
            py::arg("epoch"), py::arg("identity"), py::arg("endpoints"), py::arg("ranks"), py::arg("me"), py::kw_only(),
            py::arg("within"), py::arg("timeout"), free)
        .def("abort", &RailEngine::abort, py::arg("epoch"), py::arg("reason"), free)
        .def("close", &RailEngine::close, free)
        .def("hear_of_end", &RailEngine::hear_of_end, py::arg("epoch"), py::arg("rank"), py::arg("how"), free)
        .def("set_rail", &RailEngine::set_rail, py::arg("name"), py::arg("in_use"), free)
        .def_property_readonly("counters_fd", &RailEngine::counters_fd);
    py::module_::import("atexit").attr("register")(py::cpp_function(&close_engines, free));
}

}  // namespace taskd::comm
