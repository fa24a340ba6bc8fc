#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "core/error.h"
#include "tests/support/folder_fixture.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

class FileTest : public FolderFixture {};

TEST_F(FileTest, AppearsWholeOrNotAtAll) {
  const fs::path path = folder_ / "a";
  {
    AtomicFile file(path);
    file.write("half");
    EXPECT_FALSE(fs::exists(path));
  }
  EXPECT_TRUE(names().empty());
  AtomicFile file(path);
  file.write("wh");
  file.write("ole");
  file.commit();
  EXPECT_EQ(read_file(path, 100), "whole");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
}

TEST_F(FileTest, SaysWhyItCannotBeOpened) {
  std::ofstream(folder_ / "a") << "text";
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string why;
  try {
    read_file(folder_ / "a", 100);
  } catch (const Error& error) {
    why = error.message();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_NE(why.find("cannot open the file: Too many open files"), std::string::npos) << why;
}

TEST_F(FileTest, ReplacesTheTargetOfALinkNotTheLink) {
  const fs::path link = folder_ / "link";
  fs::create_symlink(folder_ / "target", link);
  AtomicFile file(link);
  file.write("text");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_file(folder_ / "target", 100), "text");
}

TEST_F(FileTest, WritesToDevicesDirectly) {
  AtomicFile null("/dev/null");
  null.write("text");
  null.commit();
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  AtomicFile full("/dev/full");
  EXPECT_THROW(full.write("text"), Error);
  EXPECT_NO_THROW(require_writable("/dev/full"));
}

TEST_F(FileTest, RemovesWhatIsHalfWritten) {
  AtomicFile first(folder_ / "a"), second(folder_ / "b");
  first.write("half");
  AtomicFile(folder_ / "c").commit();
  EXPECT_EQ(names().size(), 3U);
  remove_unfinished_files();  // as the signal handler does
  EXPECT_EQ(names(), std::vector<std::string>{"c"});

  // Forks have the token of this process in the names of their files, and other processes do not.
  fs::create_symlink(folder_ / "d", folder_ / "link");
  std::ofstream(folder_ / ("d." + temporary_token() + ".tmp")) << "half";
  std::ofstream(folder_ / "d.77.tmp") << "half";
  remove_unfinished_file(folder_ / "link");
  EXPECT_EQ(names(), (std::vector<std::string>{"c", "d.77.tmp", "link"}));
}

// Files for one path have one temporary name, one after the other. The end of one is not that of the next.
TEST_F(FileTest, ForgetsOnlyItsOwnName) {
  const fs::path path = folder_ / "a";
  size_t left = 0;
  for (int round = 0; round < 1000; ++round) {
    std::atomic<bool> ends = false;
    std::thread other([&] {
      while (!ends) const AtomicFile file(path);
    });
    const AtomicFile file(path);
    ends = true;
    other.join();
    remove_unfinished_files();
    left += names().size();
  }
  EXPECT_EQ(left, 0U);
}

TEST_F(FileTest, FollowsNoLinkThatStandsInItsWay) {
  std::ofstream(folder_ / "victim") << "precious";
  const std::string in_the_way = "a." + temporary_token() + ".tmp";
  fs::create_symlink(folder_ / "victim", folder_ / in_the_way);
  {
    AtomicFile file(folder_ / "a");
    file.write("text");
    AtomicFile again(folder_ / "a");  // a second file of the same name at the same time
    again.write("other");
    again.commit();
    file.commit();
  }
  EXPECT_EQ(read_file(folder_ / "victim", 100), "precious");
  EXPECT_EQ(read_file(folder_ / "a", 100), "text");
  EXPECT_EQ(names(), (std::vector<std::string>{"a", in_the_way, "victim"}));
}

TEST_F(FileTest, RequireWritableLeavesNothingBehind) {
  require_writable(folder_ / "a");
  EXPECT_TRUE(names().empty());
  EXPECT_THROW(require_writable(folder_), Error);
  EXPECT_THROW(require_writable(folder_ / "missing" / "a"), Error);
}

TEST_F(FileTest, ReadFileNamesWhatIsWrong) {
  EXPECT_THROW(read_file(folder_ / "missing", 10), Error);
  EXPECT_THROW(read_file(folder_, 10), Error);
  AtomicFile file(folder_ / "a");
  file.write("12345");
  file.commit();
  EXPECT_THROW(read_file(folder_ / "a", 4), Error);
  EXPECT_EQ(read_file(folder_ / "a", 5), "12345");
}

TEST_F(FileTest, NamesAGitLfsPointer) {
  const fs::path path = folder_ / "spiece.model";
  std::ofstream(path) << "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 791656\n";
  try {
    read_file(path, 1000);
    FAIL() << "nothing was refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("is a git-lfs pointer"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera
