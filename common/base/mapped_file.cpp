/// @file
/// Maps files and keeps a table of the mappings. A signal handler may read the table at any moment, on any
/// thread, without a lock or an allocation.
#include "common/base/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "common/base/error.h"
#include "common/base/input_file.h"

namespace kvcache {
namespace {

/// A mapping as the handler sees it. `line` belongs to the mapping's owner, which sets it last and clears it
/// first.
struct Mapped {
  std::atomic<bool> taken = false;
  std::atomic<std::uintptr_t> begin = 0;
  std::atomic<std::uintptr_t> end = 0;
  std::atomic<const std::string*> line = nullptr;  ///< what to print; nullptr: no mapping now
};

/// Global, because a signal handler has no arguments of its own. The largest checkpoints have about two
/// hundred files. A file beyond the table is mapped like the others, but without a message.
constinit std::array<Mapped, 1024> mapped_files;

/// Owns a mapping and its place in the table; frees both.
class Owner {
 public:
  Owner(void* memory, std::size_t size, const std::filesystem::path& path)
      : memory_(memory),
        size_(size),
        line_(fmt::format("error: {}: the file has become shorter, or its disk failed, while it was in use; "
                          "replace model files by mv, do not rewrite them\n",
                          path.string())) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    for (Mapped& place : mapped_files) {
      if (place.taken.exchange(true)) continue;
      place.begin = begin;
      place.end = begin + size;
      place.line = &line_;
      place_ = &place;
      return;
    }
  }
  ~Owner() {
    if (place_ != nullptr) {
      place_->line = nullptr;
      place_->taken = false;
    }
    ::munmap(memory_, size_);
  }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;

 private:
  void* memory_;
  std::size_t size_;
  std::string line_;
  Mapped* place_ = nullptr;
};

const std::string* line_about(const void* address) {
  const auto place = reinterpret_cast<std::uintptr_t>(address);
  for (const Mapped& mapped : mapped_files) {
    const std::string* const line = mapped.line;
    if (line != nullptr && mapped.begin <= place && place < mapped.end) return line;
  }
  return nullptr;
}

/// Makes only async-signal-safe calls. All threads read weights, so several may come here at once: the first
/// prints and ends the process, and the others wait.
void on_bus_error(int signal, siginfo_t* info, void*) {
  static std::atomic_flag entered;
  while (entered.test_and_set()) ::pause();
  if (info->si_code > 0) {  // from a memory access, not from kill()
    if (const std::string* const line = line_about(info->si_addr)) {
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line->data(), line->size());
    }
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // pending until this handler returns
}

}  // namespace

MappedFile map_file(const std::filesystem::path& path, std::uint64_t least, const char* short_of_what) {
  const auto fail = [&](const std::string& problem) {
    throw InputError(fmt::format("{}: {}", path.string(), problem));
  };
  require_regular_file(path);
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(std::string("cannot be opened: ") + std::strerror(errno));
  const std::shared_ptr<void> closer(nullptr, [descriptor](void*) { ::close(descriptor); });
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) fail(std::string("cannot be read: ") + std::strerror(errno));

  const auto size = static_cast<std::size_t>(info.st_size);
  if (size < least) fail(fmt::format("{} bytes are too few for {}", size, short_of_what));
  void* const memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED && errno == ENOMEM)
    throw RunError(fmt::format("{}: no address space for its {} bytes; raise the limit (ulimit -v)",
                               path.string(), size));
  if (memory == MAP_FAILED) fail(std::string("cannot be mapped: ") + std::strerror(errno));
  const auto owner = std::make_shared<Owner>(memory, size, path);
  return {{owner, static_cast<const std::byte*>(memory)}, size};
}

void explain_lost_pages() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace kvcache
