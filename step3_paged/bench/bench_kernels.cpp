/// @file
/// The kernels that write, collect and read K and V, and the matrix product, on each device, beside what the
/// device can do at best: cpu/... in bench_kernels_cpu.cpp, cuda/... in bench_kernels_cuda.cpp. Chapter:
/// step3_paged/README.md.
#include "step3_paged/bench/bench_kernels.h"

#include <string>

#include "common/bench/benchmark_program.h"
#include "fmt/format.h"
#ifdef WITH_CUDA
#include "common/cuda/device.h"
#endif

namespace {

constexpr const char* kWhat =
    "Usage: bench_kernels [OPTIONS OF GOOGLE BENCHMARK]\n\n"
    "Times the kernels that write, gather and read K and V, and the matrix product: cpu/... and, with a\n"
    "GPU, cuda/.... Each time stands beside the best that the device can do.\n";

constexpr const char* kNote =
    "GB/s and FLOP/s count each byte and each operation that is needed once. 'of ...' is the share of the "
    "device's best rate, measured in this process: reading, copying, multiply-adds in registers. Where "
    "memory is the subject, more data than the caches hold take turns, like the layers of a model. cpu: "
    "as the steps compute, on all threads. Scatter and gather run on one thread, and are "
    "compared with a copy on one. Time is the median call, and figures 'at median' come from it. IQR % is "
    "the distance between the calls' quartiles, in percent of the median. The column CPU says nothing. "
    "cpu/read, copy and multiply_add are the fastest of many stretches, so on a busy machine the shares of "
    "them are too small. They read and copy in large pages, if the system gives them; K, V and weights lie "
    "in the pages that the steps have. cuda: CUDA graphs timed with events. The time of a call is its mean "
    "in the median of 30 replays; so are the limits. tensor_cores is the rate of mma.sync; from compute "
    "capability 9.0 on, cuBLAS has faster instructions and may exceed it.";

void add_all() {
  kvcache::add_cpu_benchmarks();
#ifdef WITH_CUDA
  const std::string why = kvcache::cuda::Device::why_unavailable();
  if (why.empty()) return kvcache::cuda::add_cuda_benchmarks();
  fmt::print(stderr, "note: without cuda/...: {}\n", why);
#else
  fmt::print(stderr, "note: without cuda/...: this build has no CUDA support\n");
#endif
}

}  // namespace

/// Takes Google Benchmark's options. @return 2 for one it does not know, 1 without a GPU or after a failure
/// there.
int main(int argc, char** argv) {
  return kvcache::run_benchmark_program(argc, argv, kWhat, kNote, add_all);
}
