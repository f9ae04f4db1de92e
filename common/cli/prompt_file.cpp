/// @file
/// See prompt_file.h.
#include "common/cli/prompt_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string_view>

#include "common/base/error.h"
#include "common/tokenizer/utf8.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

constexpr std::size_t kMostBytes = std::size_t{256}
                                   << 20;  // longer than any context; an endless file ends here

/// An open file; "-" is stdin, which stays open.
class OpenFile {
 public:
  explicit OpenFile(const std::string& name)
      : is_stdin_(name == "-"),
        descriptor_(is_stdin_ ? STDIN_FILENO : open(name.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~OpenFile() {
    if (!is_stdin_ && descriptor_ >= 0) close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int descriptor() const { return descriptor_; }

 private:
  bool is_stdin_;
  int descriptor_;
};

}  // namespace

std::string read_prompt_file(const std::string& name) {
  const auto refusal = [&](std::string_view reason) {
    return InputError(fmt::format("--prompt-file {}: {}", name == "-" ? "- (stdin)" : name, reason));
  };
  const OpenFile file(name);
  if (file.descriptor() < 0) throw refusal(std::strerror(errno));
  std::string text;
  std::array<char, 65536> piece;
  for (;;) {
    const ssize_t count = read(file.descriptor(), piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw refusal(std::strerror(errno));
    if (count == 0) break;
    const std::string_view bytes(piece.data(), static_cast<std::size_t>(count));
    if (const std::size_t nul = bytes.find('\0'); nul != std::string_view::npos) {
      throw refusal(
          fmt::format("byte {} is a NUL, so this is not a text; give one in UTF-8", text.size() + nul + 1));
    }
    text += bytes;
    if (text.size() > kMostBytes)
      throw refusal(fmt::format("it holds more than {} MiB, more than any context; give a shorter text",
                                kMostBytes >> 20U));
  }
  if (const std::optional<std::size_t> offset = find_invalid_utf8(text)) {
    throw refusal(
        fmt::format("it is not valid UTF-8 at byte {}; convert it, for example with iconv", *offset + 1));
  }
  if (text.ends_with('\n')) text.resize(text.size() - (text.ends_with("\r\n") ? 2 : 1));
  return text;
}

}  // namespace kvcache
