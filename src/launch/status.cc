#include "launch/status.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/error.h"
#include "core/text.h"

namespace tessera::launch {

static_assert(std::atomic<int64_t>::is_always_lock_free, "a lock would lie in the memory of one process");

namespace {

// Bounds the text, because its writer may have died while writing it.
template <size_t kSize>
std::string text_in(const std::array<char, kSize>& text) {
  return {text.data(), ::strnlen(text.data(), kSize)};
}

constexpr size_t kSlotsAt = 64;  // their offset in the memory

}  // namespace

void RankStatus::preparing() {
  phase_ = kPreparing;
  operation_ = -1;
  under_way_ = 0;
}

void RankStatus::started(engine::Phase stage) {
  if (stage == engine::Phase::kDenoise) step_ = 1;
  phase_ = static_cast<int>(stage);
}

void RankStatus::collective_began(const comm::Collective& collective) {
  const int next = operation_ == 0 ? 1 : 0;
  std::array<char, 64>& text = operations_[static_cast<size_t>(next)];
  *fmt::format_to_n(text.data(), text.size() - 1, "{} ({})", collective.name, collective.axis).out = '\0';
  operation_ = next;
  ++under_way_;
}

void RankStatus::failed(const Failure& failure) {
  failed(failure.exit_code, failure.message, failure.peer);
}

void RankStatus::failed(int exit_code, std::string_view message, std::optional<int64_t> peer) noexcept {
  message = cut_utf8(message, message_.size() - 1);
  std::memcpy(message_.data(), message.data(), message.size());
  message_[message.size()] = '\0';
  peer_ = peer.value_or(-1);
  exit_code_ = exit_code;
}

std::optional<Failure> RankStatus::failure() const {
  if (exit_code_ == 0) return std::nullopt;
  const int64_t peer = peer_;
  return Failure{known_exit_code(exit_code_), text_in(message_),
                 peer < 0 ? std::nullopt : std::optional(peer)};
}

std::string RankStatus::place() const {
  const int phase = phase_;
  std::string place;
  if (phase == kJoining) return "while joining";
  if (phase == kPreparing) {
    place = "before the first stage";
  } else if (phase == kFinishing) {
    place = "after the last stage";
  } else if (phase == static_cast<int>(engine::Phase::kDenoise)) {
    place = fmt::format("at step {}", step_.load());
  } else if (phase >= 0 && phase <= static_cast<int>(engine::Phase::kDecode)) {
    place = fmt::format("in stage '{}'", engine::phase_name(static_cast<engine::Phase>(phase)));
  } else {
    return "in an unknown stage";
  }
  const auto operation = static_cast<size_t>(operation_.load());
  if (operation >= operations_.size()) return place;
  return fmt::format("{}, {} {}", place, under_way_ > 0 ? "in" : "after", text_in(operations_[operation]));
}

StatusTable::StatusTable(int64_t ranks)
    : ranks_(ranks), bytes_(kSlotsAt + static_cast<size_t>(ranks) * sizeof(RankStatus)) {
  static_assert(sizeof(Shared) <= kSlotsAt && alignof(RankStatus) <= kSlotsAt);
  void* const memory =
      ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  shared_ = new (memory) Shared;
  slots_ = reinterpret_cast<RankStatus*>(static_cast<char*>(memory) + kSlotsAt);
  for (int64_t i = 0; i < ranks; ++i) new (slots_ + i) RankStatus;
}

StatusTable::~StatusTable() {
  ::munmap(shared_, bytes_);
}

RankStatus& StatusTable::rank(int64_t rank) {
  TESSERA_CHECK(rank >= 0 && rank < ranks_, "rank {} of {}", rank, ranks_);
  return slots_[rank];
}

const RankStatus& StatusTable::rank(int64_t rank) const {
  TESSERA_CHECK(rank >= 0 && rank < ranks_, "rank {} of {}", rank, ranks_);
  return slots_[rank];
}

}  // namespace tessera::launch
