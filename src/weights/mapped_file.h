// A file in memory, as it is on disk.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace tessera::weights {

struct MappedPlace;

// A file mapped read-only and shared: processes that map the same file share its pages, and only bytes that
// are touched are read from disk. Replacing the file by another does not affect the mapping. Writing to it or
// truncating it does: require_unchanged() detects earlier changes, and touching a truncated page raises
// SIGBUS (see changed_file_at()).
class MappedFile {
 public:
  // Throws Error(kInput) if the file does not exist or is empty.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Throws Error(kInput) if the file has been written to or truncated since it was mapped.
  void require_unchanged() const;
  // Returns the memory of the pages that lie entirely between two offsets to the system; they are read again
  // when touched.
  void release(uint64_t begin, uint64_t end) const noexcept;

 private:
  std::string path_;
  std::string message_;  // of changed_file_at()
  int descriptor_ = -1;
  struct stat status_ = {};
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  MappedPlace* place_ = nullptr;  // among those that changed_file_at() looks at
};

// For a handler of SIGBUS: the line which reports that the file mapped at `address` has changed; nullptr if
// no file is mapped there. Async-signal-safe.
const char* changed_file_at(const void* address) noexcept;

}  // namespace tessera::weights
