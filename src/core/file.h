// Reads whole files, and writes files atomically.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/unfinished.h"

namespace tessera {

// Throws Error(kInput) for the beginning of a pointer that git-lfs left in the place of the file `where`.
void refuse_git_lfs_pointer(std::string_view beginning, const std::string& where);

// Returns the whole file. Throws Error(kInput) when it is missing, unreadable, larger than `max_bytes` or a
// git-lfs pointer.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

// Writes all of the bytes, or returns false and leaves the reason in errno.
bool write_to_descriptor(int descriptor, std::span<const std::byte> bytes);

// Writes to a new file next to `path` with an unpredictable name; commit() renames it to `path`, and an
// uncommitted file is removed. Links are followed. Anything but a regular file (a device, a pipe) and names
// of open descriptors (/dev/stdout, /dev/fd/7) are written to directly, from their current position. Every
// failure (no such folder, not writable, disk full) is an Error(kUsage) that names the path.
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
  std::filesystem::path temporary_;  // empty if there is none (devices, or already renamed)
  int descriptor_ = -1;
  UnfinishedName name_;
};

// Removes the temporary file for `path`, or an AtomicSequence's folder of files, that a killed fork of this
// process left behind; forks have the temporary_token() of this process if it was drawn before.
void remove_unfinished_file(const std::filesystem::path& path) noexcept;

// Throws Error(kUsage) unless a file can be created at `path`: its folder exists and is writable, and `path`
// is not a folder. Leaves nothing behind. Call it before work whose result would be lost.
void require_writable(const std::filesystem::path& path);

}  // namespace tessera
