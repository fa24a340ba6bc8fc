#include "engine/file_stamps.h"

#include <sys/stat.h>

#include "core/error.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;

bool is_of_model(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".json" || extension == ".safetensors" || extension == ".model" || extension == ".txt";
}

}  // namespace

FileStamps::FileStamps(const fs::path& folder) {
  std::error_code code;
  const auto add = [&](const fs::path& path) {
    if (is_of_model(path) && fs::is_regular_file(path, code)) files_.emplace(path, stamp_of(path));
  };
  add(folder / "model_index.json");
  for (const fs::directory_entry& part : fs::directory_iterator(folder, code)) {
    for (const fs::directory_entry& file : fs::directory_iterator(part.path(), code)) add(file.path());
  }
}

FileStamps::Stamp FileStamps::stamp_of(const fs::path& path) {
  struct stat now = {};
  if (::stat(path.c_str(), &now) != 0) return {};
  return {static_cast<int64_t>(now.st_dev), static_cast<int64_t>(now.st_ino), now.st_size, now.st_mtim.tv_sec,
          now.st_mtim.tv_nsec};
}

void FileStamps::require_unchanged() const {
  for (const auto& [path, stamp] : files_) {
    if (stamp_of(path) != stamp)
      input_error(path.string(), "was changed or replaced while the model was in use; run again");
  }
}

}  // namespace tessera::engine
