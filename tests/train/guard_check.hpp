// Shared by the parts of the guard's storm test: a check that is active in every build, and the tests without a storm.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            std::_Exit(1);                                                       \
        }                                                                        \
    } while (false)

// Several threads write a record, and it is cut off at any place. All whole entries can be played back.
void record_and_replay();
void record_without_an_end();
// Tests the rhythm of a job: what it learns, that this fades, and that memory does not grow.
void rhythm_is_learned();
