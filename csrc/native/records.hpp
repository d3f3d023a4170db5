// Tuples with named fields, which the bindings hand to Python.
//
// Why: an agent reads 64 pages in every interval. A struct sequence costs no more than a tuple to make and to unpack.
// It also has names and a readable repr(), and it cannot be changed.
//
// Does not: accept them back from Python.
#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

namespace taskd::native {

class RecordType {
  public:
    // Makes the type and adds it to the module under its short name. All strings must live for ever.
    RecordType(pybind11::module_& module, const char* full_name, const char* short_name, const char* doc,
               std::initializer_list<const char*> fields) {
        std::vector<PyStructSequence_Field> table;
        for (const char* field : fields)
            table.push_back({field, nullptr});
        table.push_back({nullptr, nullptr});
        PyStructSequence_Desc description{full_name, doc, table.data(), static_cast<int>(fields.size())};
        type_ = PyStructSequence_NewType(&description);
        if (type_ == nullptr)
            throw pybind11::error_already_set();
        module.add_object(short_name,
                          pybind11::reinterpret_borrow<pybind11::object>(reinterpret_cast<PyObject*>(type_)));
    }

    template <class... Values>
    pybind11::object operator()(const Values&... values) const {
        auto record = pybind11::reinterpret_steal<pybind11::object>(PyStructSequence_New(type_));
        if (!record)
            throw pybind11::error_already_set();
        Py_ssize_t index = 0;
        (PyStructSequence_SetItem(record.ptr(), index++, owned(values)), ...);
        return record;
    }

  private:
    template <class Value>
    static PyObject* owned(const Value& value) {
        if constexpr (std::is_base_of_v<pybind11::handle, Value>)
            return value.inc_ref().ptr();
        else
            return pybind11::cast(value).release().ptr();
    }

    PyTypeObject* type_;  // one for the life of the interpreter
};

}  // namespace taskd::native
