#include "weights/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <new>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"

namespace tessera::weights {
namespace {

constexpr const char* kChanged = "was written to while it was in use; run again when it is complete";

}  // namespace

// Where a file is mapped, readable from a signal handler. A list contains all places that ever existed: they
// are reused, but never freed.
struct MappedPlace {
  std::atomic<bool> used{true};
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<const char*> message{nullptr};
  MappedPlace* next = nullptr;
};

namespace {

std::atomic<MappedPlace*> first_place{nullptr};

MappedPlace& unused_place() {
  for (MappedPlace* place = first_place; place; place = place->next) {
    if (!place->used.exchange(true)) return *place;
  }
  auto* const place = new MappedPlace;
  place->next = first_place;
  while (!first_place.compare_exchange_weak(place->next, place)) {
  }
  return *place;
}

MappedPlace& remember(std::span<const std::byte> bytes, const char* message) {
  MappedPlace& place = unused_place();
  place.message = message;
  place.begin = reinterpret_cast<uintptr_t>(bytes.data());
  place.end = place.begin + bytes.size();
  return place;
}

void forget(MappedPlace& place) {
  place.end = 0;
  place.used = false;
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
    if (size_ == 0) input_error(path_, "is empty; get the file again");
    void* const address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, descriptor_, 0);
    if (address == MAP_FAILED && errno == ENOMEM) throw std::bad_alloc();  // not the file's fault
    if (address == MAP_FAILED) refuse("map");
    data_ = static_cast<const std::byte*>(address);
    place_ = &remember(bytes(), message_.c_str());
  } catch (...) {
    if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
    ::close(descriptor_);
    throw;
  }
}

MappedFile::~MappedFile() {
  forget(*place_);
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
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));  // the mapping begins at a multiple of it
  const uint64_t first = (begin + page - 1) / page * page, last = end / page * page;
  if (first < last) ::madvise(const_cast<std::byte*>(data_) + first, last - first, MADV_DONTNEED);
}

const char* changed_file_at(const void* address) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const MappedPlace* place = first_place; place; place = place->next) {
    if (at >= place->begin && at < place->end) return place->message;
  }
  return nullptr;
}

}  // namespace tessera::weights
