// Reads whole files, and writes files, or sequences of them, atomically.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/temporary_file.h"

namespace tessera {

// Throws Error(kInput) for the beginning of a pointer that git-lfs left in the place of the file `where`.
void refuse_git_lfs_pointer(std::string_view beginning, const std::string& where);

// Returns what is at `path`, or at the end of links there; file_type::not_found if there is nothing. Throws
// Error(kInput) that says why it cannot be reached: a link leads nowhere or in a circle, or a folder on the
// way may not be entered.
std::filesystem::file_type type_at(const std::filesystem::path& path);

// Throw Error(kInput) unless there is such a thing.
void require_regular_file(const std::filesystem::path& path);
void require_folder(const std::filesystem::path& path);

// Returns the paths of what a folder holds, in order. If that cannot be listed, `code` has the reason.
std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder, std::error_code& code);

// Returns the whole file. Throws Error(kInput) when it is missing, unreadable, larger than `max_bytes` or a
// git-lfs pointer.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

// Whether what `path` names can be read only once: "-", which is standard input, a pipe (a shell gives one
// for
// <(command)) or a terminal.
bool is_stream(const std::string& path);

// Returns the whole file or stream. Throws Error(kInput) as read_file().
std::string read_file_or_stream(const std::string& path, uint64_t max_bytes);

// Writes all of the bytes, or returns false and leaves the reason in errno.
bool write_to_descriptor(int descriptor, std::span<const std::byte> bytes);

// Writes to a new file next to `path` with an unpredictable name; commit() renames it to `path`, and an
// uncommitted file is removed. A file that is replaced so leaves its mode to the new one. Links are followed.
// Where a file cannot be replaced (see put_in_place()), or its folder takes no other file, commit() writes
// over it. Anything but a regular file (a device, a pipe) and names of open descriptors (/dev/stdout,
// /dev/fd/7) are written to directly, from their current position. Every failure (no such folder, not
// writable, disk full) is an Error(kUsage) that names the path; if commit() can neither rename nor write, it
// also names the file next to `path` that has the whole content and stays.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();  // flushes to the disk and renames

 private:
  [[noreturn]] void fail(const char* action) const;

  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty if there is none (devices, in memory, or already renamed)
  bool is_in_memory_ = false;
  int descriptor_ = -1;
  UnfinishedName name_;
};

// Returns NAME-0007.EXT for NAME.EXT, the number 7 and four digits.
std::filesystem::path numbered_path(const std::filesystem::path& path, int64_t number, int digits);

// Writes files into a new folder next to `path`, with an unpredictable name. commit() renames them to
// NAME-0000.EXT, NAME-0001.EXT, ... where `path` is NAME.EXT; what is uncommitted is removed. Nothing that
// needs space is left for commit(). Only a process that ends amid its renames leaves a part of the files; if
// one cannot take its place, those before it go back to that folder, which stays. Failures are as of an
// AtomicFile.
class AtomicSequence {
 public:
  explicit AtomicSequence(const std::filesystem::path& path);
  ~AtomicSequence();
  AtomicSequence(const AtomicSequence&) = delete;
  AtomicSequence& operator=(const AtomicSequence&) = delete;

  void add(std::string_view file);  // flushed to the disk
  void commit();

 private:
  std::filesystem::path temporary(int64_t number) const;
  std::filesystem::path target(int64_t number) const;

  std::filesystem::path path_;
  std::filesystem::path folder_;  // empty if there is none
  int64_t count_ = 0;
  UnfinishedName name_;
};

// Removes the temporary file for `path`, or an AtomicSequence's folder of files, that a killed fork of this
// process left behind; forks have the temporary_token() of this process if it was drawn before.
void remove_unfinished_file(const std::filesystem::path& path) noexcept;

// Throws Error(kUsage) unless a file can be created at `path`: its folder exists and is writable, and `path`
// is not a folder. Leaves nothing behind. Call it before work whose result would be lost.
void require_writable(const std::filesystem::path& path);

}  // namespace tessera
