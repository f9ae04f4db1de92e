/// @file
/// See made_traffic.h.
#include "common/replay/made_traffic.h"

#include <algorithm>
#include <random>
#include <vector>

namespace kvcache {
namespace {

/// A context that grows from request to request: whole blocks of it are shared.
struct Context {
  std::vector<std::int32_t> blocks;  // full ones
  std::int64_t length = 0;           // tokens, of which the last may fill a block in part
};

class Maker {
 public:
  /// @param usual_longest  tokens that no request of the kind exceeds, at its usual lengths
  Maker(const MadeTraffic& wanted, std::int64_t usual_longest)
      : random_(wanted.seed), wanted_(wanted.longest.value_or(usual_longest)), usual_(usual_longest) {
    traffic_.block_size = wanted.block_size;
  }

  /// From `least` to `most`. std::uniform_int_distribution differs between libraries, and this does not.
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(most - least + 1));
  }

  /// A length from `least` to `most` tokens at usual lengths, at least 1.
  std::int64_t tokens(std::int64_t least, std::int64_t most) {
    return std::max<std::int64_t>(1, between(least, most) * wanted_ / usual_);
  }

  /// Adds tokens to a context: blocks that become full get numbers of their own.
  void extend(Context& context, std::int64_t tokens) {
    context.length += tokens;
    while (std::ssize(context.blocks) < context.length / traffic_.block_size)
      context.blocks.push_back(next_block_++);
  }

  /// A request whose prompt is `context`. Its last block, if it is partial, is no other's.
  void request(std::int64_t timestamp_ms, const Context& context, std::int64_t output_length) {
    TrafficRequest& request = traffic_.requests.emplace_back();
    request.timestamp_ms = timestamp_ms;
    request.input_length = context.length;
    request.output_length = output_length;
    request.blocks = context.blocks;
    if (context.length % traffic_.block_size != 0) request.blocks.push_back(next_block_++);
  }

  std::int64_t made() const { return std::ssize(traffic_.requests); }

  /// The trace. Short requests come as much faster.
  Traffic finish() {
    for (TrafficRequest& request : traffic_.requests)
      request.timestamp_ms = request.timestamp_ms * wanted_ / usual_;
    std::ranges::stable_sort(traffic_.requests, {}, &TrafficRequest::timestamp_ms);
    return std::move(traffic_);
  }

 private:
  std::mt19937_64 random_;       // its numbers are the standard's
  std::int64_t wanted_, usual_;  // tokens of the longest request
  Traffic traffic_;
  std::int32_t next_block_ = 0;
};

/// A new conversation every two seconds, of one to eight turns. The answer of a turn is part of the next
/// turn's prompt.
void make_chat(Maker& maker, std::int64_t requests) {
  for (std::int64_t start = 0; maker.made() < requests; start += maker.between(0, 4000)) {
    Context context;
    std::int64_t now = start;
    for (std::int64_t turns = maker.between(1, 8); turns > 0 && maker.made() < requests; --turns) {
      maker.extend(context, maker.tokens(50, 1500));
      const std::int64_t answer = maker.tokens(20, 600);
      maker.request(now, context, answer);
      maker.extend(context, answer);
      now += maker.between(5'000, 60'000);
    }
  }
}

/// A question every half second, behind a system prompt of 3,000 tokens.
void make_system(Maker& maker, std::int64_t requests) {
  Context system;
  maker.extend(system, maker.tokens(3000, 3000));
  for (std::int64_t now = 0; maker.made() < requests; now += maker.between(0, 1000)) {
    Context context = system;
    maker.extend(context, maker.tokens(20, 800));
    maker.request(now, context, maker.tokens(20, 400));
  }
}

/// A new agent every ten seconds, with 5 to 30 calls each. Between two calls its tools take seconds.
void make_agents(Maker& maker, std::int64_t requests) {
  Context tools;  // their descriptions, the same for all agents
  maker.extend(tools, maker.tokens(6000, 6000));
  for (std::int64_t start = 0; maker.made() < requests; start += maker.between(0, 20'000)) {
    Context context = tools;
    std::int64_t now = start;
    for (std::int64_t calls = maker.between(5, 30); calls > 0 && maker.made() < requests; --calls) {
      maker.extend(context, maker.tokens(100, 4000));
      const std::int64_t answer = maker.tokens(20, 250);
      maker.request(now, context, answer);
      maker.extend(context, answer);
      now += maker.between(2'000, 15'000);
    }
  }
}

}  // namespace

Traffic made_traffic(const MadeTraffic& wanted) {
  struct Kind {
    std::int64_t longest;  // tokens, in and out
    void (*make)(Maker& maker, std::int64_t requests);
  };
  const Kind kind = wanted.kind == TrafficKind::chat     ? Kind{8 * (1500 + 600), make_chat}
                    : wanted.kind == TrafficKind::system ? Kind{3000 + 800 + 400, make_system}
                                                         : Kind{6000 + 30 * (4000 + 250), make_agents};
  Maker maker(wanted, kind.longest);
  kind.make(maker, wanted.requests);
  return maker.finish();
}

}  // namespace kvcache
