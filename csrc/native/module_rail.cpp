// Interfaces, counters and sums for Python. module_rail.hpp says what and why.
#include "native/module_rail.hpp"

#include <pybind11/stl.h>
#include <sys/socket.h>

#include "native/records.hpp"
#include "native/system.hpp"
#include "rail/counters.hpp"
#include "rail/io/interfaces.hpp"
#include "rail/tally.hpp"

namespace py = pybind11;

namespace taskd::native {
namespace {

using rail::add;
using rail::CounterRecord;
using rail::Counters;
using rail::RailState;

struct RailRecords {
    explicit RailRecords(py::module_& module)
        : address(module, "taskd._native.Address", "Address", "One address of an interface.",
                  {"text", "version", "prefix"}),
          interface(module, "taskd._native.Interface", "Interface", "One network interface.",
                    {"name", "number", "up", "carrier", "loopback", "master", "kind", "addresses"}),
          sum(module, "taskd._native.RailSum", "RailSum", "One rail to one peer node.",
              {"rail", "node", "state", "since_ns", "pairs", "pairs_up", "pairs_moved", "pairs_starved", "bytes_out",
               "bytes_in", "round_trip_ns", "downs", "hedged", "retransmitted", "duplicates", "last_error"}),
          totals(module, "taskd._native.RailTotals", "RailTotals", "What belongs to no rail.",
                 {"unrecorded", "strangers", "garbage", "stale"}) {}

    RecordType address;
    RecordType interface;
    RecordType sum;
    RecordType totals;
};

// Never freed: objects may outlive the module's dictionary.
const RailRecords* g_records = nullptr;

// Returns what another process wrote as text. It may be any bytes.
py::str text_of(const std::string& bytes) {
    return py::reinterpret_steal<py::str>(
        PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace"));
}

py::list list_interfaces() {
    std::vector<rail::Interface> found;
    {
        const py::gil_scoped_release released;
        found = rail::list_interfaces();
    }
    py::list interfaces;
    for (const rail::Interface& one : found) {
        py::list addresses;
        for (const rail::Address& address : one.addresses)
            addresses.append(g_records->address(address.text, address.family == AF_INET6 ? 6 : 4, address.prefix));
        interfaces.append(g_records->interface(text_of(one.name), one.index, one.up, one.carrier, one.loopback,
                                               one.master, text_of(one.kind), py::tuple(addresses)));
    }
    return interfaces;
}

py::list read_sums(rail::Tally& tally) {
    py::list sums;
    for (const rail::RailSum& sum : tally.read()) {
        sums.append(g_records->sum(text_of(sum.rail), text_of(sum.node), static_cast<uint32_t>(sum.state), sum.since_ns,
                                   sum.pairs, sum.pairs_up, sum.pairs_moved, sum.pairs_starved, sum.bytes_out,
                                   sum.bytes_in, sum.round_trip_ns, sum.downs, sum.hedged, sum.retransmitted,
                                   sum.duplicates, sum.last_error));
    }
    return sums;
}

// The counters of one rail to one peer, as the code that counts holds them.
struct RailCounter {
    Counters* counters;
    CounterRecord* record;
    int64_t epoch;
};

void count(const RailCounter& counter, uint64_t bytes_out, uint64_t bytes_in, uint64_t hedged, uint64_t retransmitted,
           uint64_t duplicates) {
    add(counter.record->bytes_out, bytes_out);
    add(counter.record->bytes_in, bytes_in);
    add(counter.record->hedged, hedged);
    add(counter.record->retransmitted, retransmitted);
    add(counter.record->duplicates, duplicates);
}

void set_rail_state(const RailCounter& counter, uint32_t state, int error, int64_t round_trip_ns) {
    if (state > static_cast<uint32_t>(RailState::kProbing))
        throw std::invalid_argument("A rail's state is 0 (up), 1 (suspect), 2 (down) or 3 (probing), not " +
                                    std::to_string(state) + ".");
    const int64_t at_ns = now_ns();
    if (error != 0)
        set_error(*counter.record, error, at_ns);
    if (round_trip_ns != 0)
        counter.record->round_trip_ns.store(round_trip_ns, std::memory_order_release);
    set_state(*counter.record, static_cast<RailState>(state), at_ns);
}

}  // namespace

void bind_rails(py::module_& module) {
    g_records = new RailRecords(module);
    module.def("list_interfaces", &list_interfaces);
    py::class_<RailCounter>(module, "RailCounter")
        .def("count", &count, py::kw_only(), py::arg("bytes_out") = 0, py::arg("bytes_in") = 0, py::arg("hedged") = 0,
             py::arg("retransmitted") = 0, py::arg("duplicates") = 0)
        .def("set_state", &set_rail_state, py::arg("state"), py::arg("error") = 0, py::arg("round_trip_ns") = 0)
        .def("prove_anew", [](const RailCounter& counter) { prove_anew(*counter.record); })
        .def("close", [](const RailCounter& counter) { counter.counters->close(*counter.record, counter.epoch); });
    py::class_<Counters>(module, "RailCounters")
        .def(py::init<uint32_t>(), py::arg("capacity") = rail::kCounterRecords)
        .def_property_readonly("fd", &Counters::fd)
        .def(
            "open",
            [](Counters& counters, const std::string& rail, int32_t peer, const std::string& node, int64_t epoch) {
                return RailCounter{&counters, &counters.open(rail, peer, node, epoch, now_ns()), epoch};
            },
            py::arg("rail"), py::arg("peer"), py::arg("node"), py::arg("epoch"), py::keep_alive<0, 1>());
    py::class_<rail::Tally>(module, "RailTally")
        .def(py::init<uint64_t>(), py::arg("starved_bytes"))
        .def("add", &rail::Tally::add, py::arg("fd"))
        .def("remove", &rail::Tally::remove, py::arg("number"))
        .def("read", &read_sums)
        .def("totals", [](const rail::Tally& tally) {
            const rail::CounterTotals totals = tally.totals();
            return g_records->totals(totals.unrecorded, totals.strangers, totals.garbage, totals.stale);
        });
    module.attr("RAIL_NAME_BYTES") = rail::kRailNameBytes - 1;
}

}  // namespace taskd::native
