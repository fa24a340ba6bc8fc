#include "core/unfinished.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstring>

#include "core/random_name.h"

namespace tessera {

namespace {
constexpr size_t kMostName = 4096;  // PATH_MAX
constexpr int64_t kIsFile = -1;
}  // namespace

// A name that a signal handler can read. Slots are never freed, but used again.
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

// Returns a slot that is the caller's until it sets `used` to false.
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

// Only the holder of a slot writes to it, and nobody else reads its name but a signal handler.
Unfinished* remember_in_slot(const std::string& name, int64_t files) {
  if (name.size() >= kMostName) return nullptr;  // no call of the system takes such a name
  Unfinished& slot = free_slot();
  std::memcpy(slot.name.data(), name.c_str(), name.size() + 1);
  slot.files = files;
  slot.ready = true;
  return &slot;
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

}  // namespace tessera
