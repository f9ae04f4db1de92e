// PCRE2 without memory: that is no fault of the pattern or of the text.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <new>

#include "common/tokenizer/regex.h"

namespace {

thread_local int fails_in = -1;  // calls of malloc before the one that fails; below 0: none fails

}  // namespace

// The sanitizers have a malloc of their own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
extern "C" void* __libc_malloc(std::size_t size);  // NOLINT: the name is glibc's
extern "C" void* malloc(std::size_t size) {
  if (fails_in < 0 || fails_in-- > 0) return __libc_malloc(size);
  errno = ENOMEM;
  return nullptr;
}
constexpr bool kMallocFails = true;
#else
constexpr bool kMallocFails = false;
#endif

namespace kvcache {
namespace {

/// Fails at each call of malloc in `work`, one after the other. Each time `work` must throw std::bad_alloc,
/// or do without the memory.
template <typename Work>
void expect_bad_alloc_at_every_place(const Work& work) {
  int failures = 0;
  for (int place = 0;; ++place) {
    fails_in = place;
    try {
      work();
    } catch (const std::bad_alloc&) {
      ++failures;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "at malloc " << place << ": " << error.what();
    }
    if (fails_in >= 0) break;  // `work` has no more calls
  }
  fails_in = -1;
  EXPECT_GT(failures, 1);
}

TEST(ARegexWithoutMemory, IsNotCalledWrong) {
  if (!kMallocFails) GTEST_SKIP() << "a sanitizer's malloc";
  expect_bad_alloc_at_every_place([] { Regex::from_pattern("a+|[b-d]x"); });
}

TEST(ARegexWithoutMemory, IsNotSaidToFailOnTheText) {
  if (!kMallocFails) GTEST_SKIP() << "a sanitizer's malloc";
  const Regex regex = Regex::from_pattern("(a|b)+c");
  const std::string text(1000, 'a');  // needs a search with counted steps
  expect_bad_alloc_at_every_place([&] {
    TextBudget budget(text.size());
    regex.find_all(text, budget);
  });
}

}  // namespace
}  // namespace kvcache
