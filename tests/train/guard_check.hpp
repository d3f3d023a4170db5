// What the parts of the guard's storm share: a check that holds in every build, and the parts that need no storm.
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

// A record written by several threads and torn anywhere plays back what is whole.
void record_and_replay();
void record_without_an_end();
// The rhythm of a job: what is learned, what fades, and that nothing grows.
void rhythm_is_learned();
