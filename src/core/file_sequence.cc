#include "core/file_sequence.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/random_name.h"
#include "core/replacement.h"
#include "core/system_call.h"

namespace tessera {
namespace {

[[noreturn]] void cannot(const char* action, const std::filesystem::path& path, int code) {
  usage_error(path.string(), "cannot {} the file: {}", action, system_reason(code));
}

// Creates a file of these bytes, which is to replace the one at `target`. Returns 0 or the reason why there
// is none, or only a part of it.
int write_new(const std::filesystem::path& path, const std::filesystem::path& target,
              std::string_view bytes) {
  const int descriptor = create_replacement(path, target);
  if (descriptor < 0) return errno;
  int code = 0;
  if (!write_to_descriptor(descriptor, std::as_bytes(std::span(bytes))) || !flush_to_disk(descriptor))
    code = errno;
  if (::close(descriptor) != 0 && errno != EINTR && code == 0) code = errno;
  return code;
}

}  // namespace

std::filesystem::path numbered_path(const std::filesystem::path& path, int64_t number, int digits) {
  return path.parent_path() /
         fmt::format("{}-{:0{}}{}", path.stem().string(), number, digits, path.extension().string());
}

AtomicSequence::AtomicSequence(const std::filesystem::path& path) : path_(path) {
  std::filesystem::path folder = temporary_beside(path, temporary_token());
  if (::mkdir(folder.c_str(), 0777) != 0) {
    if (errno != EEXIST) cannot("create", path_, errno);
    folder = temporary_beside(path, random_name(2));
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
  if (const int code = write_new(temporary(number), target(number), file); code != 0) {
    require_temporary(folder_, path_);
    cannot("write", path_, code);
  }
}

void AtomicSequence::commit() {
  for (int64_t i = 0; i < count_; ++i) {
    if (put_in_place(temporary(i), target(i))) continue;
    const int code = errno;
    for (int64_t j = 0; j < i; ++j) ::rename(target(j).c_str(), temporary(j).c_str());
    name_.forget();
    usage_error(target(i).string(), "cannot write the file: {}; all files are in {}", system_reason(code),
                keep_temporary(std::exchange(folder_, {}), path_).string());
  }
  if (count_ > 0) remember_finished_file();
  ::rmdir(folder_.c_str());
  name_.forget();
  folder_.clear();
}

}  // namespace tessera
