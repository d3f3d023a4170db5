// The names of operations in messages to people.
//
// Does not: decide that something went wrong.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rail/form.hpp"

namespace taskd::rail {

const char* name_of(Kind kind) noexcept;
// "all_reduce (SUM) of 100 float32", "broadcast of 400 bytes from root 2", "barrier".
std::string text_of(const Form& form);
// "a, b and c".
std::string list_of(const std::vector<std::string>& words);
// "1.5 s", "250 ms".
std::string duration_of(int64_t duration_ns);

}  // namespace taskd::rail
