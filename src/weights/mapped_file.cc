#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <new>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"

namespace tessera::weights {
namespace {

constexpr const char* kChanged = "was written to while it was in use; run again when it is complete";

// Where files are mapped, readable from a signal handler.
struct Slot {
  std::atomic<bool> used{false};
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<const char*> message{nullptr};
};
std::array<Slot, 1024> slots;

std::optional<size_t> remember(std::span<const std::byte> bytes, const char* message) {
  for (size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots[i];
    if (slot.used.exchange(true)) continue;
    slot.message = message;
    slot.begin = reinterpret_cast<uintptr_t>(bytes.data());
    slot.end = slot.begin + bytes.size();
    return i;
  }
  return std::nullopt;
}

void unregister(size_t slot) {
  slots[slot].end = 0;
  slots[slot].used = false;
}

bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path.string()) {
  const auto refuse = [&](const char* action) {
    input_error(path_, "cannot {} the file: {}", action, system_reason(errno));
  };
  message_ = fmt::format("[{}] {}", path_, kChanged);
  require_regular_file(path);
  descriptor_ = uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC); });
  if (descriptor_ < 0) refuse("open");
  try {
    if (::fstat(descriptor_, &status_) != 0) refuse("read");
    size_ = static_cast<size_t>(status_.st_size);
    if (size_ == 0) input_error(path_, "the file is empty");
    void* const address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (address == MAP_FAILED && errno == ENOMEM) throw std::bad_alloc();  // no fault of the file
    if (address == MAP_FAILED) refuse("map");
    data_ = static_cast<const std::byte*>(address);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
  slot_ = remember(bytes(), message_.c_str());
}

MappedFile::~MappedFile() {
  if (slot_) unregister(*slot_);
  ::munmap(const_cast<std::byte*>(data_), size_);
  ::close(descriptor_);
}

void MappedFile::require_unchanged() const {
  struct stat now = {};
  if (::fstat(descriptor_, &now) == 0 && now.st_size == status_.st_size &&
      same_time(now.st_mtim, status_.st_mtim))
    return;
  input_error(path_, "{}", kChanged);
}

void MappedFile::release(uint64_t begin, uint64_t end) const noexcept {
  const auto page =
      static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));  // at a multiple of which the mapping lies
  const uint64_t first = (begin + page - 1) / page * page, last = end / page * page;
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

const char* changed_file_at(const void* address) noexcept {
  const auto place = reinterpret_cast<uintptr_t>(address);
  for (const Slot& slot : slots) {
    if (place >= slot.begin && place < slot.end) return slot.message;
  }
  return nullptr;
}

}  // namespace tessera::weights
