#include "engine/agreement.h"

#include <ATen/Functions.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <new>
#include <utility>

#include "comm/peer_error.h"

namespace tessera::engine {
namespace {

// How many bytes may be under way to each rank; where a rank is so far behind, the first one waits for it.
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

}  // namespace

Agreement::Agreement(comm::Group group) : group_(std::move(group)) {
  group_.hooks.reset();
}

bool Agreement::ask(const std::function<bool()>& wish) {
  if (group_.rank == 0) {
    const bool yes = wish && wish();
    if (group_.size == 1) return yes;
    const at::Tensor said = at::full({1}, yes ? 1 : 0, at::kByte);
    for (int64_t peer = 1; peer < group_.size; ++peer) sent_.push_back(comm::send(said, peer, group_));
    while (static_cast<int64_t>(sent_.size()) > kMostUnderWay * (group_.size - 1)) {
      sent_.front().wait();
      sent_.pop_front();
    }
    return yes;
  }
  at::Tensor said = at::empty({1}, at::kByte);
  comm::receive(said, 0, group_).wait();
  return said.item<uint8_t>() != 0;
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
  if (group_.size == 1) return failure;
  constexpr int64_t kNobody = -1;
  const at::Tensor own = at::full({1}, failure ? group_.rank : kNobody, at::kLong);
  std::vector<at::Tensor> all;
  for (int64_t rank = 0; group_.rank == 0 && rank < group_.size; ++rank) all.push_back(at::empty_like(own));
  comm::gather(own, all, 0, group_);
  int64_t first = kNobody;
  for (const at::Tensor& one : all) {
    if (first == kNobody) first = one.item<int64_t>();
  }
  first = follow(first);
  if (first == kNobody) return nullptr;
  TESSERA_CHECK(first >= 0 && first < group_.size, "rank {} of {} has failed", first, group_.size);
  const std::string why = comm::broadcast_bytes(first == group_.rank ? reason(failure) : "", first, group_);
  if (failure) return failure;
  return std::make_exception_ptr(comm::PeerError(group_.ranks[static_cast<size_t>(first)], "failed: " + why));
}

void Agreement::finish() {
  for (; !sent_.empty(); sent_.pop_front()) sent_.front().wait();
}

}  // namespace tessera::engine
