// The order in which jobs of several owners begin, so that each owner gets an equal share of the work.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "serve/job.h"
#include "serve/sum_tree.h"

namespace tessera::serve {

// Fair queueing by virtual time (A. Demers, S. Keshav, S. Shenker, "Analysis and simulation of a fair
// queueing algorithm", 1989). It is the limit of deficit round robin as the quantum goes to zero: an owner's
// lead over another is at most one job instead of one job and a quantum, and turns are not spent on saving up
// for a large job.
//
// Virtual time goes forward with the work that is done, divided by the number of owners that have work: it is
// how much work each owner would have received by now if all were served at once. An owner's account is what
// it has been charged, and begins at the virtual time; the owner whose account would be lowest after its next
// job comes next. A job therefore begins at the latest when its owner's equal share would have finished it,
// apart from one job that cannot be interrupted.
//
// Others can begin before their turn (batches, deadlines): their owners are charged for it. `due` bounds the
// cost to those who wait: a job that an equal share would have finished twice over comes first.
//
// All functions take O(log n). Jobs are identified by tickets, which the caller chooses and never reuses.
class FairQueue {
 public:
  using Ticket = int64_t;
  // The work that comes before a job if no job begins before its turn and none is added.
  struct Ahead {
    double jobs = 0;  // the part of the other owners' jobs about to be served that comes before it
    Seconds work{0};
  };

  // Puts a job behind its owner's other jobs, and returns when it is due, in virtual time.
  Seconds push_back(Ticket ticket, const std::string& owner, Seconds cost);
  // Puts a job that has already waited before its owner's other jobs.
  void push_front(Ticket ticket, const std::string& owner, Seconds cost, Seconds due);
  // Removes a waiting job; nobody is charged for it.
  void erase(Ticket ticket);

  // Takes out a job that begins, and charges its cost to its owner. Returns the owner's account.
  Seconds take(Ticket ticket);
  // Gives back a part of what was charged for a job of this owner.
  void give_back(const std::string& owner, Seconds part);
  // A job that was taken out has stopped running. Call it once for each, after give_back().
  void release(const std::string& owner);
  // This much of the charged work has been done.
  void advance(Seconds work);

  // The job whose turn it is; nothing if none waits. A job that is due comes first, unless its owner would
  // then be ahead by more than `lead`, which can happen if its other jobs have begun before their turn.
  std::optional<Ticket> next(Seconds lead) const;
  // What the account of the owner of a waiting job would be if the job began now.
  Seconds tag(Ticket ticket) const;
  // Whether its owner would then be at most `lead` ahead of the owner whose turn it is.
  bool may_go_first(Ticket ticket, Seconds lead) const { return tag(ticket) <= heads_.begin()->first + lead; }
  bool is_overdue(Seconds due) const { return due <= virtual_time_; }

  Ahead ahead(Ticket ticket) const;
  // The work before a job that would arrive now.
  Ahead ahead_of_new(const std::string& owner, Seconds cost) const;

  Seconds virtual_time() const { return virtual_time_; }
  size_t size() const { return items_.size(); }

 private:
  struct Sum {
    int64_t jobs = 0;
    Seconds work{0};
    Sum& operator+=(const Sum& other) {
      jobs += other.jobs;
      work += other.work;
      return *this;
    }
  };
  // For sums over owners of max(0, t - x), and of that times `weight`, as functions of t.
  struct Ramp {
    double owners = 0, x = 0, weight = 0, weighted_x = 0;
    Ramp& operator+=(const Ramp& other) {
      owners += other.owners;
      x += other.x;
      weight += other.weight;
      weighted_x += other.weighted_x;
      return *this;
    }
  };
  using Ramps = SumTree<std::pair<double, Ticket>, Ramp>;
  using Place = std::pair<int64_t, Ticket>;  // among the jobs of an owner
  struct Owner {
    std::string name;
    Seconds account{0};
    SumTree<Place, Sum> waiting{};
    int64_t running = 0;
  };
  struct Item {
    Owner* owner;
    int64_t place;
    Seconds cost;
    Seconds due;
  };

  Owner& owner_of(const std::string& name);
  void add(Ticket ticket, Owner& owner, const Item& item);
  void remove(Ticket ticket, const Item& item);
  // While an owner is in the orders below, they reflect what it has waiting; this takes it out before that
  // changes. An owner that belongs to none is forgotten.
  void leave(Owner& owner);
  void enter(Owner& owner);
  Ahead before_tag(double tag) const;

  Seconds virtual_time_{0};
  std::unordered_map<std::string, Owner> owners_;  // those with work, or ahead of the virtual time
  std::unordered_map<Ticket, Item> items_;
  std::set<std::pair<Seconds, Ticket>> heads_;  // the first job of each owner that has waiting jobs, by its
                                                // tag
  std::set<std::pair<Seconds, Ticket>> due_;    // all waiting jobs
  std::set<std::pair<Seconds, Owner*>> idle_;   // owners without work, by account
  // For owners with waiting jobs: where their accounts are, and where they will be when all waiting jobs have
  // begun. Between the two, their jobs are served evenly.
  Ramps begins_, ends_;
};

}  // namespace tessera::serve
