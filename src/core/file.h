// Files: whole reads, and writes that appear whole or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace tessera {

// The whole file. Throws Error(kInput) when it is missing, unreadable or larger than `max_bytes`.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

// Writes to a new file beside `path`, under a name that nobody can have prepared; commit() renames it into
// place, and an uncommitted file is removed. Links are followed; what is no regular file (a device, a pipe)
// and names of open descriptors
// (/dev/stdout, /dev/fd/7) are written to directly, from where they stand. Every failure (no such folder, not
// writable, disk full) is an Error(kUsage) that names the path.
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
  std::filesystem::path temporary_;  // empty when there is none (devices, or already renamed)
  int descriptor_ = -1;
};

// Removes the temporaries of every AtomicFile that is open in this process. Async-signal-safe: for a handler
// that ends the program at once.
void remove_unfinished_files() noexcept;

// Part of the names of this process's temporaries from now on, instead of one that it draws itself: something
// that nobody guesses. Not to be called while other threads write files.
void set_temporary_token(const std::string& token);

// Removes the temporary that an AtomicFile for `path` left behind in a process with this token that was
// killed.
void remove_unfinished_file(const std::filesystem::path& path, const std::string& token) noexcept;

// Throws Error(kUsage) unless a file could be created at `path`: its folder exists and is writable, and
// `path` is not a folder. Leaves nothing behind. Called before the work that would be lost.
void require_writable(const std::filesystem::path& path);

}  // namespace tessera
