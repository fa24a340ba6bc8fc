#include "core/file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <utility>

#include "core/error.h"
#include "core/system_call.h"
#include "core/temporary_file.h"
#include "core/text.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Throws Error(kInput) if a link on the way to `path` leads nowhere. A hub's cache consists of links to its
// blobs.
void refuse_dangling_link(const fs::path& path) {
  std::error_code code;
  for (fs::path each = path; each.has_relative_path(); each = each.parent_path()) {
    const fs::file_type type = fs::symlink_status(each, code).type();
    if (type == fs::file_type::symlink && !fs::exists(each, code))
      input_error(each.string(), "is a link to {}, which does not exist; download it again",
                  fs::read_symlink(each, code).string());
    if (type != fs::file_type::not_found) return;
  }
}

// Returns the open descriptor that a name like /dev/stdout or /dev/fd/7 stands for, or -1. Opening such a
// name would overwrite a file behind it from its start.
int named_descriptor(const std::filesystem::path& path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  const std::string folder = path.parent_path().string(), name = path.filename().string();
  int descriptor = -1;
  if (folder == "/dev/fd" || folder == "/proc/self/fd") {
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
  }
  return descriptor;
}

// Returns whether the path is a device or a pipe, which renaming would replace.
bool is_special(const std::filesystem::path& path) {
  if (named_descriptor(path) >= 0) return true;
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

std::filesystem::path temporary_name(const std::filesystem::path& path, const std::string& token) {
  return is_special(path) ? std::filesystem::path() : temporary_beside(path, token);
}

// Returns whether the reason in errno is that the folder of a file does not accept another file, although the
// file itself may be writable, for example if it is mounted by itself into a container.
bool only_folder_is_closed(const std::filesystem::path& path) {
  if (errno != EACCES && errno != EPERM && errno != EROFS) return false;
  const int reason = errno;
  std::error_code code;
  const bool is_open = std::filesystem::is_regular_file(path, code) && ::access(path.c_str(), W_OK) == 0;
  errno = reason;
  return is_open;
}

// Returns whether names can be added to the folder but neither changed nor removed.
bool is_append_only(const std::filesystem::path& folder) {
  struct statx status = {};
  return ::statx(AT_FDCWD, folder.empty() ? "." : folder.c_str(), 0, STATX_TYPE, &status) == 0 &&
         (status.stx_attributes & STATX_ATTR_APPEND) != 0;
}

// Reads a pipe, a terminal or a device to its end.
std::string read_stream(int descriptor, const std::string& where, uint64_t max_bytes) {
  std::string text;
  std::array<char, 1 << 16> part;
  while (const ssize_t count = uninterrupted([&] { return ::read(descriptor, part.data(), part.size()); })) {
    if (count < 0) input_error(where, "cannot read: {}", system_reason(errno));
    text.append(part.data(), static_cast<size_t>(count));
    if (text.size() > max_bytes) input_error(where, "more than {} bytes", max_bytes);
  }
  return text;
}

[[noreturn]] void cannot(const char* action, const std::filesystem::path& path, int code) {
  usage_error(path.string(), "cannot {} the file: {}", action, system_reason(code));
}

// Creates a file with these bytes, which will replace the one at `target`. Returns 0, or the reason why the
// file is missing or incomplete.
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

void refuse_git_lfs_pointer(std::string_view beginning, const std::string& where) {
  if (beginning.starts_with("version https://git-lfs"))
    input_error(where, "is a git-lfs pointer in the place of the file; fetch that with git lfs pull");
}

std::filesystem::file_type type_at(const std::filesystem::path& path) {
  std::error_code code;
  const fs::file_type type = fs::status(path, code).type();
  if (type == fs::file_type::not_found) refuse_dangling_link(path);
  if (type == fs::file_type::none) input_error(path.string(), "cannot open: {}", code.message());
  return type;
}

void require_regular_file(const std::filesystem::path& path) {
  const fs::file_type type = type_at(path);
  if (type == fs::file_type::not_found) input_error(path.string(), "no such file");
  if (type != fs::file_type::regular) input_error(path.string(), "not a regular file");
}

void require_folder(const std::filesystem::path& path) {
  if (type_at(path) != fs::file_type::directory) input_error(path.string(), "no such folder");
}

std::vector<std::filesystem::path> list_folder(const std::filesystem::path& folder, std::error_code& code) {
  std::vector<fs::path> paths;
  for (fs::directory_iterator each(folder, code), end; !code && each != end; each.increment(code))
    paths.push_back(each->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes) {
  require_regular_file(path);
  std::error_code code;
  const uint64_t size = std::filesystem::file_size(path, code);
  if (code) input_error(path.string(), "cannot read: {}", code.message());
  if (size > max_bytes) input_error(path.string(), "{} bytes, expected at most {}", size, max_bytes);
  std::ifstream stream(path, std::ios::binary);
  if (!stream) input_error(path.string(), "cannot open the file: {}", system_reason(errno));
  std::string text(size, '\0');
  if (!stream.read(text.data(), static_cast<std::streamsize>(size))) {
    input_error(path.string(), "cannot read the file");
  }
  refuse_git_lfs_pointer(text, path.string());
  return text;
}

bool is_stream(const std::string& path) {
  std::error_code code;
  const fs::file_type type = fs::status(path, code).type();
  return path == "-" || type == fs::file_type::fifo || type == fs::file_type::character;
}

std::string read_file_or_stream(const std::string& path, uint64_t max_bytes) {
  if (path == "-") return read_stream(STDIN_FILENO, "standard input", max_bytes);
  if (!is_stream(path)) return read_file(path, max_bytes);
  const Descriptor stream(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (stream.number() < 0) input_error(path, "cannot read: {}", system_reason(errno));
  return read_stream(stream.number(), path, max_bytes);
}

bool write_to_descriptor(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = uninterrupted([&] { return ::write(descriptor, bytes.data(), bytes.size()); });
    // A standard stream may be a nonblocking pipe, because programs that share it have made it so.
    pollfd room = {.fd = descriptor, .events = POLLOUT, .revents = 0};
    if (count < 0 && errno == EAGAIN && uninterrupted([&] { return ::poll(&room, 1, -1); }) > 0) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

AtomicFile::AtomicFile(const std::filesystem::path& path)
    : path_(is_special(path) ? path : follow_links(path)),
      temporary_(temporary_name(path_, temporary_token())) {
  if (const int named = named_descriptor(path_); named >= 0) {
    descriptor_ = ::fcntl(named, F_DUPFD_CLOEXEC, 0);
  } else if (temporary_.empty()) {
    descriptor_ =
        uninterrupted([&] { return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); });
  } else {
    descriptor_ = create_replacement(temporary_, path_);
    if (descriptor_ < 0 && errno == EEXIST) {  // this process writes the same file twice at the same time
      temporary_ = temporary_name(path_, random_name(2));
      descriptor_ = create_replacement(temporary_, path_);
    }
    if (descriptor_ < 0 && only_folder_is_closed(path_)) {
      temporary_.clear();
      is_in_memory_ = true;
      descriptor_ = ::memfd_create("tessera-file", MFD_CLOEXEC);
    }
  }
  if (descriptor_ < 0) {
    temporary_.clear();
    std::error_code code;
    if (errno == ENOENT && path_.has_parent_path() && !std::filesystem::exists(path_.parent_path(), code))
      usage_error(path_.string(), "its folder does not exist; create that first");
    fail("create");
  }
  if (!temporary_.empty()) name_.remember(temporary_.string());
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* action) const {
  cannot(action, path_, errno);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (!write_to_descriptor(descriptor_, bytes)) fail("write");
}

void AtomicFile::commit() {
  if (!flush_to_disk(descriptor_)) fail("write");
  if (is_in_memory_ && !copy_over(descriptor_, path_)) fail("write");
  const int closed = ::close(std::exchange(descriptor_, -1));
  if (closed != 0 && errno != EINTR) fail("write");
  if (is_in_memory_) remember_finished_file();
  if (temporary_.empty()) return;
  const bool is_in_place = put_in_place(temporary_, path_);
  const int reason = errno;
  name_.forget();
  const fs::path temporary = std::exchange(temporary_, {});
  if (!is_in_place) {
    usage_error(path_.string(), "cannot write the file: {}; what it was to hold is in {}",
                system_reason(reason), keep_temporary(temporary, path_).string());
  }
  remember_finished_file();
}

void remove_unfinished_file(const std::filesystem::path& path) noexcept {
  try {
    // The temporary file is beside the target of a link, and a sequence's folder beside the link.
    std::error_code code;
    for (const std::filesystem::path& each : {follow_links(path), path}) {
      const std::filesystem::path temporary = temporary_name(each, temporary_token());
      if (!temporary.empty()) std::filesystem::remove_all(temporary, code);
    }
  } catch (const std::exception&) {  // without memory for its name, the file stays
  }
}

void require_writable(const std::filesystem::path& path) {
  std::error_code code;
  if (std::filesystem::is_directory(path, code)) {
    usage_error(path.string(), "is a folder; name a file in it");
  }
  // Renaming would replace a file that its owner has protected.
  const bool exists = std::filesystem::exists(path, code);
  const bool is_loop = code == std::errc::too_many_symbolic_link_levels;
  if ((exists || is_loop) && ::access(path.c_str(), W_OK) != 0)
    usage_error(path.string(), "cannot write: {}", system_reason(errno));
  if (is_special(path)) return;  // opening a pipe would disturb its reader
  if (is_append_only(follow_links(path).parent_path()))
    usage_error(path.string(), "cannot write: nothing can be renamed in its folder (chattr +a)");
  const AtomicFile probe(path);  // removed when it goes out of scope
}

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
