/// @file
/// Reads a trace (docs/trace.md) and rebuilds from its lines alone what the cache held after each line.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/kv/cache_state.h"

namespace kvcache {

class TraceReplay {
 public:
  using Json = nlohmann::json;
  using Tokens = std::vector<std::int32_t>;

  /// Takes the next line.
  void apply(const std::string& text) {
    const Json line = Json::parse(text);
    if (!begun_) return begin(line);
    const std::string event = line.at("event");
    ++events[event];
    if (event == "plan") plan(line);
    if (event == "commit") run_pass();
    if (event == "free") preempted += line.at("reason") == "preempted" ? 1 : 0;
    if (event == "fork") tokens[line.at("child")] = tokens.at(line.at("parent"));
    if (event == "end") end = line;
    if (line.contains("changes")) change(line.at("changes"));
    if (event == "abort") forget_unstored();
  }

  /// The ids of all stored tokens of a sequence, read through its block table.
  Tokens read(std::int32_t sequence) const {
    const CacheState::Sequence& held = state.sequences.at(sequence);
    Tokens ids;
    for (std::int64_t position = 0; position < held.length; ++position)
      ids.push_back(pool_.at(index(held.blocks.at(index(position / state.block_size))))
                        .at(index(position % state.block_size)));
    return ids;
  }

  /// Blocks that no sequence holds and that can be found.
  std::int64_t cached() const {
    return std::ranges::count_if(state.free, [this](std::int32_t block) {
      return !state.contents.empty() && state.contents[index(block)].identity != 0;
    });
  }

  Json header = Json::object(), end = Json::object();
  CacheState state;
  std::map<std::int32_t, Tokens> tokens;  ///< of each sequence, with those of an outstanding plan
  std::map<std::string, int> events;
  std::int64_t hits = 0, evicted = 0, copies = 0, swaps_out = 0, swaps_in = 0, preempted = 0;
  std::int64_t computed = 0;  ///< rows of committed passes

 private:
  static constexpr std::int32_t kNothing = -1;
  struct Row {
    std::int64_t block, offset;
    std::int32_t id;
  };

  static std::size_t index(std::int64_t number) { return static_cast<std::size_t>(number); }

  static const Json& part(const Json& changes, const char* name) {
    static const Json none = Json::object();
    return changes.contains(name) ? changes.at(name) : none;
  }

  void begin(const Json& line) {
    header = line;
    begun_ = true;
    if (line.at("schema") != 1) throw std::runtime_error("a schema that is not 1");
    state.block_size = line.at("block_size");
    const std::int64_t blocks = line.at("blocks"), host_blocks = line.at("host_blocks");
    for (std::int32_t block = 0; block < blocks; ++block) state.free.push_back(block);
    state.references.assign(index(blocks), 0);
    if (line.at("step") == "step4_prefix_cache") state.contents.resize(index(blocks));
    state.host.resize(index(host_blocks));
    pool_.assign(index(blocks), Tokens(index(state.block_size), kNothing));
    host_.assign(index(host_blocks), Tokens(index(state.block_size), kNothing));
  }

  void plan(const Json& line) {
    outstanding_ = line;
    for (const Json& sequence : line.at("sequences")) {
      Tokens& ids = tokens[sequence.at("sequence")];
      const Tokens untold = sequence.at("token_ids");
      const std::int64_t length = sequence.at("length");
      if (std::ssize(ids) + std::ssize(untold) != length) throw std::runtime_error("tokens are missing");
      ids.insert(ids.end(), untold.begin(), untold.end());
    }
  }

  /// Does what the store does between plan and commit, in the plan's order.
  void run_pass() {
    const Json& line = *outstanding_;
    for (const Json& sequence : line.at("sequences")) hits += std::ssize(sequence.value("hits", Tokens{}));
    evicted += std::ssize(line.value("evicted", Tokens{}));
    for (const Json& move : line.value("swaps_out", Json::array())) {
      host_.at(move[1]) = pool_.at(move[0]);
      ++swaps_out;
    }
    for (const Json& move : line.value("swaps_in", Json::array())) {
      pool_.at(move[1]) = host_.at(move[0]);
      ++swaps_in;
    }
    for (const std::int32_t block : line.value("fresh", Tokens{}))
      pool_.at(index(block)).assign(index(state.block_size), kNothing);
    for (const Json& copy : line.value("copies", Json::array())) {
      pool_.at(copy[1]) = pool_.at(copy[0]);
      ++copies;
    }
    for (const Json& sequence : line.at("sequences")) {
      const std::int32_t id = sequence.at("sequence");
      const std::int64_t length = sequence.at("length");
      for (std::int64_t position = sequence.at("first"); position < length; ++position, ++computed) {
        const std::int32_t block = state.sequences.at(id).blocks.at(index(position / state.block_size));
        pool_.at(index(block)).at(index(position % state.block_size)) = tokens.at(id).at(index(position));
      }
    }
    outstanding_.reset();
  }

  void forget_unstored() {
    outstanding_.reset();
    std::erase_if(tokens, [this](const auto& known) { return !state.sequences.contains(known.first); });
    for (auto& [id, ids] : tokens) ids.resize(index(state.sequences.at(id).length));
  }

  void change(const Json& changes) {
    for (const auto& [id, table] : part(changes, "tables").items()) {
      if (table.is_null()) {
        state.sequences.erase(std::stoi(id));
        tokens.erase(std::stoi(id));
      } else {
        state.sequences[std::stoi(id)].blocks = table.get<Tokens>();
      }
    }
    for (const auto& [id, length] : part(changes, "lengths").items())
      state.sequences.at(std::stoi(id)).length = length;
    for (const auto& [block, count] : part(changes, "references").items())
      state.references.at(std::stoul(block)) = count;
    if (changes.contains("free")) change_free(changes.at("free"));
    for (const auto& [block, content] : part(changes, "contents").items())
      state.contents.at(std::stoul(block)) = content_of(content);
    for (const auto& [block, content] : part(changes, "host").items())
      state.host.at(std::stoul(block)) = content_of(content);
  }

  void change_free(const Json& change) {
    if (change.is_array()) {
      state.free = change.get<Tokens>();
      return;
    }
    const Tokens taken = change.value("taken", Tokens{}), front = change.value("front", Tokens{}),
                 back = change.value("back", Tokens{});
    std::erase_if(state.free, [&](std::int32_t block) { return std::ranges::count(taken, block) > 0; });
    state.free.insert(state.free.begin(), front.begin(), front.end());
    state.free.insert(state.free.end(), back.begin(), back.end());
  }

  static CacheState::Content content_of(const Json& json) {
    if (json.is_null()) return {};
    return {std::stoull(json.at("hash").get<std::string>(), nullptr, 16), json.at("identity"),
            json.at("parent")};
  }

  bool begun_ = false;
  std::optional<Json> outstanding_;  // the plan line that is neither committed nor aborted
  std::vector<Tokens> pool_, host_;  // [blocks] or [host blocks], [block_size] each
};

}  // namespace kvcache
