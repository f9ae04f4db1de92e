/// @file
/// The walk-through of step 4 on the terminal (`--demo`): shared blocks, hits, an eviction, a fork and its
/// copy.
#pragma once

#include "common/cli/program.h"

namespace kvcache {

/// Plays several questions behind one system prompt through a PrefixCachingManager with blocks of four
/// tokens, and draws each moment.
void print_sharing(const Report& report);

}  // namespace kvcache
