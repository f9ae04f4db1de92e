/// @file
/// Small made-up traces of three kinds, for trying a replay without a recorded one. Described in
/// docs/replay.md.
#pragma once

#include <cstdint>
#include <optional>

#include "common/replay/traffic.h"

namespace kvcache {

/// What the requests of a made-up trace have in common.
enum class TrafficKind : std::uint8_t {
  chat,    ///< conversations: each turn begins with all turns before it
  system,  ///< one system prompt before questions that share nothing else
  agents,  ///< few agents, each calling again and again with a context that grows by its tools' answers
};

/// What a made-up trace is like.
struct MadeTraffic {
  TrafficKind kind = TrafficKind::chat;  ///< what its requests have in common
  std::int64_t requests = 200;           ///< how many there are
  std::uint64_t seed = 0;                ///< another seed, another trace
  std::int64_t block_size = 512;         ///< tokens for each hash id
  /// Tokens, in and out, that no request exceeds; none: what is usual for its kind. All lengths and all times
  /// between requests shrink or grow alike.
  std::optional<std::int64_t> longest = {};
};

/// Makes a trace. Equal arguments give an equal trace, on every machine.
[[nodiscard]] Traffic made_traffic(const MadeTraffic& wanted);

}  // namespace kvcache
