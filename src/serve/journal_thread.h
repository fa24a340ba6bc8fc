// A journal on a thread of its own, because it waits for the disk and the server's thread must not.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "serve/journal.h"

namespace tessera::serve {

// Makes a call later on the server's thread; thread-safe (HttpServer::post()).
using Post = std::function<void(std::function<void()>)>;

// Takes orders on the server's thread, carries them out in order, and calls back on that thread. Orders that
// are waiting when the disk is ready again are written together, with one commit. Acceptances overtake other
// waiting orders, except removals, which free a key.
class JournalThread {
 public:
  // Throws as Journal does.
  JournalThread(const JournalOptions& options, Post post, std::function<WallTime()> wall_clock);
  ~JournalThread();  // when all orders are carried out; their callbacks may come after it
  JournalThread(const JournalThread&) = delete;
  JournalThread& operator=(const JournalThread&) = delete;

  // The jobs that an earlier process has left unfinished. Call it once.
  std::vector<JournalJob> take_unfinished() { return std::move(unfinished_); }

  // The text is the reason why the journal failed.
  using Accepted = std::function<void(const std::variant<Acceptance, std::string>&)>;
  void accept(Submission submission, Accepted done);
  void record(Journal::Change change);
  void rewrite(std::string id, std::string request);

  struct File {
    std::string content_type;
    std::shared_ptr<const std::string> bytes;
  };
  using Stored = std::function<void(std::variant<std::vector<StoredResult>, std::string>)>;
  void succeed(const std::string& id, std::vector<File> files, std::optional<WallTime> started,
               const std::string& seconds, Stored done);
  // Saves `head` and what follows it.
  void save_step(std::vector<std::string> ids, int64_t step, std::string head,
                 std::shared_ptr<const std::string> run);

  struct Found {
    JournalJob job;
    std::vector<StoredResult> results;
  };
  void find(const std::string& id, std::function<void(std::optional<Found>)> done);
  void list(const std::string& owner, const JobFilter& filter, std::function<void(std::vector<Found>)> done);
  void remove(const std::string& id);
  void remove_expired();

 private:
  struct Task {
    std::optional<Submission> submission = {};
    Accepted accepted = {};
    std::optional<Journal::Change> change = {};
    std::function<void(Journal&)> other = {};
    bool is_removal = false;
  };

  void add(Task task);
  void add(std::function<void(Journal&)> task) { add(Task{.other = std::move(task)}); }
  void run();
  void carry_out(std::vector<Task>& tasks);
  void accept_all(std::vector<Task*>& tasks);
  void record_all(std::vector<Journal::Change>& changes);

  const Post post_;
  const std::function<WallTime()> wall_clock_;
  Journal journal_;
  std::vector<JournalJob> unfinished_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Task> tasks_;
  bool is_ending_ = false;
  std::thread thread_;  // must be last: it uses all other members
};

}  // namespace tessera::serve
