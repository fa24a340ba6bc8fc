// What a journal does when it, its process, its disk or its machine fails.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <exception>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "serve/journal.h"
#include "tests/serve/journal_fixture.h"
#include "tests/support/file_size_limit.h"

namespace tessera::serve {
namespace {

namespace fs = std::filesystem;

TEST_F(JournalTest, OneServerAtATime) {
  // SQLite knows by itself who has a file open in one process, and asks the system about others. So the other
  // one is forked while the journal is closed here.
  journal_.reset();
  std::array<int, 2> ends = {};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const pid_t process = ::fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    char begin = 0;
    const bool has_begun = ::read(ends[0], &begin, 1) == 1;
    ::_exit(has_begun && failure(ErrorKind::kUsage) ==
                             at_database("another server is using it; end that one, or name another folder")
                ? 17
                : 1);
  }
  open();
  accept({submission(1)});
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  for (const int end : ends) ::close(end);
  EXPECT_EQ(WEXITSTATUS(status), 17);
  EXPECT_THROW(Journal(options(), kNow), Error);
  EXPECT_THROW(Journal(options(), kNow), Error);  // the first failure has freed nothing
  accept({submission(2)});
}

TEST_F(JournalTest, NamesWhatIsNoJournal) {
  journal_.reset();
  for (const char* name : {"journal.sqlite-wal", "journal.sqlite-shm"})
    fs::remove(folder_ / "journal" / name);
  std::ofstream(database()) << std::string(5000, 'x');
  EXPECT_EQ(failure(ErrorKind::kInput),
            at_database("is not a database of SQLite; move it away, or name another folder"));
  EXPECT_EQ(text_of(database()), std::string(5000, 'x'));
  fs::remove(database());
  {
    Database other(database());
    other.run("CREATE TABLE jobs(id)");
  }
  EXPECT_EQ(failure(ErrorKind::kInput),
            at_database("is the database of another program; name another folder"));
  fs::remove(database());
  open();
  journal_.reset();
  Database(database()).run("PRAGMA user_version = 3");
  EXPECT_EQ(failure(ErrorKind::kInput),
            at_database("was written by a newer version of tessera (tables of version 3, this one knows 2)"));
  fs::remove(database());
  fs::create_directory(database());
  EXPECT_NE(failure(ErrorKind::kUsage), "opened");
}

TEST_F(JournalTest, NamesADamagedFile) {
  for (uint64_t i = 0; i < 300; ++i) accept({submission(i)});
  journal_.reset();
  const std::string whole = text_of(database());
  ASSERT_GT(whole.size(), 20U * 4096);
  std::mt19937 random(1);
  int named = 0;
  for (int round = 0; round < 40; ++round) {
    std::string damaged = whole;
    const size_t page = 1 + random() % (whole.size() / 4096 - 1);
    for (size_t i = 0; i < 2048; ++i) damaged[page * 4096 + i] = static_cast<char>(random());
    std::ofstream(database(), std::ios::binary) << damaged;
    const std::string why = failure(ErrorKind::kInput);
    named += why.starts_with(at_database("is damaged")) ? 1 : 0;
    EXPECT_EQ(std::count(why.begin(), why.end(), '\n'), 0) << why;
  }
  EXPECT_EQ(named, 40);
  std::ofstream(database(), std::ios::binary) << whole.substr(0, whole.size() / 2);
  EXPECT_TRUE(failure(ErrorKind::kInput).starts_with(at_database("is damaged")));
}

// Fills the journal until it throws, which says `why`, and returns how many jobs were accepted. In groups, of
// which all are accepted or none.
uint64_t fill(Journal& journal, const std::string& why) {
  for (uint64_t count = 0; count < 100'000; count += 8) {
    std::vector<Submission> group;
    for (uint64_t i = 0; i < 8; ++i) {
      group.push_back(submission(count + i));
      group.back().request = std::string(4000, 'x');
    }
    try {
      journal.accept(group);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
      return count;
    }
  }
  return 0;
}

TEST_F(JournalTest, GoesOnAfterFilesCouldNotGrow) {
  uint64_t accepted = 0;
  {
    const FileSizeLimit limit(400'000);
    accepted = fill(*journal_, "journal.sqlite] cannot open or write: File too large (ulimit -f)");
    EXPECT_GT(accepted, 0U);
    EXPECT_EQ(journal_->unfinished().size(), accepted);
    EXPECT_THROW(accept({submission(accepted)}), Error);
  }
  accept({submission(accepted)});
  open();
  EXPECT_EQ(journal_->unfinished().size(), accepted + 1);
}

TEST_F(JournalTest, GoesOnAfterTheDiskWasFull) {
  const pid_t process = ::fork();
  ASSERT_GE(process, 0);
  if (process == 0) {
    const fs::path disk = folder_ / "disk";
    fs::create_directory(disk);
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0)
      ::_exit(77);
    {
      Journal journal({.folder = disk / "journal"}, kNow);
      const std::string ballast(200'000, 'x');
      std::ofstream(disk / "ballast") << ballast;
      const uint64_t accepted = fill(journal, "journal.sqlite] cannot write: the disk is full");
      EXPECT_GT(accepted, 0U);
      const std::string picture(500'000, 'x');
      EXPECT_THROW(journal.succeed(id_of(0), std::array{NewResult{"image/png", bytes_of(picture)}}, kNow),
                   Error);
      EXPECT_THROW(journal.save_step(std::array{id_of(0)}, 1, bytes_of(picture)), Error);
      EXPECT_TRUE(names_in(disk / "journal" / "results").empty());
      EXPECT_TRUE(names_in(disk / "journal" / "saved").empty());
      fs::remove(disk / "ballast");
      EXPECT_EQ(journal.accept(std::array{submission(accepted)}).size(), 1U);
      EXPECT_EQ(journal.unfinished().size(), accepted + 1);
    }
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs the right to mount a file system";
  EXPECT_EQ(status, 0);
}

// What a process does that is killed: accepts jobs in groups, saves steps, ends some, and writes what has
// returned to a pipe: "a" or "e" and the number of the job.
[[noreturn]] void work(const JournalOptions& options, uint64_t first, int out) {
  Journal journal(options, kNow);
  for (uint64_t next = first;;) {
    std::vector<Submission> group;
    std::string report;
    for (uint64_t i = 0; i <= next % 5; ++i) {
      group.push_back(submission(next + i));
      report += "a" + std::to_string(next + i) + "\n";
    }
    journal.accept(group);
    if (::write(out, report.data(), report.size()) < 0) ::_exit(1);
    const std::string id = group.front().id, text = "run of " + id;
    journal.record(std::array<Journal::Change, 1>{{{.id = id, .state = JobState::kRunning, .attempts = 1}}},
                   kNow);
    journal.save_step(std::array{id}, 3, bytes_of(text));
    if (next % 2 == 0) {
      journal.succeed(id, std::array{NewResult{"text/plain", bytes_of(id)}}, kNow);
      report = "e" + std::to_string(next) + "\n";
      if (::write(out, report.data(), report.size()) < 0) ::_exit(1);
    }
    next += group.size();
  }
}

// Starts work() in a process, kills it some time after a number of reports, and returns all of them.
std::string reports_until_killed(const JournalOptions& options, uint64_t first, int64_t reports,
                                 std::chrono::microseconds time) {
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  const pid_t process = ::fork();
  if (process == 0) {
    try {
      work(options, first, ends[1]);
    } catch (const std::exception&) {
      ::_exit(1);
    }
  }
  ::close(ends[1]);
  std::string text;
  std::array<char, 4096> part = {};
  bool is_over = false;
  while (const ssize_t count = ::read(ends[0], part.data(), part.size())) {
    if (count < 0) break;
    text.append(part.data(), static_cast<size_t>(count));
    if (is_over || std::count(text.begin(), text.end(), '\n') < reports) continue;
    is_over = true;
    std::this_thread::sleep_for(time);
    ::kill(process, SIGKILL);
  }
  ::close(ends[0]);
  int status = 0;
  ::waitpid(process, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << status;
  return text;
}

TEST_F(JournalTest, WhatWasAcknowledgedIsThereAfterAKill) {
  journal_.reset();
  JournalOptions options = this->options();
  options.max_result_bytes = 1 << 20;
  std::mt19937 random(1);
  uint64_t next = 0;
  std::set<std::string> accepted, succeeded;
  for (int kill = 0; kill < 60; ++kill) {
    const std::string text = reports_until_killed(options, next, 1 + static_cast<int64_t>(random() % 12),
                                                  std::chrono::microseconds(random() % 4'000));
    std::istringstream reports(text);
    for (std::string line; std::getline(reports, line);) {
      const uint64_t number = std::stoull(line.substr(1));
      (line.front() == 'a' ? accepted : succeeded).insert(id_of(number));
      next = std::max(next, number + 10);
    }
    Journal journal(options, kNow);
    for (const std::string& id : accepted) {
      const std::optional<JournalJob> job = journal.find(id);
      ASSERT_TRUE(job) << id << " is lost";
      if (succeeded.contains(id)) {
        ASSERT_EQ(job->state, JobState::kSucceeded);
      }
      if (job->state == JobState::kSucceeded) {
        ASSERT_EQ(text_of(journal.results(id).at(0).path), id);
      }
      if (!job->saved_file.empty()) {
        ASSERT_EQ(text_of(job->saved_file), "run of " + id);
      }
    }
    // A group is there whole or not at all, in order.
    const std::vector<JournalJob> jobs = journal.unfinished();
    for (size_t i = 1; i < jobs.size(); ++i) ASSERT_LT(jobs[i - 1].submission.id, jobs[i].submission.id);
  }
  EXPECT_GT(accepted.size(), 60U);
  EXPECT_GT(succeeded.size(), 5U);
}

// SQLite's files, of which what was not flushed is lost when the machine ends: a file system below SQLite
// that remembers of each file what it held when it was last flushed.
class Disk {
 public:
  Disk() {
    the_disk = this;
    base_ = ::sqlite3_vfs_find(nullptr);
    vfs_ = *base_;
    vfs_.zName = "disk";
    vfs_.szOsFile = static_cast<int>(sizeof(File)) + base_->szOsFile;
    vfs_.xOpen = [](sqlite3_vfs*, const char* name, sqlite3_file* handle, int flags, int* out) {
      auto* file = reinterpret_cast<File*>(handle);
      file->path = name;
      const int code = the_disk->base_->xOpen(the_disk->base_, name, file->real(), flags, out);
      handle->pMethods = code == SQLITE_OK ? &the_disk->methods_ : nullptr;
      return code;
    };
    vfs_.xDelete = [](sqlite3_vfs*, const char* path, int flushes) {
      the_disk->flushed_.erase(path);
      return the_disk->base_->xDelete(the_disk->base_, path, flushes);
    };
    methods_.iVersion = 1;
    methods_.xClose = [](sqlite3_file* file) { return real(file)->pMethods->xClose(real(file)); };
    methods_.xRead = [](sqlite3_file* file, void* to, int size, sqlite3_int64 at) {
      return real(file)->pMethods->xRead(real(file), to, size, at);
    };
    methods_.xWrite = [](sqlite3_file* file, const void* from, int size, sqlite3_int64 at) {
      return real(file)->pMethods->xWrite(real(file), from, size, at);
    };
    methods_.xTruncate = [](sqlite3_file* file, sqlite3_int64 size) {
      return real(file)->pMethods->xTruncate(real(file), size);
    };
    methods_.xSync = [](sqlite3_file* file, int) {
      const char* path = reinterpret_cast<File*>(file)->path;
      the_disk->flushed_[path] = text_of(path);
      return SQLITE_OK;
    };
    methods_.xFileSize = [](sqlite3_file* file, sqlite3_int64* size) {
      return real(file)->pMethods->xFileSize(real(file), size);
    };
    methods_.xLock = [](sqlite3_file* file, int lock) {
      return real(file)->pMethods->xLock(real(file), lock);
    };
    methods_.xUnlock = [](sqlite3_file* file, int lock) {
      return real(file)->pMethods->xUnlock(real(file), lock);
    };
    methods_.xCheckReservedLock = [](sqlite3_file* file, int* is) {
      return real(file)->pMethods->xCheckReservedLock(real(file), is);
    };
    methods_.xFileControl = [](sqlite3_file* file, int operation, void* with) {
      return real(file)->pMethods->xFileControl(real(file), operation, with);
    };
    methods_.xSectorSize = [](sqlite3_file* file) { return real(file)->pMethods->xSectorSize(real(file)); };
    methods_.xDeviceCharacteristics = [](sqlite3_file*) { return 0; };
    ::sqlite3_vfs_register(&vfs_, 1);
  }
  ~Disk() {
    ::sqlite3_vfs_register(base_, 1);
    ::sqlite3_vfs_unregister(&vfs_);
  }
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  // Writes what is left if the machine ends now.
  void write(const fs::path& folder) const {
    fs::create_directory(folder);
    for (const auto& [path, text] : flushed_)
      std::ofstream(folder / fs::path(path).filename(), std::ios::binary) << text;
  }

 private:
  struct File {
    sqlite3_file base;
    const char* path;  // SQLite keeps it
    sqlite3_file* real() { return reinterpret_cast<sqlite3_file*>(this + 1); }
  };
  static sqlite3_file* real(sqlite3_file* file) { return reinterpret_cast<File*>(file)->real(); }
  static inline Disk* the_disk = nullptr;

  sqlite3_vfs* base_ = nullptr;
  sqlite3_vfs vfs_ = {};
  sqlite3_io_methods methods_ = {};
  std::map<std::string, std::string> flushed_;
};

TEST_F(JournalTest, WhatWasAcknowledgedIsThereAfterAPowerFailure) {
  journal_.reset();
  fs::remove_all(folder_ / "journal");
  std::vector<std::string> copies;
  {
    const Disk disk;
    open();
    for (uint64_t i = 0; i < 40; ++i) {
      accept({submission(2 * i), submission(2 * i + 1)});
      copies.push_back("copy" + std::to_string(i));
      disk.write(folder_ / copies.back());
    }
    journal_.reset();
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    Journal journal({.folder = folder_ / copies[i]}, kNow);
    EXPECT_EQ(journal.unfinished().size(), 2 * (i + 1));
  }
}

}  // namespace
}  // namespace tessera::serve
