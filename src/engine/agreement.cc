#include "engine/agreement.h"

#include <ATen/Functions.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <new>
#include <utility>

#include "comm/peer_error.h"
#include "engine/observer.h"

namespace tessera::engine {
namespace {

// Limits the bytes in flight to each rank; rank 0 waits for a rank that is further behind.
constexpr int64_t kMostUnderWay = 64;

std::string reason(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    return error.message();
  } catch (const std::bad_alloc&) {
    return "not enough memory";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown";
  }
}

bool is_cancellation(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Cancelled&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

Agreement::Agreement(comm::Group group) : group_(std::move(group)) {
  group_.hooks.reset();
}

bool Agreement::ask(const std::function<bool()>& wish) {
  if (group_.rank > 0) {
    at::Tensor said = at::empty({1}, at::kByte);
    comm::receive(said, 0, group_).wait();
    has_said_yes_ = said.item<uint8_t>() != 0;
    return has_said_yes_;
  }
  std::exception_ptr failure;
  try {
    has_said_yes_ = wish && wish();
  } catch (...) {
    has_said_yes_ = true;
    failure = std::current_exception();
  }
  tell(has_said_yes_);
  if (failure) std::rethrow_exception(failure);
  return has_said_yes_;
}

void Agreement::tell(bool yes) {
  if (group_.size == 1) return;
  const at::Tensor said = at::full({1}, yes ? 1 : 0, at::kByte);
  for (int64_t peer = 1; peer < group_.size; ++peer) sent_.push_back(comm::send(said, peer, group_));
  while (static_cast<int64_t>(sent_.size()) > kMostUnderWay * (group_.size - 1)) {
    sent_.front().wait();
    sent_.pop_front();
  }
}

int64_t Agreement::follow(int64_t own) {
  if (group_.size == 1) return own;
  at::Tensor number = at::full({1}, own, at::kLong);
  if (group_.rank > 0) {
    comm::receive(number, 0, group_).wait();
    return number.item<int64_t>();
  }
  std::vector<comm::Pending> sent;
  for (int64_t peer = 1; peer < group_.size; ++peer) sent.push_back(comm::send(number, peer, group_));
  for (comm::Pending& one : sent) one.wait();
  return own;
}

int64_t Agreement::least(int64_t own) {
  if (group_.size == 1) return own;
  const at::Tensor number = at::full({1}, own, at::kLong);
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; group_.rank == 0 && rank < group_.size; ++rank)
    all.push_back(at::empty_like(number));
  comm::gather(number, all, 0, group_);
  for (const at::Tensor& one : all) own = std::min(own, one.item<int64_t>());
  return follow(own);
}

std::exception_ptr Agreement::settle(const std::exception_ptr& failure) {
  finish();
  if (group_.size == 1) return failure;
  // A rank that has failed sends its number, a rank that was cancelled sends its number plus `size`. The
  // least number is the verdict, so a failure takes precedence over a cancellation.
  constexpr int64_t kNobody = -1;
  const int64_t size = group_.size;
  const int64_t code = !failure ? kNobody : is_cancellation(failure) ? size + group_.rank : group_.rank;
  const at::Tensor own = at::full({1}, code, at::kLong);
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; group_.rank == 0 && rank < size; ++rank) all.push_back(at::empty_like(own));
  comm::gather(own, all, 0, group_);
  int64_t verdict = kNobody;
  for (const at::Tensor& one : all) {
    const int64_t told = one.item<int64_t>();
    if (told != kNobody && (verdict == kNobody || told < verdict)) verdict = told;
  }
  verdict = follow(verdict);
  if (verdict == kNobody) return nullptr;
  TESSERA_CHECK(verdict >= 0 && verdict < 2 * size, "verdict {} among {} ranks", verdict, size);
  const bool has_failed = failure && !is_cancellation(failure);
  if (verdict >= size) return failure ? failure : std::make_exception_ptr(Cancelled());
  const std::string why =
      comm::broadcast_bytes(verdict == group_.rank ? reason(failure) : "", verdict, group_);
  if (has_failed) return failure;
  return std::make_exception_ptr(
      comm::PeerError(group_.ranks[static_cast<size_t>(verdict)], "failed: " + why));
}

void Agreement::finish() {
  for (; !sent_.empty(); sent_.pop_front()) sent_.front().wait();
}

}  // namespace tessera::engine
