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

// Throws Error(kInput) if this is the beginning of a pointer that git-lfs left in place of the file `where`.
void refuse_git_lfs_pointer(std::string_view beginning, const std::string& where);

// Returns what is at `path`, or at the end of links there; file_type::not_found if there is nothing. Throws
// Error(kInput) with the reason why it cannot be reached: a link leads nowhere or in a circle, or a folder on
// the way may not be entered.
std::filesystem::file_type type_at(const std::filesystem::path& path);

// Throw Error(kInput) unless it exists.
void require_regular_file(const std::filesystem::path& path);
void require_folder(const std::filesystem::path& path);

// Returns the paths in a folder, in order. If it cannot be listed, `code` has the reason.
std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder, std::error_code& code);

// Returns the whole file. Throws Error(kInput) when it is missing, unreadable, larger than `max_bytes` or a
// git-lfs pointer.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

// Whether `path` names something that can be read only once: "-", which is standard input, a pipe (as created
// by a shell for <(command)) or a terminal.
bool is_stream(const std::string& path);

// Returns the whole file or stream. Throws Error(kInput) as read_file() does.
std::string read_file_or_stream(const std::string& path, uint64_t max_bytes);

// Writes all of the bytes, or returns false and leaves the reason in errno.
bool write_to_descriptor(int descriptor, std::span<const std::byte> bytes);

// Writes to a new file next to `path` with an unpredictable name; commit() renames it to `path`, and an
// uncommitted file is removed. The new file gets the mode of the one that it replaces. Links are followed. If
// a file cannot be replaced (see put_in_place()), or its folder does not accept another file, commit()
// overwrites it. Anything but a regular file (a device, a pipe) and names of open descriptors (/dev/stdout,
// /dev/fd/7) are written to directly, from their current position. Every failure (no such folder, not
// writable, disk full) is an Error(kUsage) that names the path; if commit() can neither rename nor write, it
// also names the file next to `path`, which has the whole content and is kept.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();  // flushes to disk and renames

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
// NAME-0000.EXT, NAME-0001.EXT, ... if `path` is NAME.EXT; uncommitted files are removed. Nothing that needs
// space is left for commit(). Only a process that ends between its renames leaves some of the files; if one
// cannot take its place, the earlier ones return to that folder, which is kept. Failures are those of an
// AtomicFile.
class AtomicSequence {
 public:
  explicit AtomicSequence(const std::filesystem::path& path);
  ~AtomicSequence();
  AtomicSequence(const AtomicSequence&) = delete;
  AtomicSequence& operator=(const AtomicSequence&) = delete;

  void add(std::string_view file);  // flushed to disk
  void commit();

 private:
  std::filesystem::path temporary(int64_t number) const;
  std::filesystem::path target(int64_t number) const;

  std::filesystem::path path_;
  std::filesystem::path folder_;  // empty if there is none
  int64_t count_ = 0;
  UnfinishedName name_;
};

// Removes the temporary file for `path`, or an AtomicSequence's folder of files, left behind by a killed fork
// of this process; forks share the temporary_token() of this process if it was drawn before forking.
void remove_unfinished_file(const std::filesystem::path& path) noexcept;

// Throws Error(kUsage) unless a file can be created at `path`: its folder exists and is writable, and `path`
// is not a folder. Leaves nothing behind. Call it before work whose result would otherwise be lost.
void require_writable(const std::filesystem::path& path);

}  // namespace tessera
