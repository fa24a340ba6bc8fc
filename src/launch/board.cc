#include "launch/board.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "core/error.h"

namespace tessera::launch {

static_assert(std::atomic<int64_t>::is_always_lock_free, "a lock would lie in the memory of one process");

void RankStatus::started(engine::Stage stage) {
  if (stage == engine::Stage::kDenoise) step_ = 1;
  phase_ = static_cast<int>(stage);
}

void RankStatus::operation_began(const comm::Operation& operation) {
  const int next = operation_ == 0 ? 1 : 0;
  std::array<char, 64>& text = operations_[static_cast<size_t>(next)];
  *fmt::format_to_n(text.data(), text.size() - 1, "{} ({})", operation.name, operation.axis).out = '\0';
  operation_ = next;
  ++under_way_;
}

void RankStatus::failed(const Failure& failure) {
  const size_t length = std::min(failure.message.size(), message_.size() - 1);
  std::memcpy(message_.data(), failure.message.data(), length);
  message_[length] = '\0';
  exit_code_ = failure.exit_code;
}

std::optional<Failure> RankStatus::failure() const {
  if (exit_code_ == 0) return std::nullopt;
  return Failure{exit_code_, message_.data()};
}

std::string RankStatus::place() const {
  const int phase = phase_;
  std::string place;
  if (phase == kJoining) return "while joining";
  if (phase == kPreparing) {
    place = "before the first stage";
  } else if (phase == kFinishing) {
    place = "after the last stage";
  } else if (phase == static_cast<int>(engine::Stage::kDenoise)) {
    place = fmt::format("at step {}", step_.load());
  } else {
    place = fmt::format("in stage '{}'", engine::stage_name(static_cast<engine::Stage>(phase)));
  }
  const int operation = operation_;
  if (operation < 0) return place;
  return fmt::format("{}, {} {}", place, under_way_ > 0 ? "in" : "after",
                     operations_[static_cast<size_t>(operation)].data());
}

Board::Board(int64_t ranks) : ranks_(ranks) {
  constexpr size_t kOffset = 64;  // of the slots
  static_assert(sizeof(Shared) <= kOffset && alignof(RankStatus) <= kOffset);
  bytes_ = kOffset + static_cast<size_t>(ranks) * sizeof(RankStatus);
  void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  shared_ = new (memory) Shared;
  slots_ = reinterpret_cast<RankStatus*>(static_cast<char*>(memory) + kOffset);
  for (int64_t i = 0; i < ranks; ++i) new (slots_ + i) RankStatus;
}

Board::~Board() {
  ::munmap(shared_, bytes_);
}

RankStatus& Board::rank(int64_t rank) {
  TESSERA_CHECK(rank >= 0 && rank < ranks_, "rank {} of {}", rank, ranks_);
  return slots_[rank];
}

const RankStatus& Board::rank(int64_t rank) const {
  TESSERA_CHECK(rank >= 0 && rank < ranks_, "rank {} of {}", rank, ranks_);
  return slots_[rank];
}

void Board::ask_to_end() {
  // A rank tells its question before it looks for the answer: either it sees kDeciding and waits, or its
  // question is seen here.
  shared_->end_at = kDeciding;
  int64_t most = 0;
  for (int64_t i = 0; i < ranks_; ++i) most = std::max(most, slots_[i].times_asked_.load());
  shared_->end_at = most + 1;
}

bool Board::must_end(int64_t rank) {
  const int64_t question = ++this->rank(rank).times_asked_;
  int64_t end_at = shared_->end_at;
  while (end_at == kDeciding) {
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    end_at = shared_->end_at;
  }
  return question >= end_at;
}

}  // namespace tessera::launch
