/// @file
/// `--serve`: a step's program as a server.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// Serves until SIGTERM or SIGINT. The port is taken first; while the model is being loaded the answer is
/// 503. When it is ready, one line on stdout says where.
/// @return 0
/// @throws what loading throws; RunError for a port that cannot be had, and when the engine has failed.
int serve(Step step, const Options& options, const MakeCache& make_cache);

}  // namespace kvcache
