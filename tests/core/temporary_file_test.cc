#include "core/temporary_file.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <functional>

#include "core/error.h"
#include "core/file.h"
#include "tests/support/folder_fixture.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "no error";
}

class ReplacementTest : public FolderFixture {
 protected:
  void SetUp() override { fs::permissions(folder_, fs::perms(0755)); }  // for another user

  fs::path file_with(const std::string& name, mode_t mode) const {
    fs::path path = folder_ / name;
    std::ofstream(path) << "old, and longer than what replaces it";
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }

  // Runs `work` in a fork, as another user or with mounts of its own; returns what it throws.
  static std::string in_fork(const std::function<void()>& prepare, const std::function<void()>& work) {
    std::array<int, 2> ends = {};
    EXPECT_EQ(::pipe(ends.data()), 0);
    const pid_t process = ::fork();
    if (process == 0) {
      prepare();
      const std::string error = error_of(work);
      ::_exit(::write(ends[1], error.data(), error.size()) < 0);
    }
    ::close(ends[1]);
    std::array<char, 1000> text = {};
    const ssize_t bytes = ::read(ends[0], text.data(), text.size());
    ::close(ends[0]);
    int status = -1;
    ::waitpid(process, &status, 0);
    EXPECT_EQ(status, 0);
    return {text.data(), static_cast<size_t>(std::max<ssize_t>(bytes, 0))};
  }
  static void become_another_user() {
    if (::setgid(54321) != 0 || ::setuid(54321) != 0) ::_exit(2);
  }
};

mode_t mode_of(const fs::path& path) {
  struct stat status = {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

TEST_F(ReplacementTest, AFileKeepsItsMode) {
  for (const mode_t mode : {0600, 0640, 0666, 0755}) {
    const fs::path path = file_with("a", mode);
    {
      AtomicFile file(path);
      for (const std::string& name : names()) {
        EXPECT_TRUE(!name.starts_with("a") || mode_of(folder_ / name) == mode) << name;
      }
      file.commit();
    }
    EXPECT_EQ(mode_of(path), mode);
    file_with("b-0000.txt", mode);
    AtomicSequence sequence(folder_ / "b.txt");
    sequence.add("text");
    sequence.commit();
    EXPECT_EQ(mode_of(folder_ / "b-0000.txt"), mode);
  }
  const mode_t mask = ::umask(027);
  write(folder_ / "new", "text");
  ::umask(mask);
  EXPECT_EQ(mode_of(folder_ / "new"), 0640U);
}

TEST_F(ReplacementTest, AFileKeepsItsOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to give files away";
  const fs::path path = file_with("a", 0600);
  ASSERT_EQ(::chown(path.c_str(), 54321, 54322), 0);
  write(path, "text");
  struct stat status = {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 54321U);
  EXPECT_EQ(status.st_gid, 54322U);
}

TEST_F(ReplacementTest, NamesMayBeAsLongAsTheFileSystemAllows) {
  for (const size_t length : {200, 234, 235, 255}) {
    const fs::path path = folder_ / std::string(length, 'a');
    write(path, "text");
    EXPECT_EQ(names(), std::vector<std::string>{path.filename()});
    AtomicFile half(path);
    remove_unfinished_file(path);  // that of a fork would have the same name
    EXPECT_EQ(names(), std::vector<std::string>{path.filename()});
    fs::remove(path);
  }
  EXPECT_NE(error_of([&] { require_writable(folder_ / std::string(256, 'a')); }).find("File name too long"),
            std::string::npos);
  AtomicSequence sequence(folder_ / (std::string(246, 'b') + ".txt"));
  sequence.add("text");
  sequence.commit();
  EXPECT_EQ(names(), std::vector<std::string>{std::string(246, 'b') + "-0000.txt"});
}

TEST_F(ReplacementTest, AMountedFileIsWrittenOver) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to mount";
  const fs::path path = file_with("a", 0644), host = file_with("host", 0644);
  bool may_mount = true;
  const std::string error = in_fork(
      [&] {
        if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
            ::mount(host.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) != 0)
          may_mount = false;
      },
      [&] {
        if (!may_mount) usage_error("mount", "not allowed");
        require_writable(path);
        write(path, "new");
      });
  if (error == "[mount] not allowed") GTEST_SKIP() << "no right to mount";
  EXPECT_EQ(error, "no error");
  EXPECT_EQ(read_file(host, 100), "new");
  EXPECT_EQ(names(), (std::vector<std::string>{"a", "host"}));
}

TEST_F(ReplacementTest, AnotherUsersFileIsWrittenOver) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become another user";
  const fs::path path = file_with("a", 0666);
  const auto write_new = [&] {
    require_writable(path);
    write(path, "new");
  };
  fs::permissions(folder_, fs::perms(01777));
  EXPECT_EQ(in_fork(become_another_user, write_new), "no error");
  EXPECT_EQ(read_file(path, 100), "new");
  // A folder that takes no other file.
  fs::permissions(folder_, fs::perms(0755));
  file_with("a", 0666);
  EXPECT_EQ(in_fork(become_another_user, write_new), "no error");
  EXPECT_EQ(read_file(path, 100), "new");
  EXPECT_EQ(names(), std::vector<std::string>{"a"});
  file_with("a", 0644);
  EXPECT_NE(in_fork(become_another_user, write_new).find("Permission denied"), std::string::npos);
}

TEST_F(ReplacementTest, WhatCannotTakeItsPlaceIsKept) {
  std::string error;
  {
    AtomicFile file(folder_ / "a");
    file.write("text");
    fs::create_directory(folder_ / "a");
    error = error_of([&] { file.commit(); });
  }
  const std::string kept = names().at(1);
  EXPECT_EQ(names().size(), 2U);
  EXPECT_EQ(error,
            fmt::format("[{0}/a] cannot write the file: Is a directory; what it was to hold is in {0}/{1}",
                        folder_.string(), kept));
  EXPECT_EQ(read_file(folder_ / kept, 100), "text");
  remove_unfinished_file(folder_ / "a");  // as a launcher does after a failure
  EXPECT_EQ(names().size(), 2U);
}

}  // namespace
}  // namespace tessera
