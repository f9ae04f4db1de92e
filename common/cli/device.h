/// @file
/// Where a program runs: on the CPU, or on a GPU if the build supports it and the machine has one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/thread_pool.h"
#include "common/cli/options.h"
#include "common/model/transformer.h"

namespace kvcache {

namespace cuda {
class Device;  // complete only in a build with CUDA
}

/// The GPU to run on, or nothing for the CPU.
/// @throws RunError for DeviceChoice::cuda without a GPU, or in a build without CUDA.
std::shared_ptr<const cuda::Device> choose_gpu(DeviceChoice wanted);

/// The number type: `wanted`, else the device's default.
/// @param gpu  nullptr: the CPU
/// @throws RunError if the GPU cannot compute in the wanted type.
DType choose_dtype(std::optional<DType> wanted, const cuda::Device* gpu);

/// A model on `gpu`, or on the CPU with `threads`, which must outlive the model.
/// @throws RunError if the weights do not fit into the GPU's memory.
std::unique_ptr<Transformer> make_model(const ModelConfig& config, Weights weights, DType dtype,
                                        ThreadPool& threads, const std::shared_ptr<const cuda::Device>& gpu);

/// Free bytes of the GPU's memory.
std::int64_t free_memory(const cuda::Device& gpu);

/// Runs a trial pass to see how much memory a pass takes.
/// @param tokens     rows of the pass; no fewer than `sequences` are taken
/// @param sequences  whose logits the pass computes
/// @return free bytes of the GPU's memory afterwards, less a margin for the choice of ids and for tables
std::int64_t memory_left_by_a_pass(Transformer& model, const cuda::Device& gpu, std::int64_t tokens,
                                   std::int64_t sequences);

}  // namespace kvcache
