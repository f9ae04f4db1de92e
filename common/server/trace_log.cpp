/// @file
/// See trace_log.h.
#include "common/server/trace_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <new>
#include <random>
#include <span>
#include <system_error>
#include <utility>

#include "common/base/error.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace kvcache {
namespace {

/// Bits of a number: every reader of JSON keeps so many, also one that has only doubles.
constexpr int kNumberBits = std::numeric_limits<double>::digits;

std::uint64_t random_word() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

/// XXH64 of a block's tokens, with the chain so far as its seed.
std::uint64_t longer_chain(std::uint64_t chain, std::span<const std::int32_t> token_ids) {
  return XXH64(token_ids.data(), token_ids.size_bytes(), chain);
}

}  // namespace

std::uint64_t keyed_hash(const std::array<std::uint64_t, 2>& key, std::uint64_t word) {
  std::uint64_t a = key[0] ^ 0x736f6d6570736575, b = key[1] ^ 0x646f72616e646f6d,
                c = key[0] ^ 0x6c7967656e657261, d = key[1] ^ 0x7465646279746573;
  const auto mix = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      a += b, b = std::rotl(b, 13) ^ a, a = std::rotl(a, 32);
      c += d, d = std::rotl(d, 16) ^ c;
      a += d, d = std::rotl(d, 21) ^ a;
      c += b, b = std::rotl(b, 17) ^ c, c = std::rotl(c, 32);
    }
  };
  const std::uint64_t length = std::uint64_t{sizeof word} << 56;
  for (const std::uint64_t part : {word, length}) {
    d ^= part;
    mix(2);
    a ^= part;
  }
  c ^= 0xff;
  mix(4);
  return a ^ b ^ c ^ d;
}

TraceLog::TraceLog(std::string file, std::int64_t block_size, std::string default_salt,
                   Clock::time_point start)
    : name_(std::move(file)),
      block_size_(block_size),
      default_salt_(std::move(default_salt)),
      start_(start),
      key_{random_word(), random_word()},
      file_(-1) {
  std::error_code error;
  if (std::filesystem::is_fifo(name_, error)) {
    throw InputError(
        fmt::format("--log-trace cannot write \"{}\": it is a pipe, whose reader could hold up the server; "
                    "give a file",
                    name_));
  }
  // Appended, so that lines stay whole where two servers get the same file. A terminal must not hold up the
  // server either.
  file_ = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0666);
  if (file_ < 0) {
    throw InputError(fmt::format("--log-trace cannot write \"{}\": {}; give a file that can be written",
                                 name_, std::strerror(errno)));
  }
}

TraceLog::~TraceLog() {
  if (file_ >= 0) ::close(file_);
}

void TraceLog::replace_file() {
  [[maybe_unused]] const int is_a_device = ::ftruncate(file_, 0);
}

LoggedRequest TraceLog::arrived(const GenerationRequest& request, Clock::time_point at) const {
  LoggedRequest logged{
      .timestamp = std::chrono::duration_cast<std::chrono::milliseconds>(at - start_).count(),
      .input_length = std::ssize(request.prompt_ids),
      .hash_ids = {},
      .output_lengths = std::vector<std::int64_t>(static_cast<std::size_t>(request.samples))};
  const std::string& salt = request.salt.empty() ? default_salt_ : request.salt;
  std::uint64_t chain = XXH64(salt.data(), salt.size(), 0);
  const std::span<const std::int32_t> prompt = request.prompt_ids;
  const auto block_size = static_cast<std::size_t>(block_size_);
  logged.hash_ids.reserve((prompt.size() + block_size - 1) / block_size);
  for (std::size_t begin = 0; begin < prompt.size(); begin += block_size) {
    chain = longer_chain(chain, prompt.subspan(begin, std::min(block_size, prompt.size() - begin)));
    logged.hash_ids.push_back(keyed_hash(key_, chain) >> (64 - kNumberBits));
  }
  return logged;
}

void TraceLog::hear(const GenerationEvent& event, LoggedRequest& request) {
  std::int64_t& output_length = request.output_lengths[static_cast<std::size_t>(event.sample)];
  if (event.id) ++output_length;
  if (file_ < 0 || event.finish_reason.empty() || event.finish_reason == "error" || !event.admitted) return;
  try {
    write(fmt::format(
        "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, \"hash_ids\": [{}]}}\n",
        request.timestamp, request.input_length, output_length, fmt::join(request.hash_ids, ", ")));
  } catch (const std::bad_alloc&) {
    end("out of memory");
  }
}

/// If a part of the line does not fit on the disk, the file keeps whole lines alone.
void TraceLog::write(std::string_view line) {
  std::size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = ::write(file_, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = errno;
      struct stat now {};
      if (written > 0 && ::fstat(file_, &now) == 0) {
        [[maybe_unused]] const int cut = ::ftruncate(file_, now.st_size - static_cast<off_t>(written));
      }
      return end(std::strerror(error));
    }
    written += static_cast<std::size_t>(count);
  }
}

/// Needs no memory.
void TraceLog::end(const char* why) {
  for (const char* part : {"note: --log-trace cannot write \"", name_.c_str(), "\": ", why,
                           "; no more requests are logged, and the server goes on\n"})
    std::fputs(part, stderr);
  ::close(std::exchange(file_, -1));
}

}  // namespace kvcache
