#include "core/temporary_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <span>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"
#include "core/text.h"

namespace tessera {

namespace {
constexpr size_t kMostName = 4096;  // PATH_MAX
constexpr int64_t kIsFile = -1;
}  // namespace

// A name that a signal handler can read. Slots are never freed, but reused.
struct Unfinished {
  std::atomic<bool> used{true};
  std::atomic<bool> ready{false};
  std::atomic<int64_t> files{kIsFile};  // of a folder
  std::array<char, kMostName> name{};
  Unfinished* next = nullptr;
};

namespace {

std::atomic<Unfinished*> newest{nullptr};
std::atomic<bool> has_finished{false};

void remove_numbered_files(const Unfinished& folder) {
  std::array<char, kMostName + 24> name = {};
  const size_t length = std::strlen(folder.name.data());
  std::memcpy(name.data(), folder.name.data(), length);
  name[length] = '/';
  for (int64_t i = 0; i < folder.files; ++i) {
    *std::to_chars(name.data() + length + 1, name.data() + name.size() - 1, i).ptr = '\0';
    ::unlink(name.data());
  }
  ::rmdir(folder.name.data());
}

// Returns a slot that belongs to the caller until it sets `used` to false.
Unfinished& free_slot() {
  for (Unfinished* slot = newest; slot; slot = slot->next) {
    if (!slot->used.exchange(true)) return *slot;
  }
  auto* const slot = new Unfinished;  // NOLINT: a signal handler may read it as long as the process lives
  slot->next = newest;
  while (!newest.compare_exchange_weak(slot->next, slot)) {
  }
  return *slot;
}

// Only the holder of a slot writes to it; only a signal handler reads its name as well.
Unfinished* remember_in_slot(const std::string& name, int64_t files) {
  if (name.size() >= kMostName) return nullptr;  // the system calls do not accept such a name
  Unfinished& slot = free_slot();
  std::memcpy(slot.name.data(), name.c_str(), name.size() + 1);
  slot.files = files;
  slot.ready = true;
  return &slot;
}

// Closes a file that was written to. Linux has closed it even if a signal interrupts the call.
bool close_written(int descriptor) {
  return ::close(descriptor) == 0 || errno == EINTR;
}

bool copy(int from, int to) {
  if (::lseek(from, 0, SEEK_SET) < 0) return false;
  std::array<std::byte, 1 << 16> part;
  while (true) {
    const ssize_t count = uninterrupted([&] { return ::read(from, part.data(), part.size()); });
    if (count <= 0) return count == 0;
    if (!write_to_descriptor(to, std::span(part).first(static_cast<size_t>(count)))) return false;
  }
}

}  // namespace

void UnfinishedName::remember(const std::string& file) {
  forget();
  slot_ = remember_in_slot(file, kIsFile);
}

void UnfinishedName::remember_folder(const std::string& folder) {
  forget();
  slot_ = remember_in_slot(folder, 0);
}

void UnfinishedName::set_files(int64_t count) {
  if (slot_) slot_->files = count;
}

void UnfinishedName::forget() {
  if (!slot_) return;
  slot_->ready = false;
  slot_->used = false;
  slot_ = nullptr;
}

void remove_unfinished_files() noexcept {
  for (const Unfinished* slot = newest; slot; slot = slot->next) {
    if (!slot->ready) continue;
    if (slot->files == kIsFile) ::unlink(slot->name.data());
    if (slot->files != kIsFile) remove_numbered_files(*slot);
  }
}

bool has_finished_file() noexcept {
  return has_finished;
}

void remember_finished_file() noexcept {
  has_finished = true;
}

const std::string& temporary_token() {
  static const std::string token = random_name(2);
  return token;
}

std::filesystem::path follow_links(std::filesystem::path path) {
  std::error_code code;
  constexpr int kMaxLinks = 40;  // Linux's limit; longer chains are loops
  for (int i = 0; i < kMaxLinks && std::filesystem::is_symlink(path, code); ++i) {
    path = path.parent_path() / std::filesystem::read_symlink(path, code);
  }
  return path;
}

std::filesystem::path temporary_beside(const std::filesystem::path& path, const std::string& token) {
  const std::filesystem::path folder = path.parent_path();
  std::string name = path.filename().string();
  const std::string end = fmt::format(".{}.tmp", token);
  const long limit = ::pathconf(folder.empty() ? "." : folder.c_str(), _PC_NAME_MAX);
  if (name.size() + end.size() > static_cast<size_t>(limit > 0 ? limit : NAME_MAX)) {
    Hash hash;
    hash.add(name);
    name = hash.text();
  }
  return folder / (name + end);
}

int create_replacement(const std::filesystem::path& temporary, const std::filesystem::path& path) {
  struct stat old = {};
  const bool exists = ::stat(path.c_str(), &old) == 0;
  if (!exists && errno == ENAMETOOLONG) return -1;  // the temporary name may be shorter
  const bool replaces = exists && S_ISREG(old.st_mode);
  const mode_t mode = replaces ? old.st_mode & 0777 : 0666;
  // The mode counts from the start: users who may not read the old file must not be able to open the new one
  // meanwhile.
  const int descriptor = uninterrupted(
      [&] { return ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode); });
  if (descriptor < 0 || !replaces) return descriptor;
  // Only root may give a file to another user, and other users may only give it to one of their groups.
  if (::fchown(descriptor, old.st_uid, old.st_gid) != 0) {
    [[maybe_unused]] const int ignored = ::fchown(descriptor, static_cast<uid_t>(-1), old.st_gid);
  }
  ::fchmod(descriptor, mode);  // the umask does not apply
  return descriptor;
}

bool flush_to_disk(int descriptor) {
  if (uninterrupted([&] { return ::fsync(descriptor); }) == 0) return true;
  return errno == EINVAL || errno == EROFS || errno == ENOSYS || errno == ENOTSUP;
}

bool put_in_place(const std::filesystem::path& temporary, const std::filesystem::path& path) {
  if (::rename(temporary.c_str(), path.c_str()) == 0) return true;
  const int descriptor = uninterrupted([&] { return ::open(temporary.c_str(), O_RDONLY | O_CLOEXEC); });
  if (descriptor < 0) return false;
  const bool is_copied = copy_over(descriptor, path);
  const int reason = errno;
  ::close(descriptor);
  if (is_copied) ::unlink(temporary.c_str());
  errno = reason;
  return is_copied;
}

bool copy_over(int descriptor, const std::filesystem::path& path) {
  constexpr int kFlags = O_WRONLY | O_NOFOLLOW | O_CLOEXEC;
  // In folders where everybody may create files, Linux may refuse to open another user's file with O_CREAT.
  int to = uninterrupted([&] { return ::open(path.c_str(), kFlags | O_TRUNC); });
  if (to < 0 && errno == ENOENT)
    to = uninterrupted([&] { return ::open(path.c_str(), kFlags | O_CREAT | O_EXCL, 0666); });
  if (to < 0) return false;
  const bool is_copied = copy(descriptor, to) && flush_to_disk(to);
  const int reason = errno;
  const bool is_closed = close_written(to);
  if (!is_copied) errno = reason;
  return is_copied && is_closed;
}

void require_temporary(const std::filesystem::path& temporary, const std::filesystem::path& path) {
  std::error_code code;
  if (!std::filesystem::exists(temporary, code) && !code)
    usage_error(path.string(),
                "what was written of it is gone, as if its folder had been removed; run again");
}

std::filesystem::path keep_temporary(const std::filesystem::path& temporary,
                                     const std::filesystem::path& path) {
  require_temporary(temporary, path);
  std::filesystem::path kept = temporary_beside(path, "kept-" + random_name(1));
  return ::rename(temporary.c_str(), kept.c_str()) == 0 ? kept : temporary;
}

}  // namespace tessera
