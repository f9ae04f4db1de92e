/// @file
/// `--serve`: a step's program as a server.
#pragma once

#include <filesystem>
#include <string>

#include "common/cli/program.h"

namespace kvcache {

/// The model's name for clients: the last part of its folder, links followed. For a snapshot in a cache of
/// the Hugging Face hub, models--ORG--NAME/snapshots/HASH, it is ORG/NAME.
std::string served_name(const std::filesystem::path& folder);

/// Serves until SIGTERM or SIGINT; then GenerationServer::end ends the server in order. The server takes its
/// port first, and answers 503 while the model is being loaded. When the model is loaded, one line on stdout
/// gives the address.
/// @return 0
/// @throws what loading throws; RunError for a port that is taken or not allowed, and when the engine has
/// failed.
int serve(Step step, const Options& options, const MakeCache& make_cache);

}  // namespace kvcache
