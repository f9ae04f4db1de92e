/// @file
/// What the CPU and its memory can do at best, measured in the same process as what is compared with it.
#pragma once

#include "common/base/thread_pool.h"

namespace kvcache {

/// Each is the fastest of many short stretches of work on all threads: a machine that does other
/// things too is seen at its best. Memory is read from and copied to in large pages where the system gives
/// them, and there is far more of it than caches hold.

/// Bytes per second of reading.
double cpu_read_rate(ThreadPool& threads);
/// Bytes per second of copying, read and written counted.
double cpu_copy_rate(ThreadPool& threads);
/// Floating-point operations per second of fused multiply-adds (two operations each) on float32 numbers that
/// stay in registers.
double cpu_multiply_add_rate(ThreadPool& threads);

}  // namespace kvcache
