#include "serve/fair_queue.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace tessera::serve {
namespace {

constexpr FairQueue::Ticket kFirst = std::numeric_limits<FairQueue::Ticket>::min();

}  // namespace

FairQueue::Owner& FairQueue::owner_of(const std::string& name) {
  const auto [found, is_new] = owners_.try_emplace(name);
  Owner& owner = found->second;
  if (is_new) {
    owner.name = name;
    owner.account = virtual_time_;
  } else {
    leave(owner);
  }
  return owner;
}

void FairQueue::leave(Owner& owner) {
  idle_.erase({owner.account, &owner});
  if (owner.waiting.empty()) return;
  const Ticket head = owner.waiting.first().second;
  heads_.erase({owner.account + items_.at(head).cost, head});
  begins_.erase({owner.account.count(), head});
  ends_.erase({(owner.account + owner.waiting.total().work).count(), head});
}

void FairQueue::enter(Owner& owner) {
  if (owner.waiting.empty()) {
    if (owner.running > 0) return;
    // An owner that is behind gains nothing by being remembered: it would come back at the virtual time.
    if (owner.account > virtual_time_) {
      idle_.insert({owner.account, &owner});
    } else {
      owners_.erase(std::string(owner.name));
    }
    return;
  }
  const Ticket head = owner.waiting.first().second;
  const Sum all = owner.waiting.total();
  const double begin = owner.account.count(), end = (owner.account + all.work).count();
  const double weight = static_cast<double>(all.jobs) / all.work.count();
  heads_.insert({owner.account + items_.at(head).cost, head});
  begins_.insert({begin, head}, {.owners = 1, .x = begin, .weight = weight, .weighted_x = weight * begin});
  ends_.insert({end, head}, {.owners = 1, .x = end, .weight = weight, .weighted_x = weight * end});
}

void FairQueue::add(Ticket ticket, Owner& owner, const Item& item) {
  const bool is_new = items_.emplace(ticket, item).second;
  TESSERA_CHECK(is_new && item.cost > Seconds(0), "ticket {}, cost {}", ticket, item.cost.count());
  owner.waiting.insert({item.place, ticket}, {.jobs = 1, .work = item.cost});
  due_.insert({item.due, ticket});
  enter(owner);
}

Seconds FairQueue::push_back(Ticket ticket, const std::string& name, Seconds cost) {
  Owner& owner = owner_of(name);
  const Seconds tag = owner.account + owner.waiting.total().work + cost;
  const Seconds due = tag + (tag - virtual_time_);
  const int64_t place = owner.waiting.empty() ? 0 : owner.waiting.last().first + 1;
  add(ticket, owner, {.owner = &owner, .place = place, .cost = cost, .due = due});
  return due;
}

void FairQueue::push_front(Ticket ticket, const std::string& name, Seconds cost, Seconds due) {
  Owner& owner = owner_of(name);
  const int64_t place = owner.waiting.empty() ? 0 : owner.waiting.first().first - 1;
  add(ticket, owner, {.owner = &owner, .place = place, .cost = cost, .due = due});
}

void FairQueue::remove(Ticket ticket, const Item& item) {
  item.owner->waiting.erase({item.place, ticket});
  due_.erase({item.due, ticket});
  items_.erase(ticket);
}

void FairQueue::erase(Ticket ticket) {
  const Item item = items_.at(ticket);
  leave(*item.owner);
  remove(ticket, item);
  enter(*item.owner);
}

Seconds FairQueue::take(Ticket ticket) {
  const Item item = items_.at(ticket);
  Owner& owner = *item.owner;
  leave(owner);
  remove(ticket, item);
  owner.account += item.cost;
  ++owner.running;
  const Seconds account = owner.account;
  enter(owner);
  return account;
}

void FairQueue::give_back(const std::string& name, Seconds part) {
  Owner& owner = owners_.at(name);
  leave(owner);
  owner.account -= part;
  enter(owner);
}

void FairQueue::release(const std::string& name) {
  Owner& owner = owners_.at(name);
  leave(owner);
  --owner.running;
  enter(owner);
}

void FairQueue::advance(Seconds work) {
  while (!owners_.empty()) {
    const auto count = static_cast<double>(owners_.size());
    const Seconds to = virtual_time_ + work / count;
    if (idle_.empty() || to < idle_.begin()->first) {
      virtual_time_ = to;
      return;
    }
    // The first owner without work has lost its lead, and its share goes to the others.
    const auto [account, owner] = *idle_.begin();
    work = std::max(Seconds(0), work - (account - virtual_time_) * count);
    virtual_time_ = account;
    idle_.erase(idle_.begin());
    owners_.erase(std::string(owner->name));
  }
}

std::optional<FairQueue::Ticket> FairQueue::next(Seconds lead) const {
  if (heads_.empty()) return std::nullopt;
  constexpr int kMaxLooks = 64;
  int looks = 0;
  for (auto each = due_.begin(); each != due_.end() && is_overdue(each->first) && looks < kMaxLooks;
       ++each, ++looks) {
    if (may_go_first(each->second, lead)) return each->second;
  }
  return heads_.begin()->second;
}

Seconds FairQueue::tag(Ticket ticket) const {
  const Item& item = items_.at(ticket);
  return item.owner->account + item.cost;
}

FairQueue::Ahead FairQueue::before_tag(double tag) const {
  Ramp ramp = begins_.before({tag, kFirst});
  const Ramp end = ends_.before({tag, kFirst});
  ramp += {.owners = -end.owners, .x = -end.x, .weight = -end.weight, .weighted_x = -end.weighted_x};
  return {.jobs = ramp.weight * tag - ramp.weighted_x, .work = Seconds(ramp.owners * tag - ramp.x)};
}

FairQueue::Ahead FairQueue::ahead(Ticket ticket) const {
  const Item& item = items_.at(ticket);
  const Owner& owner = *item.owner;
  const Sum own = owner.waiting.before({item.place, ticket}), all = owner.waiting.total();
  const Seconds until = own.work + item.cost;
  Ahead ahead = before_tag((owner.account + until).count());
  // The above includes the owner's own work, up to the end of this job, and counts its jobs as if they were
  // equal.
  ahead.work = std::max(own.work, ahead.work - item.cost);
  ahead.jobs += static_cast<double>(own.jobs) - static_cast<double>(all.jobs) * (until / all.work);
  ahead.jobs = std::max(static_cast<double>(own.jobs), ahead.jobs);
  return ahead;
}

FairQueue::Ahead FairQueue::ahead_of_new(const std::string& name, Seconds cost) const {
  const auto found = owners_.find(name);
  if (found == owners_.end()) return before_tag((virtual_time_ + cost).count());
  return before_tag((found->second.account + found->second.waiting.total().work + cost).count());
}

}  // namespace tessera::serve
