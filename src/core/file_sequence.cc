#include "core/file_sequence.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/random_name.h"

namespace tessera {
namespace {

[[noreturn]] void cannot(const char* action, const std::filesystem::path& path, int code) {
  usage_error(path.string(), "cannot {} the file: {}", action, std::generic_category().message(code));
}

// Creates a file of these bytes. Returns 0 or the reason why there is none, or only a part of it.
int write_new(const std::filesystem::path& path, std::string_view bytes) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (descriptor < 0) return errno;
  int code = 0;
  if (!write_to_descriptor(descriptor, std::as_bytes(std::span(bytes)))) code = errno;
  if (code == 0 && ::fsync(descriptor) != 0 && errno != EINVAL && errno != EROFS) code = errno;
  if (::close(descriptor) != 0 && code == 0) code = errno;
  return code;
}

}  // namespace

std::filesystem::path numbered_path(const std::filesystem::path& path, int64_t number, int digits) {
  return path.parent_path() /
         fmt::format("{}-{:0{}}{}", path.stem().string(), number, digits, path.extension().string());
}

AtomicSequence::AtomicSequence(const std::filesystem::path& path) : path_(path) {
  std::filesystem::path folder = fmt::format("{}.{}.tmp", path.string(), temporary_token());
  if (::mkdir(folder.c_str(), 0777) != 0) {
    if (errno != EEXIST) cannot("create", path_, errno);
    folder = fmt::format("{}.{}.tmp", path.string(), random_name(2));
    if (::mkdir(folder.c_str(), 0777) != 0) cannot("create", path_, errno);
  }
  folder_ = std::move(folder);
  name_.remember_folder(folder_.string());
}

AtomicSequence::~AtomicSequence() {
  if (folder_.empty()) return;
  for (int64_t i = 0; i < count_; ++i) ::unlink(temporary(i).c_str());
  ::rmdir(folder_.c_str());
}

std::filesystem::path AtomicSequence::temporary(int64_t number) const {
  return folder_ / std::to_string(number);
}

std::filesystem::path AtomicSequence::target(int64_t number) const {
  constexpr int kDigits = 4;
  return numbered_path(path_, number, kDigits);
}

void AtomicSequence::add(std::string_view file) {
  const int64_t number = count_++;
  name_.set_files(count_);  // before there is one to remove
  if (const int code = write_new(temporary(number), file); code != 0) cannot("write", path_, code);
}

void AtomicSequence::commit() {
  for (int64_t i = 0; i < count_; ++i) {
    if (::rename(temporary(i).c_str(), target(i).c_str()) == 0) continue;
    const int code = errno;
    for (int64_t j = 0; j < i; ++j) ::unlink(target(j).c_str());
    cannot("write", target(i), code);
  }
  if (count_ > 0) remember_finished_file();
  ::rmdir(folder_.c_str());
  name_.forget();
  folder_.clear();
}

}  // namespace tessera
