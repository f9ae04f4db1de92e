/// @file
/// Loads the checkpoints of the project, for tests that run real models.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/cpu/cpu_backend.h"
#include "common/model/transformer.h"
#include "common/model/weights.h"
#include "tests/support/checkpoints.h"

namespace kvcache {

/// The loaded checkpoint of a folder; computes on `threads`.
/// @param eos_ids  sorted; they end a sequence instead of the checkpoint's own
inline std::unique_ptr<Transformer> loaded_model(const std::filesystem::path& folder, ThreadPool& threads,
                                                 DType dtype = DType::f32,
                                                 std::optional<std::vector<std::int32_t>> eos_ids = {}) {
  ModelConfig config = read_config(folder);
  Weights weights = load_weights(folder, config, dtype);
  if (eos_ids) config.eos_ids = *std::move(eos_ids);
  return std::make_unique<Transformer>(std::move(config), std::move(weights),
                                       std::make_unique<CpuBackend>(dtype, threads));
}

/// The loaded tiny checkpoint of this name.
inline std::unique_ptr<Transformer> reference_model(const std::string& name, ThreadPool& threads,
                                                    DType dtype = DType::f32,
                                                    std::optional<std::vector<std::int32_t>> eos_ids = {}) {
  return loaded_model(checkpoint_folder(name), threads, dtype, std::move(eos_ids));
}

}  // namespace kvcache
