/// @file
/// `--serve`: a step's program as a server.
#pragma once

#include <filesystem>
#include <string>

#include "common/cli/program.h"

namespace kvcache {

/// What clients call a model: the last part of its folder, links followed. A snapshot in a cache of the
/// Hugging Face hub, models--ORG--NAME/snapshots/HASH, is ORG/NAME.
std::string served_name(const std::filesystem::path& folder);

/// Serves until SIGTERM or SIGINT. The port is taken first; while the model is being loaded the answer is
/// 503. When it is ready, one line on stdout says where.
/// @return 0
/// @throws what loading throws; RunError for a port that cannot be had, and when the engine has failed.
int serve(Step step, const Options& options, const MakeCache& make_cache);

}  // namespace kvcache
