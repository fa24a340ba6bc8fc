#include "core/unfinished.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstring>

#include "core/random_name.h"

namespace tessera {
namespace {

constexpr size_t kMostName = 4096;
constexpr int64_t kIsFile = -1;

// Readable from a signal handler.
struct Unfinished {
  std::atomic<bool> used{false};
  std::atomic<bool> ready{false};
  std::atomic<int64_t> files{kIsFile};  // of a folder
  std::array<char, kMostName> name{};
};
std::array<Unfinished, 16> unfinished;
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

// The slot that holds the name from now on, or `none`. Only its holder writes to it, and nobody else reads
// its name but a signal handler.
size_t take_slot(const std::string& name, int64_t files, size_t none) {
  if (name.size() >= kMostName) return none;
  for (size_t i = 0; i < unfinished.size(); ++i) {
    Unfinished& slot = unfinished[i];
    if (slot.used.exchange(true)) continue;
    std::memcpy(slot.name.data(), name.c_str(), name.size() + 1);
    slot.files = files;
    slot.ready = true;
    return i;
  }
  return none;
}

}  // namespace

void UnfinishedName::remember(const std::string& file) {
  forget();
  slot_ = take_slot(file, kIsFile, kNone);
}

void UnfinishedName::remember_folder(const std::string& folder) {
  forget();
  slot_ = take_slot(folder, 0, kNone);
}

void UnfinishedName::set_files(int64_t count) {
  if (slot_ != kNone) unfinished[slot_].files = count;
}

void UnfinishedName::forget() {
  if (slot_ == kNone) return;
  unfinished[slot_].ready = false;
  unfinished[slot_].used = false;
  slot_ = kNone;
}

void remove_unfinished_files() noexcept {
  for (const Unfinished& slot : unfinished) {
    if (!slot.ready) continue;
    if (slot.files == kIsFile) ::unlink(slot.name.data());
    if (slot.files != kIsFile) remove_numbered_files(slot);
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
