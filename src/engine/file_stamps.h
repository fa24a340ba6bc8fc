// Detects changes to the files of a model since its description was read.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>

namespace tessera::engine {

// A run reads a component when it needs it. Meanwhile a link may have moved to another version of the model,
// or files may have been replaced or written to; parts of two versions must not make one image.
class FileStamps {
 public:
  FileStamps() = default;
  // Records the files that a model is read from: those in `folder` and in its subfolders. Other files, such
  // as images, may come and go.
  explicit FileStamps(const std::filesystem::path& folder);

  // Throws Error(kInput) naming a file that is gone or was replaced.
  void require_unchanged() const;

 private:
  using Stamp = std::array<int64_t, 5>;  // device, inode, size, and time of the last change to the contents
  static Stamp stamp_of(const std::filesystem::path& path);

  std::map<std::filesystem::path, Stamp> files_;
};

}  // namespace tessera::engine
