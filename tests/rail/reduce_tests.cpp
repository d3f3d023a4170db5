// The kernels of reduce.hpp against the plain reference, for every type, reduction and odd length.
#include "rail/reduce/reduce.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "parts/check.hpp"
#include "rail/reduce/kernels.hpp"
#include "reference.hpp"
#include "suite.hpp"

namespace taskd::rail::test {
namespace {

Bytes reduced(Dtype dtype, Reduction reduction, const std::vector<Bytes>& inputs, int in_place = -1) {
    std::vector<Bytes> copies = inputs;
    std::vector<const void*> sources;
    for (const Bytes& copy : copies)
        sources.push_back(copy.data());
    Bytes out(inputs[0].size());
    void* const to = in_place < 0 ? out.data() : copies[static_cast<size_t>(in_place)].data();
    reduce(dtype, reduction, sources.data(), static_cast<int>(sources.size()), to, out.size() / size_of(dtype));
    return in_place < 0 ? out : copies[static_cast<size_t>(in_place)];
}

void every_type_and_reduction_equals_the_reference() {
    std::mt19937 random(1);
    for (const Dtype dtype : kReducible)
        for (const Reduction reduction : kReductions) {
            if (!can_reduce(dtype, reduction))
                continue;
            for (const size_t ranks : {1, 2, 3, 5, 16})
                for (const size_t count : {0, 1, 3, 15, 16, 17, 63, 64, 65, 257, 1000}) {
                    std::vector<Bytes> inputs;
                    for (size_t rank = 0; rank < ranks; ++rank)
                        inputs.push_back(elements(random, dtype, count));
                    const Bytes wanted = reference(dtype, reduction, inputs);
                    CHECK(reduced(dtype, reduction, inputs) == wanted);
                    CHECK(reduced(dtype, reduction, inputs, static_cast<int>(random() % ranks)) == wanted);
                }
        }
}

void what_is_reduced_is_what_gloo_reduces() {
    for (const Dtype dtype : kReducible)
        for (const Reduction reduction : kReductions) {
            const bool is_complex = dtype == Dtype::kComplex64 || dtype == Dtype::kComplex128;
            const bool is_float = dtype == Dtype::kFloat16 || dtype == Dtype::kBfloat16 || dtype == Dtype::kFloat32 ||
                                  dtype == Dtype::kFloat64;
            const bool is_bitwise = reduction >= Reduction::kBitAnd;
            const bool is_linear = reduction <= Reduction::kAverage;
            const bool wanted = is_complex ? is_linear : is_float ? !is_bitwise : reduction != Reduction::kAverage;
            CHECK(can_reduce(dtype, reduction) == wanted);
        }
    CHECK(!can_reduce(Dtype::kByte, Reduction::kSum));
}

// Combines every 16-bit float with some values of every kind.
void every_half_is_added_as_the_reference_adds() {
    for (const Dtype dtype : {Dtype::kFloat16, Dtype::kBfloat16}) {
        Bytes every(2 * 65536);
        for (uint32_t bits = 0; bits < 65536; ++bits)
            std::memcpy(every.data() + 2 * bits, &bits, 2);
        for (const uint16_t other : {0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0xbc01, 0x7bff, 0x7c00, 0x7e01,
                                     0x3f80, 0x7f7f, 0x7f80, 0x7fc1, 0x1234, 0xfbff}) {
            Bytes constant(every.size());
            for (size_t index = 0; index < 65536; ++index)
                std::memcpy(constant.data() + 2 * index, &other, 2);
            for (const Reduction reduction : {Reduction::kSum, Reduction::kProduct, Reduction::kAverage})
                CHECK(reduced(dtype, reduction, {every, constant}) == reference(dtype, reduction, {every, constant}));
        }
    }
}

void a_place_in_the_buffer_changes_no_bit() {
    std::mt19937 random(2);
    const std::vector<Bytes> inputs{elements(random, Dtype::kFloat32, 1000), elements(random, Dtype::kFloat32, 1000),
                                    elements(random, Dtype::kFloat32, 1000)};
    const Bytes whole = reduced(Dtype::kFloat32, Reduction::kSum, inputs);
    for (size_t first = 0; first < 70; ++first) {
        std::vector<Bytes> rest;
        for (const Bytes& input : inputs)
            rest.emplace_back(input.begin() + static_cast<long>(4 * first), input.end());
        CHECK(reduced(Dtype::kFloat32, Reduction::kSum, rest) ==
              Bytes(whole.begin() + static_cast<long>(4 * first), whole.end()));
    }
}

template <class Format, class Op>
void compare_processors(Dtype dtype, Reduction reduction) {
    std::mt19937 random(3);
    const std::vector<Bytes> inputs{elements(random, dtype, 777), elements(random, dtype, 777),
                                    elements(random, dtype, 777)};
    const void* const sources[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
    const Bytes wanted = reference(dtype, reduction, inputs);
    const int divisor = reduction == Reduction::kAverage ? 3 : 1;
    std::vector<lanes::Kernel> kernels{lanes::reduce_anywhere<Format, Op>};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        kernels.push_back(lanes::reduce_avx2<Format, Op>);
#endif
    for (const lanes::Kernel kernel : kernels) {
        Bytes out(wanted.size());
        kernel(sources, 3, out.data(), 777, divisor);
        CHECK(out == wanted);
    }
}

void processors_agree() {
    compare_processors<lanes::Plain<float>, lanes::Sum>(Dtype::kFloat32, Reduction::kAverage);
    compare_processors<lanes::Plain<double>, lanes::Max>(Dtype::kFloat64, Reduction::kMax);
    compare_processors<lanes::Float16, lanes::Sum>(Dtype::kFloat16, Reduction::kAverage);
    compare_processors<lanes::Bfloat16, lanes::Product>(Dtype::kBfloat16, Reduction::kProduct);
    compare_processors<lanes::Plain<uint8_t>, lanes::Product>(Dtype::kUint8, Reduction::kProduct);
    compare_processors<lanes::Plain<int64_t>, lanes::Min>(Dtype::kInt64, Reduction::kMin);
}

void a_thread_s_flushed_denormals_do_not_count() {
#if defined(__x86_64__)
    const float tiny = 1e-40F;
    const Bytes input(reinterpret_cast<const char*>(&tiny), reinterpret_cast<const char*>(&tiny) + sizeof tiny);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // flush to zero, denormals are zero
    const Bytes sum = reduced(Dtype::kFloat32, Reduction::kSum, {input, input});
    CHECK((_mm_getcsr() & 0x8040) == 0x8040);
    _mm_setcsr(before);
    CHECK(sum == reference(Dtype::kFloat32, Reduction::kSum, {input, input}));
#endif
}

}  // namespace

std::vector<Test> reduce_tests() {
    return {{"every type and reduction equals the reference", every_type_and_reduction_equals_the_reference},
            {"what is reduced is what gloo reduces", what_is_reduced_is_what_gloo_reduces},
            {"every half is added as the reference adds", every_half_is_added_as_the_reference_adds},
            {"a place in the buffer changes no bit", a_place_in_the_buffer_changes_no_bit},
            {"processors agree", processors_agree},
            {"a thread's flushed denormals do not count", a_thread_s_flushed_denormals_do_not_count}};
}

}  // namespace taskd::rail::test
