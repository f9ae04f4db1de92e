/// @file
/// What the CPU and its memory can do at best, measured in the process whose times are compared with it.
#pragma once

#include "common/base/thread_pool.h"

namespace kvcache {

/// Each rate is the fastest of many short stretches of work on all threads, so a busy machine is seen at its
/// best. The memory is far larger than the caches, and in large pages where the system gives them.

/// Bytes per second of reading.
double cpu_read_rate(ThreadPool& threads);
/// Bytes per second of copying; each byte counts twice, as read and as written.
double cpu_copy_rate(ThreadPool& threads);
/// Floating-point operations per second of fused multiply-adds (two operations each) on float32 numbers in
/// registers.
double cpu_multiply_add_rate(ThreadPool& threads);

}  // namespace kvcache
