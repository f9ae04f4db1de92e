/// @file
/// The walk-through of step 4 on the terminal (`--demo`): who shares what, what need not be computed, an
/// eviction, a fork and its copy.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// Plays one system prompt and several questions through a PrefixCachingManager with blocks of four tokens
/// and draws each moment.
void print_sharing(const Report& report);

}  // namespace kvcache
