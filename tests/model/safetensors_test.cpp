/// @file
/// Safetensors files, right and wrong. Any file is either refused by name, or safe to read whole.
#include "common/model/safetensors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <latch>
#include <random>
#include <thread>

#include "common/base/error.h"
#include "common/base/stored_number.h"
#include "common/cli/run_main.h"
#include "tests/support/checkpoint_builder.h"

namespace kvcache::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// The sum of all bytes of all tensors, which reads every byte.
std::uint64_t read_every_byte(const SafetensorsFile& file) {
  std::uint64_t sum = 0;
  for (const auto& [name, tensor] : file.tensors())
    for (std::int64_t index = 0; index < tensor.bytes; ++index)
      sum += std::to_integer<std::uint64_t>(tensor.data[index]);
  return sum;
}

class Safetensors : public ::testing::Test {
 protected:
  /// The error for a file of `bytes`; "" if the file is accepted and can be read whole.
  std::string error_of(std::string_view bytes) {
    write_file(path_, bytes);
    std::string error = message_of<InputError>([&] { read_every_byte(SafetensorsFile(path_)); });
    if (!error.empty()) {
      EXPECT_THAT(error, HasSubstr(path_.string()));
      EXPECT_THAT(error, Not(HasSubstr("\n")));
    }
    return error;
  }
  std::string error_of_header(std::string_view header, std::string_view data = "") {
    return error_of(safetensors_bytes(header, data));
  }
  /// A file with the one tensor "t", whose fields are given as JSON text.
  std::string error_of_tensor(const std::string& fields, std::size_t data_bytes) {
    return error_of_header(R"({"t":)" + fields + "}", std::string(data_bytes, 'x'));
  }
  static std::string with_length(std::uint64_t length, std::string_view rest) {
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return bytes.append(rest);
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "model.safetensors";
};

TEST_F(Safetensors, GivesTypeShapeAndBytesOfEveryTensor) {
  write_file(path_, safetensors_bytes(
                        {{"a", {"F32", {2, 2}, {1, 2, 3, 4}, {}}}, {"b", {"BF16", {3}, {5, 6, 7}, {}}}}));
  const SafetensorsFile file(path_);
  ASSERT_EQ(file.tensors().size(), 2U);
  const StoredTensor& a = file.tensors().at("a");
  EXPECT_EQ(a.dtype, "F32");
  EXPECT_EQ(a.shape, (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(a.bytes, 16);
  EXPECT_EQ(read_number(DType::f32, a.data + 12), 4.0F);
  const StoredTensor& b = file.tensors().at("b");
  EXPECT_EQ(b.dtype, "BF16");
  EXPECT_EQ(b.bytes, 6);
  EXPECT_EQ(read_number(DType::bf16, b.data + 2), 6.0F);
}

TEST_F(Safetensors, ReadsDataAtAnyAlignment) {
  for (std::size_t padding = 0; padding < 8; ++padding) {
    write_file(path_, safetensors_bytes({{"a", {"F32", {2}, {1.5F, -2.5F}, {}}}}, padding));
    EXPECT_EQ(read_number(DType::f32, SafetensorsFile(path_).tensors().at("a").data + 4), -2.5F) << padding;
  }
}

TEST_F(Safetensors, StaysMappedWhileACopyLives) {
  write_file(path_, safetensors_bytes({{"a", {"F32", {1}, {1.5F}, {}}}}));
  auto first = std::make_unique<SafetensorsFile>(path_);
  const SafetensorsFile copy = *first;
  first.reset();
  EXPECT_EQ(read_number(DType::f32, copy.tensors().at("a").data), 1.5F);
}

TEST_F(Safetensors, RefusesFilesTooShortForAHeaderLength) {
  EXPECT_THAT(error_of(""), HasSubstr("0 bytes are too few"));
  EXPECT_THAT(error_of("1234567"), HasSubstr("7 bytes are too few"));
}

TEST_F(Safetensors, NamesAGitLfsPointer) {
  EXPECT_THAT(error_of("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 1234\n"),
              AllOf(HasSubstr("this is a Git LFS pointer"), HasSubstr("git lfs pull")));
}

TEST_F(Safetensors, RefusesHeaderLengthsThatTheFileCannotHold) {
  const std::string rest = R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}x)";
  EXPECT_THAT(error_of(with_length(rest.size() - 1, rest)), IsEmpty());
  EXPECT_THAT(error_of(with_length(0, rest)), HasSubstr("does not start with '{'"));
  EXPECT_THAT(error_of(with_length(1, rest)), HasSubstr("header"));
  EXPECT_THAT(error_of(with_length(rest.size() + 8 - 7, rest)), HasSubstr("truncated"));
  EXPECT_THAT(error_of(with_length(rest.size() + 1, rest)), HasSubstr("truncated"));
  EXPECT_THAT(error_of(with_length(100'000'000, rest)), HasSubstr("truncated"));
  for (const std::uint64_t length :
       {std::uint64_t{1} << 31, std::uint64_t{1} << 63, ~std::uint64_t{0}, ~std::uint64_t{0} - 7})
    EXPECT_THAT(error_of(with_length(length, rest)), HasSubstr(std::to_string(length)));
}

TEST_F(Safetensors, RefusesHeadersThatAreNotAnObject) {
  for (const char* header :
       {"[]", "null", "1", "\"t\"", "", "{", "{\"t\":}", "{}}", "{} {}", "{'t':1}", " {}"})
    EXPECT_THAT(error_of_header(header), Not(IsEmpty())) << header;
  EXPECT_THAT(error_of_header(std::string("{}\0", 3)), HasSubstr("NUL"));
  EXPECT_THAT(error_of_header("{}"), IsEmpty());
  EXPECT_THAT(error_of_header("{}   "), IsEmpty());
}

TEST_F(Safetensors, RefusesAHeaderThatIsNotUtf8) {
  EXPECT_THAT(error_of_header("{\"\xC3\x28\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"),
              HasSubstr("UTF-8"));
}

TEST_F(Safetensors, RefusesEndlessNesting) {
  const std::string deep(100'000, '[');
  EXPECT_THAT(error_of_header("{\"t\":" + deep + std::string(100'000, ']') + "}"), HasSubstr("nested"));
  EXPECT_THAT(error_of_header("{\"t\":" + deep), HasSubstr("nested"));
  EXPECT_THAT(error_of_header(deep), HasSubstr("does not start with '{'"));
}

TEST_F(Safetensors, RefusesTheSameNameTwice) {
  const std::string tensor = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  EXPECT_THAT(error_of_header(R"({"twin":)" + tensor + R"(,"twin":)" + tensor + "}", "x"),
              AllOf(HasSubstr("\"twin\""), HasSubstr("twice")));
  EXPECT_THAT(error_of_tensor(R"({"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]})", 1),
              AllOf(HasSubstr("\"dtype\""), HasSubstr("twice")));
}

TEST_F(Safetensors, TakesMetadataOnlyAsAMapOfStrings) {
  EXPECT_THAT(error_of_header(R"({"__metadata__":{"format":"pt"}})"), IsEmpty());
  for (const char* metadata : {"1", "[]", "null", R"({"format":1})", R"({"format":{}})"})
    EXPECT_THAT(error_of_header(std::string(R"({"__metadata__":)") + metadata + "}"),
                HasSubstr("__metadata__"))
        << metadata;
}

TEST_F(Safetensors, RefusesUnknownTypesNamingTheTensor) {
  for (const char* dtype : {"\"bogus\"", "\"f32\"", "\"\"", "4", "null", "[\"F32\"]"})
    EXPECT_THAT(
        error_of_tensor(std::string(R"({"dtype":)") + dtype + R"(,"shape":[1],"data_offsets":[0,4]})", 4),
        AllOf(HasSubstr("tensor \"t\""), HasSubstr("dtype"), HasSubstr(dtype)));
}

TEST_F(Safetensors, AcceptsTypesThatAreNoWeights) {
  const std::map<std::string, int> bytes_of_eight = {
      {"BOOL", 8}, {"U8", 8},      {"I8", 8},      {"I16", 16},    {"U32", 32}, {"I64", 64},
      {"F64", 64}, {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F6_E2M3", 6}, {"F4", 4},   {"C64", 64}};
  for (const auto& [dtype, bytes] : bytes_of_eight) {
    const std::string fields =
        R"({"dtype":")" + dtype + R"(","shape":[8],"data_offsets":[0,)" + std::to_string(bytes) + "]}";
    EXPECT_THAT(error_of_tensor(fields, static_cast<std::size_t>(bytes)), IsEmpty()) << dtype;
  }
  EXPECT_THAT(error_of_tensor(R"({"dtype":"F4","shape":[3],"data_offsets":[0,1]})", 1),
              HasSubstr("whole number"));
}

TEST_F(Safetensors, RefusesShapesThatAreNotListsOfCounts) {
  for (const char* shape : {"[-1]", "[1.0]", "[1.5]", "[\"1\"]", "[null]", "[[1]]", "1", "null", "{}",
                            "[9223372036854775808]", "[18446744073709551616]", "[1e3]", "[true]"})
    EXPECT_THAT(
        error_of_tensor(std::string(R"({"dtype":"U8","shape":)") + shape + R"(,"data_offsets":[0,1]})", 1),
        AllOf(HasSubstr("tensor \"t\""), HasSubstr("shape")))
        << shape;
}

TEST_F(Safetensors, RefusesShapesWhoseSizeOverflows) {
  for (const char* shape : {"[4294967296,4294967296]", "[4611686018427387904,4]", "[9223372036854775807]",
                            "[2147483648,2147483648,4]"})
    EXPECT_THAT(
        error_of_tensor(std::string(R"({"dtype":"F32","shape":)") + shape + R"(,"data_offsets":[0,0]})", 0),
        AllOf(HasSubstr("tensor \"t\""), HasSubstr("overflows")))
        << shape;
}

TEST_F(Safetensors, HandlesEmptyTensorsAndSingleNumbersAsTheFormatSays) {
  EXPECT_THAT(error_of_tensor(R"({"dtype":"F32","shape":[0,5],"data_offsets":[0,0]})", 0), IsEmpty());
  EXPECT_THAT(error_of_tensor(R"({"dtype":"F32","shape":[],"data_offsets":[0,4]})", 4), IsEmpty());
  EXPECT_THAT(error_of_tensor(R"({"dtype":"F32","shape":[0,5],"data_offsets":[0,4]})", 4), HasSubstr("span"));
  EXPECT_THAT(error_of_tensor(R"({"dtype":"F32","shape":[],"data_offsets":[0,0]})", 0), HasSubstr("span"));
}

TEST_F(Safetensors, RefusesOffsetsThatAreNotABeginAndAnEnd) {
  for (const char* offsets : {"[]", "[0]", "[8,0]", "[-8,0]", "[0,8.0]", "[0,8,16]", "null", "8",
                              "[\"0\",\"8\"]", "[0,18446744073709551615]", "[0,9223372036854775808]"})
    EXPECT_THAT(
        error_of_tensor(std::string(R"({"dtype":"F32","shape":[2],"data_offsets":)") + offsets + "}", 8),
        AllOf(HasSubstr("tensor \"t\""), HasSubstr("data_offsets")))
        << offsets;
}

TEST_F(Safetensors, NamesTheLargestNumberBesideOneThatIsTooLarge) {
  for (const char* large : {"9223372036854775808", "18446744073709551615", "18446744073709551616"}) {
    for (const std::string fields :
         {R"("shape":[2],"data_offsets":[0,)", R"("data_offsets":[0,8],"shape":[)"})
      EXPECT_THAT(error_of_tensor(R"({"dtype":"F32",)" + fields + large + "]}", 8),
                  HasSubstr("it must be a list of whole numbers from 0 to 9223372036854775807"))
          << large;
  }
}

TEST_F(Safetensors, SaysWhenOffsetsRunBackwards) {
  EXPECT_THAT(error_of_tensor(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", 8),
              AllOf(HasSubstr("[8,0]"), HasSubstr("end before they begin")));
}

TEST_F(Safetensors, RefusesEntriesWithMissingOrUnknownFields) {
  for (const char* field : {"dtype", "shape", "data_offsets"}) {
    nlohmann::json fields = {{"dtype", "U8"}, {"shape", {1}}, {"data_offsets", {0, 1}}};
    fields.erase(field);
    EXPECT_THAT(error_of_tensor(fields.dump(), 1),
                AllOf(HasSubstr("tensor \"t\""), HasSubstr(field), HasSubstr("missing")));
  }
  EXPECT_THAT(error_of_tensor(R"({"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]})", 1),
              AllOf(HasSubstr("tensor \"t\""), HasSubstr("strides")));
  EXPECT_THAT(error_of_tensor("7", 1), HasSubstr("tensor \"t\""));
}

TEST_F(Safetensors, RefusesDataThatIsNotCoveredExactlyOnce) {
  const auto two = [](const std::string& first, const std::string& second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + second + "}}";
  };
  const std::string data(8, 'x');
  EXPECT_THAT(error_of_header(two("[0,4]", "[4,8]"), data), IsEmpty());
  EXPECT_THAT(error_of_header(two("[4,8]", "[0,4]"), data), IsEmpty());
  EXPECT_THAT(error_of_header(two("[0,4]", "[3,7]"), data), AllOf(HasSubstr("\"b\""), HasSubstr("overlap")));
  EXPECT_THAT(error_of_header(two("[0,4]", "[0,4]"), data), HasSubstr("overlap"));
  EXPECT_THAT(error_of_header(two("[0,4]", "[5,9]"), data + "x"),
              AllOf(HasSubstr("\"b\""), HasSubstr("hole")));
  EXPECT_THAT(error_of_header(two("[1,5]", "[5,9]"), data + "x"),
              AllOf(HasSubstr("\"a\""), HasSubstr("hole")));
  EXPECT_THAT(error_of_header(two("[0,4]", "[4,8]"), data + "x"), HasSubstr("1 bytes at the end"));
  EXPECT_THAT(error_of_header(two("[0,4]", "[4,8]"), data.substr(1)),
              AllOf(HasSubstr("\"b\""), HasSubstr("out of the file")));
  EXPECT_THAT(error_of_header("{}", "x"), HasSubstr("belong to no tensor"));
}

TEST_F(Safetensors, TakesAnEmptyTensorWhereverAnotherBegins) {
  const auto both = [](const std::string& filled, const std::string& empty) {
    return R"({")" + filled + R"(":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},")" + empty +
           R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})";
  };
  const std::string data(8, 'x');
  EXPECT_THAT(error_of_header(both("a", "b"), data), IsEmpty());
  EXPECT_THAT(error_of_header(both("b", "a"), data), IsEmpty());
}

TEST_F(Safetensors, RefusesAFileCutAnywhere) {
  const std::string whole =
      safetensors_bytes({{"a", {"F32", {2}, {1, 2}, {}}}, {"b", {"F16", {3}, {5, 6, 7}, {}}}});
  EXPECT_THAT(error_of(whole), IsEmpty());
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_THAT(error_of(whole.substr(0, length)), Not(IsEmpty())) << length;
}

TEST_F(Safetensors, KeepsMessagesOnOneShortLine) {
  const std::string name = "evil\\n\\u001b[31m" + std::string(10'000, 'a');
  const std::string error =
      error_of_header(R"({")" + name + R"(":{"dtype":"bogus","shape":[],"data_offsets":[]}})");
  EXPECT_THAT(error, AllOf(HasSubstr("evil"), Not(HasSubstr("\x1b"))));
  EXPECT_LT(error.size(), path_.string().size() + 300);
}

TEST_F(Safetensors, RefusesPathsThatAreNoFiles) {
  EXPECT_THAT(message_of<InputError>([&] { SafetensorsFile file(folder_ / "absent"); }),
              AllOf(HasSubstr("absent"), HasSubstr("no such file")));
  EXPECT_THAT(message_of<InputError>([&] { SafetensorsFile file(folder_.path()); }),
              HasSubstr("not a regular file"));
  EXPECT_THAT(message_of<InputError>([&] { SafetensorsFile file("/dev/zero"); }),
              HasSubstr("not a regular file"));
}

TEST_F(Safetensors, SaysWhyAFileCannotBeOpened) {
  const auto error = [&] { return message_of<InputError>([&] { SafetensorsFile file(path_); }); };
  std::filesystem::create_symlink("gone", path_);
  EXPECT_THAT(error(), AllOf(HasSubstr(path_.string()), HasSubstr("no such file, this is a link to gone")));
  std::filesystem::remove(path_);
  std::filesystem::create_symlink(path_.filename(), path_);
  EXPECT_THAT(error(), AllOf(HasSubstr(path_.string()), HasSubstr("Too many levels of symbolic links")));
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(error(), AllOf(HasSubstr(path_.string()), HasSubstr("not a regular file")));
  write_file(path_, safetensors_bytes("{}", ""));
  EXPECT_THAT(error(), IsEmpty());
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
  std::filesystem::permissions(path_, std::filesystem::perms::none);
  EXPECT_THAT(as_nobody(error), AllOf(HasSubstr(path_.string()), HasSubstr("Permission denied")));
}

/// A header of empty objects takes the most memory for its bytes. The limit on values bounds this memory.
TEST_F(Safetensors, RefusesAHeaderOfMoreValuesThanAnyHas) {
  std::string header = R"({"__metadata__":[{})";
  for (int value = 0; value < 4'000'000; ++value) header += ",{}";
  EXPECT_THAT(error_of_header(header + "]}"),
              AllOf(HasSubstr("header"), HasSubstr("more than 4000000 values")));
}

/// Maps a file of `tensors`, cuts it short and reads on, within run_main as the programs do.
int read_a_file_cut_short(const std::filesystem::path& path) {
  return run_main([&] {
    const SafetensorsFile other(path.parent_path() / "other.safetensors"), file(path);
    std::filesystem::resize_file(path, 0);
    return static_cast<int>(read_every_byte(other) + read_every_byte(file));
  });
}

using SafetensorsDeathTest = Safetensors;

TEST_F(SafetensorsDeathTest, AFileCutShortWhileItIsInUseIsNamedBeforeTheEnd) {
  const std::string bytes = safetensors_bytes({{"a", {"F32", {2}, {1, 2}, {}}}});
  write_file(path_, bytes);
  write_file(folder_ / "other.safetensors", bytes);
  EXPECT_EXIT(std::exit(read_a_file_cut_short(path_)), testing::KilledBySignal(SIGBUS),
              "^error: " + path_.string() + ": the file has become shorter[^\n]* mv, do not rewrite them\n$");
}

TEST_F(SafetensorsDeathTest, AFileCutShortIsNamedOnceWhereManyThreadsReadIt) {
  write_file(path_, safetensors_bytes({{"a", {"F32", {2}, {1, 2}, {}}}}));
  EXPECT_EXIT(std::exit(run_main([&] {
                const SafetensorsFile file(path_);
                std::filesystem::resize_file(path_, 0);
                std::latch all_there(8);
                std::atomic<std::uint64_t> sum = 0;  // used, or a compiler reads nothing
                std::vector<std::jthread> threads;
                for (int thread = 0; thread < 8; ++thread)
                  threads.emplace_back([&] {
                    all_there.arrive_and_wait();
                    sum += read_every_byte(file);
                  });
                threads.clear();
                return static_cast<int>(sum);
              })),
              testing::KilledBySignal(SIGBUS), "^error: [^\n]*\n$");
}

/// Other memory at the place of a former mapping does not count as the mapped file.
TEST_F(SafetensorsDeathTest, AFileThatIsClosedIsNotNamed) {
  write_file(path_, safetensors_bytes({{"a", {"F32", {2}, {1, 2}, {}}}}));
  EXPECT_EXIT(std::exit(run_main([&] {
                { const SafetensorsFile closed(path_); }
                const int descriptor = ::open(path_.c_str(), O_RDONLY);
                const void* const memory = ::mmap(nullptr, 8, PROT_READ, MAP_PRIVATE, descriptor, 0);
                std::filesystem::resize_file(path_, 0);
                return static_cast<int>(*static_cast<const volatile char*>(memory));
              })),
              testing::KilledBySignal(SIGBUS), "^$");
}

TEST_F(SafetensorsDeathTest, ASignalThatSomebodySendsEndsTheProcessAsEver) {
  EXPECT_EXIT(std::exit(run_main([] { return std::raise(SIGBUS); })), testing::KilledBySignal(SIGBUS), "^$");
}

/// Seeded damage: bytes replaced, inserted or removed, digits changed, the end cut off; the header is hit
/// most.
TEST_F(Safetensors, NeverReadsOutsideADamagedFile) {
  const std::string whole = safetensors_bytes({{"a", {"F32", {2, 3}, {1, 2, 3, 4, 5, 6}, {}}},
                                               {"b", {"F16", {3}, {5, 6, 7}, {}}},
                                               {"c", {"I64", {0, 5}, {}, {}}},
                                               {"d", {"BF16", {}, {1}, {}}}});
  constexpr std::string_view likely = "0123456789[]{},:\"-.eE \0\xff";
  std::mt19937_64 random(1);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < 6000; ++round) {
    std::string bytes = whole;
    for (std::size_t change = 0; change < 1 + below(3); ++change) {
      const std::size_t at = below(bytes.size() - (below(10) == 0 ? 0 : 26));
      switch (below(6)) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.insert(at, 1, likely[below(likely.size())]);
          break;
        case 2:
          bytes.erase(at, 1 + below(4));
          break;
        default:
          bytes[at] = likely[below(likely.size())];
          break;
      }
    }
    if (below(20) == 0) bytes.resize(below(bytes.size()));
    ++(error_of(bytes).empty() ? accepted : refused);
  }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace kvcache::test
