// Python's view of the native part: taskd._native.
//
// Why here: only this file, module_audit.cpp, module_rail.cpp and records.hpp know pybind11 and the GIL. Code that
// waits lets go of the GIL; code that takes nanoseconds keeps it. taskd/_native.pyi says what each name does.
//
// Does not: decide anything, or know torch.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "native/beat.hpp"
#include "native/death_watch.hpp"
#include "native/digest.hpp"
#include "native/fork_guard.hpp"
#include "native/mapping.hpp"
#include "native/module_audit.hpp"
#include "native/module_rail.hpp"
#include "native/process.hpp"
#include "native/records.hpp"

namespace py = pybind11;

namespace taskd::native {
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

struct Records {
    explicit Records(py::module_& module)
        : beat(module, "taskd._native.Beat", "Beat", "What a rank's slot says.",
               {"beat_ns", "beat_period_ns", "beat_count", "progress_ns", "epoch", "step", "phase", "flags", "group",
                "sequence", "fresh"}),
          group_beat(module, "taskd._native.GroupBeat", "GroupBeat", "What a group's slot says.",
                     {"slot", "group", "epoch", "kind", "bytes", "sequence", "entered_ns", "left_sequence", "left_ns"}),
          order(module, "taskd._native.Order", "Order", "The agent's last order.",
                {"sequence", "kind", "epoch", "at_ns"}),
          death(module, "taskd._native.Death", "Death", "Evidence of one worker's end.", {"key", "at_ns", "kind"}),
          exit_state(module, "taskd._native.ExitState", "ExitState", "How a process stands.", {"state", "exit_code"}) {}

    RecordType beat;
    RecordType group_beat;
    RecordType order;
    RecordType death;
    RecordType exit_state;
};

// Set once when the module is initialised, and never freed: objects may outlive the module's dictionary.
const Records* g_records = nullptr;

const char* name_of(Life life) {
    switch (life) {
        case Life::kNew:
            return "new";
        case Life::kBeating:
            return "beating";
        case Life::kLeft:
            return "left";
        case Life::kDead:
            return "dead";
    }
    return "new";
}

const char* name_of(ExitStage stage) {
    switch (stage) {
        case ExitStage::kAlive:
            return "alive";
        case ExitStage::kExiting:
            return "exiting";
        case ExitStage::kGone:
            return "gone";
    }
    return "gone";
}

// A page as Python holds it: the mapping, the beat if it is this process's, and the last good copies.
class Page {
  public:
    explicit Page(std::shared_ptr<Mapping> mapping) : mapping_(std::move(mapping)) {}

    const std::shared_ptr<Mapping>& mapping() const { return mapping_; }

    PageLayout& layout() const { return mapping_->page(); }

    void start_beat(int64_t period_ns) {
        const py::gil_scoped_release released;
        auto beat = std::make_unique<BeatThread>(mapping_, period_ns);
        const py::gil_scoped_acquire acquired;
        beat_ = std::move(beat);
    }

    void stop_beat() {
        if (!beat_)
            throw std::runtime_error("There is no beat to stop: start_beat() comes first.");
        const std::unique_ptr<BeatThread> beat = std::move(beat_);
        const py::gil_scoped_release released;
        beat->stop();
    }

    bool is_beating() const { return beat_ && beat_->is_running(); }

    py::object read() {
        Beat beat;
        const bool is_fresh = read_beat(layout().rank, beat);
        if (is_fresh) {
            last_ = beat;
            has_last_ = true;
        } else if (!has_last_) {
            return py::none();
        } else {
            last_.beat_ns = beat.beat_ns;
            last_.beat_period_ns = beat.beat_period_ns;
            last_.beat_count = beat.beat_count;
        }
        const Beat& b = last_;
        return g_records->beat(b.beat_ns, b.beat_period_ns, b.beat_count, b.progress_ns, b.epoch, b.step, b.phase,
                               b.flags, b.group, b.sequence, is_fresh);
    }

    py::list read_groups() const {
        py::list beats;
        for (size_t index = 0; index < kGroupSlots; ++index) {
            GroupBeat b;
            if (!read_group(layout().groups[index], b))
                continue;
            beats.append(g_records->group_beat(index, b.group, b.epoch, b.kind, b.bytes, b.sequence, b.entered_ns,
                                               b.left_sequence, b.left_ns));
        }
        return beats;
    }

    py::object read_order() {
        Order order;
        if (native::read_order(layout().order, order))
            last_order_ = order;
        if (last_order_.sequence == 0)
            return py::none();
        return record(last_order_);
    }

    py::object wait_order(uint32_t after_sequence, int64_t timeout_ns) const {
        const int64_t deadline_ns = now_ns() + timeout_ns;
        // Keep the mapping, so that the page stays even if another thread drops the object meanwhile.
        const std::shared_ptr<Mapping> mapping = mapping_;
        for (;;) {
            Order order;
            WaitEnd end;
            {
                const py::gil_scoped_release released;
                end = native::wait_order(mapping->page().order, after_sequence, deadline_ns, order);
            }
            if (end == WaitEnd::kOrder)
                return record(order);
            if (end == WaitEnd::kTimeout)
                return py::none();
            if (PyErr_CheckSignals() != 0)
                throw py::error_already_set();
        }
    }

    GroupSlot& group_slot(size_t slot) const {
        if (slot >= kGroupSlots) {
            throw std::invalid_argument("A page has group slots 0 to " + std::to_string(kGroupSlots - 1) + ", not " +
                                        std::to_string(slot) + ".");
        }
        return layout().groups[slot];
    }

  private:
    static py::object record(const Order& order) {
        return g_records->order(order.sequence, order.kind, order.epoch, order.at_ns);
    }

    std::shared_ptr<Mapping> mapping_;
    std::unique_ptr<BeatThread> beat_;
    Beat last_;
    Order last_order_;
    bool has_last_ = false;
};

py::object record(const ExitState& state) {
    return g_records->exit_state(name_of(state.stage), state.exit_code);
}

uint64_t process_start_time(pid_t pid) {
    if (const std::optional<ProcessStat> stat = read_process_stat(pid))
        return stat->start_time;
    throw_errno(ESRCH, "cannot read the start time of process " + std::to_string(pid));
}

int64_t thread_count() {
    const std::optional<ProcessStat> stat = read_process_stat(getpid());
    if (!stat)
        throw_errno(ENOENT, "cannot read /proc/self/stat");
    return stat->threads;
}

double bench_store(int64_t count) {
    const std::shared_ptr<Mapping> mapping = Mapping::create(0, 0);
    RankSlot& slot = mapping->page().rank;
    const int64_t begin_ns = now_ns();
    for (int64_t step = 0; step < count; ++step)
        store_progress(slot, 1, step, 1, 0, 0);
    return count > 0 ? static_cast<double>(now_ns() - begin_ns) / static_cast<double>(count) : 0.0;
}

void hold_gil(double seconds) {
    const int64_t end_ns = now_ns() + static_cast<int64_t>(seconds * static_cast<double>(kNanosecondsPerSecond));
    while (now_ns() < end_ns) {
    }
}

py::list scan(const std::vector<Page*>& pages) {
    py::list beats(pages.size());
    for (size_t index = 0; index < pages.size(); ++index)
        beats[index] = pages[index]->read();
    return beats;
}

void bind_page(py::module_& module) {
    py::class_<Page> page(module, "Page");
    page.def_static(
            "create", [](int32_t rank, uint64_t incarnation) { return Page(Mapping::create(rank, incarnation)); },
            py::arg("rank"), py::arg("incarnation"))
        .def_static(
            "attach", [](int fd) { return Page(Mapping::attach(fd)); }, py::arg("fd"))
        .def_property_readonly("fd", [](const Page& p) { return p.mapping()->fd(); })
        .def_property_readonly("rank", [](const Page& p) { return p.mapping()->identity().rank; })
        .def_property_readonly("incarnation", [](const Page& p) { return p.mapping()->identity().incarnation; })
        .def_property_readonly("pid", [](const Page& p) { return p.mapping()->identity().pid; })
        .def_property_readonly("start_time", [](const Page& p) { return p.mapping()->identity().start_time; })
        .def_property_readonly("address", [](const Page& p) { return reinterpret_cast<uintptr_t>(&p.layout()); })
        .def_property_readonly("life", [](const Page& p) { return name_of(life_of(p.layout().life)); })
        .def_property_readonly("closed", [](const Page& p) { return get(p.layout().life.life) == kLifeClosed; })
        .def_property_readonly("beating", &Page::is_beating)
        .def("start_beat", &Page::start_beat, py::arg("period_ns"))
        .def("stop_beat", &Page::stop_beat)
        .def("read", &Page::read)
        .def("read_groups", &Page::read_groups);
    page.def(
            "store",
            [](const Page& p, uint32_t epoch, int64_t step, uint16_t phase, uint32_t group, uint64_t sequence) {
                return store_progress(p.layout().rank, epoch, step, phase, group, sequence);
            },
            py::arg("epoch"), py::arg("step"), py::arg("phase"), py::arg("group") = 0, py::arg("sequence") = 0)
        .def(
            "store_phase", [](const Page& p, uint16_t phase) { return store_phase(p.layout().rank, phase); },
            py::arg("phase"))
        .def(
            "store_step",
            [](const Page& p, int64_t step, uint16_t phase) { return store_step(p.layout().rank, step, phase); },
            py::arg("step"), py::arg("phase"))
        .def(
            "store_sequence",
            [](const Page& p, uint32_t group, uint64_t sequence) {
                return store_sequence(p.layout().rank, group, sequence);
            },
            py::arg("group"), py::arg("sequence"))
        .def(
            "store_epoch", [](const Page& p, uint32_t epoch) { return store_epoch(p.layout().rank, epoch); },
            py::arg("epoch"))
        .def(
            "store_flags", [](const Page& p, uint16_t flags) { return store_flags(p.layout().rank, flags); },
            py::arg("flags"));
    page.def(
            "enter_group",
            [](const Page& p, size_t slot, uint32_t group, uint32_t epoch, uint64_t sequence, uint16_t kind,
               uint64_t bytes) { return enter_group(p.group_slot(slot), group, epoch, sequence, kind, bytes); },
            py::arg("slot"), py::arg("group"), py::arg("epoch"), py::arg("sequence"), py::arg("kind"),
            py::arg("bytes") = 0)
        .def(
            "leave_group",
            [](const Page& p, size_t slot, uint64_t sequence) { return leave_group(p.group_slot(slot), sequence); },
            py::arg("slot"), py::arg("sequence"))
        .def(
            "clear_group", [](const Page& p, size_t slot) { return clear_group(p.group_slot(slot)); }, py::arg("slot"));
    page.def(
            "order",
            [](const Page& p, uint32_t kind, uint32_t epoch) { return give_order(p.layout().order, kind, epoch); },
            py::arg("kind"), py::arg("epoch"))
        .def("read_order", &Page::read_order)
        .def("wait_order", &Page::wait_order, py::arg("after_sequence"), py::arg("timeout_ns"));
    module.def("scan", &scan, py::arg("pages"));
}

void bind_death_watch(py::module_& module) {
    py::class_<DeathWatch>(module, "DeathWatch")
        .def(py::init<>())
        .def_property_readonly("fd", &DeathWatch::fd)
        .def(
            "add", [](DeathWatch& watch, const Page& page, int64_t key) { watch.add(page.mapping(), key); },
            py::arg("page"), py::arg("key"))
        .def("remove", &DeathWatch::remove, py::arg("key"), NoGil())
        .def("take",
             [](DeathWatch& watch) {
                 py::list deaths;
                 for (const Death& death : watch.take()) {
                     deaths.append(g_records->death(death.key, death.at_ns, name_of(death.life)));
                 }
                 return deaths;
             })
        .def("close", &DeathWatch::close, NoGil());
}

void bind_digest(py::module_& module) {
    module.def(
        "digests",
        [](const std::vector<std::pair<uintptr_t, size_t>>& pieces) {
            std::vector<uint64_t> found;
            found.reserve(pieces.size());
            for (const auto& [address, bytes] : pieces)
                found.push_back(digest(reinterpret_cast<const void*>(address), bytes));
            return found;
        },
        py::arg("pieces"), NoGil());
}

void bind_process(py::module_& module) {
    module.def(
        "exit_state", [](pid_t pid, uint64_t start_time) { return record(exit_state(pid, start_time)); },
        py::arg("pid"), py::arg("start_time"));
    module.def(
        "confirm_exit",
        [](pid_t pid, uint64_t start_time, int64_t timeout_ns) {
            ExitState state;
            {
                const py::gil_scoped_release released;
                state = confirm_exit(pid, start_time, timeout_ns);
            }
            return record(state);
        },
        py::arg("pid"), py::arg("start_time"), py::arg("timeout_ns"));
    module.def("process_start_time", &process_start_time, py::arg("pid"));
    module.def("thread_count", &thread_count);
    module.def("set_child_subreaper", &set_child_subreaper);
    module.def("set_parent_death_signal", &set_parent_death_signal, py::arg("signal"));
    module.def("close_on_fork", &close_on_fork, py::arg("fd"));
    module.def("keep_on_fork", &keep_on_fork, py::arg("fd"));
    module.def("hold_gil", &hold_gil, py::arg("seconds"));
    module.def("bench_store", &bench_store, py::arg("n"), NoGil());
}

}  // namespace
}  // namespace taskd::native

PYBIND11_MODULE(_native, module) {
    using namespace taskd::native;
    module.doc() =
        "The native part of taskd: the beat page, the death watch, process states, rails as seen from outside.";
    py::register_local_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer)
                std::rethrow_exception(pointer);
        } catch (const std::system_error& error) {
            const py::object arguments = py::make_tuple(error.code().value(), error.what());
            PyErr_SetObject(PyExc_OSError, arguments.ptr());
        }
    });
    g_records = new Records(module);
    module.attr("PAGE_BYTES") = kPageBytes;
    module.attr("PAGE_VERSION") = kPageVersion;
    module.attr("GROUP_SLOTS") = kGroupSlots;
    bind_page(module);
    bind_death_watch(module);
    bind_process(module);
    bind_digest(module);
    bind_rails(module);
    bind_audit(module);
}
