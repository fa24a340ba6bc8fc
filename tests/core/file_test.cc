#include "core/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "tests/support/file_size_limit.h"
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

TEST_F(FileTest, SaysIfItsFolderIsRemovedMeanwhile) {
  const fs::path folder = folder_ / "removed";
  fs::create_directory(folder);
  AtomicFile file(folder / "a");
  file.write("text");
  fs::remove_all(folder);
  std::string why;
  try {
    file.commit();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    why = error.what();
  }
  EXPECT_EQ(why, "[" + (folder / "a").string() +
                     "] what was written of it is gone, as if its folder had been removed; run again");
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

TEST_F(FileTest, WaitsForAPipeThatDoesNotBlock) {
  std::array<int, 2> ends = {};
  ASSERT_EQ(::pipe2(ends.data(), O_NONBLOCK), 0);
  const std::string text(1 << 20, 'x');
  size_t arrived = 0;
  std::thread reader([&] {
    std::array<char, 4096> part = {};
    pollfd poll = {.fd = ends[0], .events = POLLIN, .revents = 0};
    while (::poll(&poll, 1, -1) > 0) {
      const ssize_t count = ::read(ends[0], part.data(), part.size());
      if (count <= 0) return;
      arrived += static_cast<size_t>(count);
    }
  });
  EXPECT_TRUE(write_to_descriptor(ends[1], std::as_bytes(std::span(text))));
  ::close(ends[1]);
  reader.join();
  ::close(ends[0]);
  EXPECT_EQ(arrived, text.size());
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

TEST_F(FileTest, RemovesAnyNumberOfFiles) {
  std::vector<std::unique_ptr<AtomicFile>> files;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 100; ++i) files.push_back(std::make_unique<AtomicFile>(folder_ / std::to_string(i)));
    EXPECT_EQ(names().size(), 100U);
    remove_unfinished_files();
    EXPECT_TRUE(names().empty());
    files.clear();
  }
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

std::string why_not_writable(const fs::path& path) {
  try {
    require_writable(path);
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

TEST_F(FileTest, LinksInACircleAreNotReplaced) {
  fs::create_symlink("other", folder_ / "one");
  fs::create_symlink("one", folder_ / "other");
  const std::string why = why_not_writable(folder_ / "one");
  EXPECT_NE(why.find("Too many levels of symbolic links"), std::string::npos) << why;
  EXPECT_TRUE(fs::is_symlink(folder_ / "one"));
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

TEST_F(FileTest, SaysWhereALinkLeads) {
  const auto refusal = [&](const fs::path& path) -> std::string {
    try {
      type_at(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(type_at(folder_ / "missing" / "a"), fs::file_type::not_found);
  std::ofstream(folder_ / "a") << "text";
  fs::create_symlink("a", folder_ / "good");
  EXPECT_EQ(type_at(folder_ / "good"), fs::file_type::regular);
  EXPECT_EQ(type_at(folder_ / "a" / "below"), fs::file_type::not_found);
  fs::create_directory(folder_ / "folder");
  fs::create_symlink("folder", folder_ / "way");
  EXPECT_EQ(type_at(folder_ / "way" / "missing"), fs::file_type::not_found);
  fs::create_symlink("../blobs/gone", folder_ / "dangling");
  const std::string dangling = fmt::format(
      "[{}/dangling] is a link to ../blobs/gone, which does not exist; download it again", folder_.string());
  EXPECT_EQ(refusal(folder_ / "dangling"), dangling);
  EXPECT_EQ(refusal(folder_ / "dangling" / "a"), dangling);
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_NE(refusal(folder_ / "loop").find("cannot open: Too many levels of symbolic links"),
            std::string::npos);
}

TEST_F(FileTest, ListsWhatAFolderHolds) {
  for (const char* name : {"b", "c", "a"}) std::ofstream(folder_ / name) << "text";
  fs::create_symlink("loop", folder_ / "loop");
  std::error_code code;
  EXPECT_EQ(list_folder(folder_, code),
            (std::vector<fs::path>{folder_ / "a", folder_ / "b", folder_ / "c", folder_ / "loop"}));
  EXPECT_FALSE(code);
  EXPECT_TRUE(list_folder(folder_ / "loop", code).empty());
  EXPECT_EQ(code, std::errc::too_many_symbolic_link_levels);
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

class FileSequenceTest : public FolderFixture {};

TEST_F(FileSequenceTest, AppearsWholeOrNotAtAll) {
  {
    AtomicSequence sequence(folder_ / "a.txt");
    sequence.add("zero");
    sequence.add("one");
  }
  EXPECT_TRUE(names().empty());
  AtomicSequence sequence(folder_ / "a.txt");
  for (const char* text : {"zero", "one", "two"}) sequence.add(text);
  EXPECT_FALSE(fs::exists(folder_ / "a-0000.txt"));
  sequence.commit();
  EXPECT_EQ(names(), (std::vector<std::string>{"a-0000.txt", "a-0001.txt", "a-0002.txt"}));
  EXPECT_EQ(read_file(folder_ / "a-0001.txt", 10), "one");
}

TEST_F(FileSequenceTest, IsRemovedBySignalHandlersAndByItsLauncher) {
  AtomicSequence sequence(folder_ / "a.txt");
  for (int i = 0; i < 12; ++i) sequence.add("text");
  AtomicFile file(folder_ / "b");
  remove_unfinished_files();  // as the signal handler does
  EXPECT_TRUE(names().empty());

  const fs::path of_a_fork = folder_ / ("c.txt." + temporary_token() + ".tmp");
  fs::create_directory(of_a_fork);
  std::ofstream(of_a_fork / "0") << "half";
  remove_unfinished_file(folder_ / "c.txt");
  EXPECT_TRUE(names().empty());
}

TEST_F(FileSequenceTest, TakesTurnsWithAnotherOfTheSameName) {
  AtomicSequence first(folder_ / "a.txt"), second(folder_ / "a.txt");
  first.add("first");
  second.add("second");
  second.commit();
  first.commit();
  EXPECT_EQ(read_file(folder_ / "a-0000.txt", 10), "first");
  EXPECT_EQ(names(), std::vector<std::string>{"a-0000.txt"});
}

TEST_F(FileSequenceTest, LeavesNothingIfItFails) {
  EXPECT_THROW(AtomicSequence(folder_ / "missing" / "a.txt"), Error);
  {
    const FileSizeLimit full(100);
    AtomicSequence sequence(folder_ / "b.txt");
    sequence.add("text");
    EXPECT_THROW(sequence.add(std::string(200, 'x')), Error);
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(FileSequenceTest, SaysIfItsFolderIsRemovedMeanwhile) {
  const fs::path folder = folder_ / "removed";
  for (const bool is_complete : {false, true}) {
    fs::create_directory(folder);
    AtomicSequence sequence(folder / "a.txt");
    sequence.add("text");
    fs::remove_all(folder);
    std::string why;
    try {
      is_complete ? sequence.commit() : sequence.add("text");
    } catch (const Error& error) {
      why = error.what();
    }
    EXPECT_TRUE(
        why.ends_with("/a.txt] what was written of it is gone, as if its folder had been removed; run again"))
        << is_complete << why;
  }
}

TEST_F(FileSequenceTest, KeepsAllFilesIfOneCannotTakeItsPlace) {
  fs::create_directory(folder_ / "a-0001.txt");
  std::string error;
  {
    AtomicSequence sequence(folder_ / "a.txt");
    for (int i = 0; i < 3; ++i) sequence.add("text");
    try {
      sequence.commit();
    } catch (const Error& refused) {
      error = refused.what();
    }
  }
  ASSERT_EQ(names().size(), 2U);
  const fs::path kept = folder_ / names()[1];
  EXPECT_EQ(names()[0], "a-0001.txt") << "the folder that was in the way";
  EXPECT_TRUE(error.ends_with("Is a directory; all files are in " + kept.string())) << error;
  for (const char* number : {"0", "1", "2"}) EXPECT_EQ(read_file(kept / number, 10), "text");
  remove_unfinished_file(folder_ / "a.txt");  // as a launcher does after a failure
  EXPECT_TRUE(fs::exists(kept));
}

}  // namespace
}  // namespace tessera
