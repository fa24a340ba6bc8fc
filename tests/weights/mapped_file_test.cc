#include "weights/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <vector>

#include "core/error.h"
#include "launch/signals.h"
#include "launch/status.h"

namespace tessera::weights {
namespace {

constexpr size_t kBytes = 1 << 16;

class MappedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = testing::TempDir() + fmt::format("tessera_mapped_{}", ::getpid());
    std::ofstream(path_, std::ios::binary) << std::string(kBytes, 'x');
  }
  void TearDown() override { std::filesystem::remove(path_); }

  std::string refusal(const MappedFile& file) const {
    try {
      file.require_unchanged();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return error.what();
    }
    return "accepted";
  }
  std::string expected() const {
    return fmt::format("[{}] was written to while it was in use; run again when it is complete", path_);
  }

  std::string path_;
};

// Reads a page that is gone.
void touch(const MappedFile& file) {
  [[maybe_unused]] const std::byte byte = const_cast<const volatile std::byte&>(file.bytes().back());
}

TEST_F(MappedFileTest, NoticesWhatBecameOfTheFile) {
  const MappedFile file(path_);
  EXPECT_EQ(file.bytes().size(), kBytes);
  EXPECT_EQ(refusal(file), "accepted");
  std::filesystem::rename(path_, path_ + ".old");
  std::ofstream(path_) << "another";
  EXPECT_EQ(refusal(file), "accepted") << "it has another name now";
  EXPECT_EQ(file.bytes().back(), std::byte{'x'});
  std::filesystem::rename(path_ + ".old", path_);
  ASSERT_EQ(::truncate(path_.c_str(), kBytes / 2), 0);
  EXPECT_EQ(refusal(file), expected());
  ASSERT_EQ(::truncate(path_.c_str(), kBytes), 0);
  EXPECT_EQ(refusal(file), expected()) << "it is as long as before";
}

TEST_F(MappedFileTest, RefusesWhatCannotBeMapped) {
  EXPECT_THROW(MappedFile(path_ + ".none"), Error);
  EXPECT_THROW(MappedFile{testing::TempDir()}, Error);
  ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
  EXPECT_THROW(MappedFile{path_}, Error);
}

TEST_F(MappedFileTest, IsKnownByItsAddresses) {
  const std::byte* data = nullptr;
  {
    const MappedFile file(path_), second(path_);
    data = file.bytes().data();
    EXPECT_EQ(changed_file_at(data), expected());
    EXPECT_EQ(changed_file_at(data + kBytes - 1), expected());
    EXPECT_EQ(changed_file_at(second.bytes().data()), expected());
    EXPECT_EQ(changed_file_at(&data), nullptr);
  }
  EXPECT_EQ(changed_file_at(data), nullptr);
}

TEST_F(MappedFileTest, AnyNumberIsKnown) {
  std::vector<std::unique_ptr<MappedFile>> files(1500);
  for (auto& file : files) file = std::make_unique<MappedFile>(path_);
  for (const auto& file : files) EXPECT_EQ(changed_file_at(file->bytes().data()), expected());
  const std::byte* const data = files.back()->bytes().data();
  files.clear();
  EXPECT_EQ(changed_file_at(data), nullptr);
}

TEST_F(MappedFileTest, APageThatIsGoneEndsTheProgramWithOneLine) {
  const auto end = [&] {
    launch::install_signal_handlers();
    const MappedFile file(path_);
    if (::truncate(path_.c_str(), 0) == 0) touch(file);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(3), "^tessera: .*was written to while it was in use");
}

TEST_F(MappedFileTest, OfARankItsLauncherPrintsTheLine) {
  launch::StatusTable table(1);
  const auto end = [&] {
    launch::install_signal_handlers();
    launch::leave_signals_to_parent(table.rank(0));
    const MappedFile file(path_);
    if (::truncate(path_.c_str(), 0) == 0) touch(file);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(3), "^$");
  ASSERT_TRUE(table.rank(0).failure());
  EXPECT_EQ(table.rank(0).failure()->exit_code, 3);
  EXPECT_EQ(table.rank(0).failure()->message, expected());
}

// Of anything else, SIGBUS is what it always was.
TEST_F(MappedFileTest, OtherPagesAreNoFiles) {
  const auto end = [&] {
    launch::install_signal_handlers();
    const int file = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
    void* const data = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file, 0);
    if (::ftruncate(file, 0) != 0 || data == MAP_FAILED) return;
    [[maybe_unused]] const char byte = *static_cast<volatile char*>(data);
  };
  EXPECT_EXIT(end(), testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace tessera::weights
