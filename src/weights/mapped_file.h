// A file in memory as it lies on the disk.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace tessera::weights {

struct MappedPlace;

// A file mapped read-only and shared: two processes that map one file share its pages, and only bytes that
// are touched are read from disk. Replacing the file by another does not affect the mapping. Writing to it or
// truncating it does: require_unchanged() detects earlier changes, and touching a truncated page raises
// SIGBUS (see changed_file_at()).
class MappedFile {
 public:
  // Throws Error(kInput) when there is no such file, or nothing in it.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Throws Error(kInput) when the file has been written to or cut off since it was mapped.
  void require_unchanged() const;
  // Gives the memory of the pages that lie wholly between two offsets back to the system; they are read again
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

// For a handler of SIGBUS: the line that says that the file which is mapped at `address` has changed; nullptr
// where none is. Async-signal-safe.
const char* changed_file_at(const void* address) noexcept;

}  // namespace tessera::weights
