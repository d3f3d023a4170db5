#include "reference.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "parts/check.hpp"
#include "rail/reduce/reduce.hpp"

namespace taskd::rail::test {
namespace {

template <class T>
T read(const Bytes& bytes, size_t index) {
    T value;
    std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
    return value;
}

template <class T>
void write(Bytes& bytes, size_t index, T value) {
    std::memcpy(bytes.data() + index * sizeof value, &value, sizeof value);
}

template <class T>
T combined(Reduction reduction, T left, T right) {
    switch (reduction) {
        case Reduction::kSum:
        case Reduction::kAverage:
            return left + right;
        case Reduction::kProduct:
            return left * right;
        case Reduction::kMin:
            return left < right || left != left ? left : right;
        case Reduction::kMax:
            return left > right || left != left ? left : right;
        default:
            std::abort();
    }
}

template <class T>
Bytes floats(Reduction reduction, const std::vector<Bytes>& inputs) {
    Bytes out(inputs[0].size());
    for (size_t index = 0; index < out.size() / sizeof(T); ++index) {
        T value = read<T>(inputs[0], index);
        for (size_t rank = 1; rank < inputs.size(); ++rank)
            value = combined(reduction, value, read<T>(inputs[rank], index));
        if (reduction == Reduction::kAverage)
            value /= static_cast<T>(inputs.size());
        write(out, index, std::isnan(value) ? std::numeric_limits<T>::quiet_NaN() : value);
    }
    return out;
}

Bytes halves(Reduction reduction, const std::vector<Bytes>& inputs, int mantissa_bits) {
    Bytes out(inputs[0].size());
    for (size_t index = 0; index < out.size() / 2; ++index) {
        auto value = static_cast<float>(value_of_half(read<uint16_t>(inputs[0], index), mantissa_bits));
        for (size_t rank = 1; rank < inputs.size(); ++rank)
            value = combined(reduction, value,
                             static_cast<float>(value_of_half(read<uint16_t>(inputs[rank], index), mantissa_bits)));
        if (reduction == Reduction::kAverage)
            value /= static_cast<float>(inputs.size());
        write(out, index, half_of_value(value, mantissa_bits));
    }
    return out;
}

// Computes in 64 bits. The lower bits of a result do not depend on the upper bits, except for minimum and maximum.
template <class T>
Bytes integers(Reduction reduction, const std::vector<Bytes>& inputs) {
    Bytes out(inputs[0].size());
    for (size_t index = 0; index < out.size() / sizeof(T); ++index) {
        T value = read<T>(inputs[0], index);
        for (size_t rank = 1; rank < inputs.size(); ++rank) {
            const T other = read<T>(inputs[rank], index);
            const auto left = static_cast<uint64_t>(value);
            const auto right = static_cast<uint64_t>(other);
            if (reduction == Reduction::kMin || reduction == Reduction::kMax)
                value = combined<T>(reduction, value, other);
            else
                value = static_cast<T>(reduction == Reduction::kSum       ? left + right
                                       : reduction == Reduction::kProduct ? left * right
                                       : reduction == Reduction::kBitAnd  ? left & right
                                       : reduction == Reduction::kBitOr   ? left | right
                                                                          : left ^ right);
        }
        write(out, index, value);
    }
    return out;
}

Bytes booleans(Reduction reduction, const std::vector<Bytes>& inputs) {
    Bytes out(inputs[0].size());
    for (size_t index = 0; index < out.size(); ++index) {
        int ones = 0;
        for (const Bytes& input : inputs)
            ones += input[index];
        const int all = static_cast<int>(inputs.size());
        const bool any_wanted =
            reduction == Reduction::kSum || reduction == Reduction::kMax || reduction == Reduction::kBitOr;
        out[index] = reduction == Reduction::kBitXor ? ones % 2 == 1 : any_wanted ? ones > 0 : ones == all;
    }
    return out;
}

}  // namespace

double value_of_half(uint16_t bits, int mantissa_bits) {
    const int exponent_bits = 15 - mantissa_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    double value = exponent == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                                 : std::ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    if (exponent == (1 << exponent_bits) - 1)
        value = mantissa == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
    return bits >> 15 ? -value : value;
}

uint16_t half_of_value(double value, int mantissa_bits) {
    const int exponent_bits = 15 - mantissa_bits;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
    if (std::isnan(value))
        return static_cast<uint16_t>(infinity | 1 << (mantissa_bits - 1));
    const int sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (size == 0 || std::isinf(size))
        return static_cast<uint16_t>(sign | (size == 0 ? 0 : infinity));
    const int exponent = std::max(std::ilogb(size), 1 - bias);
    // Counts in units of the last place. A carry from the rounding goes into the exponent by itself.
    const double units = std::nearbyint(std::ldexp(size, mantissa_bits - exponent));
    const double code = units + std::ldexp(exponent + bias - 1, mantissa_bits);
    return static_cast<uint16_t>(sign | static_cast<int>(std::min<double>(code, infinity)));
}

Bytes reference(Dtype dtype, Reduction reduction, const std::vector<Bytes>& inputs) {
    switch (dtype) {
        case Dtype::kBool:
            return booleans(reduction, inputs);
        case Dtype::kInt8:
            return integers<int8_t>(reduction, inputs);
        case Dtype::kUint8:
            return integers<uint8_t>(reduction, inputs);
        case Dtype::kInt16:
            return integers<int16_t>(reduction, inputs);
        case Dtype::kInt32:
            return integers<int32_t>(reduction, inputs);
        case Dtype::kInt64:
            return integers<int64_t>(reduction, inputs);
        case Dtype::kFloat16:
            return halves(reduction, inputs, 10);
        case Dtype::kBfloat16:
            return halves(reduction, inputs, 7);
        case Dtype::kFloat32:
        case Dtype::kComplex64:
            return floats<float>(reduction, inputs);
        case Dtype::kFloat64:
        case Dtype::kComplex128:
            return floats<double>(reduction, inputs);
        case Dtype::kByte:
            break;
    }
    std::abort();
}

Bytes elements(std::mt19937& random, Dtype dtype, size_t count) {
    Bytes out(count * size_of(dtype));
    const bool is_half = dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16;
    const bool is_single = dtype == Dtype::kFloat32 || dtype == Dtype::kComplex64;
    const bool is_double = dtype == Dtype::kFloat64 || dtype == Dtype::kComplex128;
    if (!is_half && !is_single && !is_double) {
        for (char& byte : out)
            byte = static_cast<char>(dtype == Dtype::kBool ? random() % 2 : random());
        return out;
    }
    constexpr double kAwkward[] = {HUGE_VAL, -HUGE_VAL, NAN, -NAN, 0.0, -0.0, 1e-40, -6e-8, 65519, 3e38, 1e-310};
    const size_t each = is_half ? 2 : is_single ? 4 : 8;
    for (size_t index = 0; index < out.size() / each; ++index) {
        const uint32_t drawn = random();
        double value = static_cast<double>(static_cast<int32_t>(random())) * std::ldexp(1.0, -30 - (drawn >> 28));
        if (drawn % 100 == 0)
            value = kAwkward[(drawn >> 8) % std::size(kAwkward)];
        if (is_half)
            write(out, index, half_of_value(value, dtype == Dtype::kFloat16 ? 10 : 7));
        else if (is_single)
            write(out, index, static_cast<float>(value));
        else
            write(out, index, value);
    }
    return out;
}

}  // namespace taskd::rail::test
