/// @file
/// The log of a server's traffic: when each request came, how long it was, and which blocks its prompt has in
/// common with other prompts. There are no texts and no token ids in it. The format is that of published
/// traces, so what replays them replays this log too. Described in docs/serving.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/engine/engine.h"

namespace kvcache {

/// What is logged of a request, while it goes on.
struct LoggedRequest {
  std::int64_t timestamp = 0;                ///< of its arrival, in milliseconds since the server's start
  std::int64_t input_length = 0;             ///< tokens of the prompt
  std::vector<std::uint64_t> hash_ids;       ///< [blocks of the prompt], the last one partial
  std::vector<std::int64_t> output_lengths;  ///< [samples], tokens generated so far
};

/// SipHash-2-4 of the 8 bytes of `word`, little endian: without the key nobody can compute it.
/// Source: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012).
[[nodiscard]] std::uint64_t keyed_hash(const std::array<std::uint64_t, 2>& key, std::uint64_t word);

/// Writes one JSON line for each output of a request, when that output has ended:
/// {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}
///
/// A block's number stands for its tokens, all tokens before them, and the salt. The key of the numbers is
/// random and written nowhere, so nobody can find a prompt by hashing guesses.
///
/// A line that cannot be written ends the log, with one line on stderr. One thread at a time.
class TraceLog {
 public:
  /// The clock of arrivals.
  using Clock = Engine::Clock;

  /// Opens the file; what it holds stays until `replace_file`.
  /// @param block_size    tokens of a block
  /// @param default_salt  of requests that have none
  /// @param start         of the server
  /// @throws InputError for a file that cannot be written, and for a pipe: its reader could hold up the
  /// server.
  TraceLog(std::string file, std::int64_t block_size, std::string default_salt,
           Clock::time_point start = Clock::now());
  ~TraceLog();
  TraceLog(const TraceLog&) = delete;
  TraceLog& operator=(const TraceLog&) = delete;

  /// Empties the file. A device has nothing to empty.
  void replace_file();
  /// What is logged of a request that has come.
  LoggedRequest arrived(const GenerationRequest& request, Clock::time_point at) const;
  /// Takes the next event of a request. The end of a sample writes a line, unless the request was never
  /// admitted or has failed.
  void hear(const GenerationEvent& event, LoggedRequest& request);

 private:
  void write(std::string_view line);
  void end(const char* why);

  const std::string name_;
  const std::int64_t block_size_;
  const std::string default_salt_;
  const Clock::time_point start_;
  std::array<std::uint64_t, 2> key_;
  int file_;  // -1: the log has ended
};

}  // namespace kvcache
