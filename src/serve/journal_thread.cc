#include "serve/journal_thread.h"

#include <algorithm>
#include <span>

#include "core/error.h"
#include "core/log.h"

namespace tessera::serve {
namespace {

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Returns an error message, or nothing. A full disk must not end the server: whatever could not be written is
// merely missing after the next start.
template <typename Work>
std::optional<std::string> failure_in(const Work& work) {
  try {
    work();
    return std::nullopt;
  } catch (const std::exception& error) {
    log_warning("{}", error.what());
    return error.what();
  }
}

}  // namespace

JournalThread::JournalThread(const JournalOptions& options, Post post, std::function<WallTime()> wall_clock)
    : post_(std::move(post)),
      wall_clock_(std::move(wall_clock)),
      journal_(options, wall_clock_()),
      unfinished_(journal_.unfinished()),
      thread_([this] { run(); }) {}

JournalThread::~JournalThread() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void JournalThread::add(Task task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void JournalThread::run() {
  while (true) {
    std::vector<Task> tasks;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !tasks_.empty() || is_ending_; });
      if (tasks_.empty()) return;
      tasks.swap(tasks_);
    }
    carry_out(tasks);
  }
}

void JournalThread::carry_out(std::vector<Task>& tasks) {
  const auto removal =
      std::find_if(tasks.begin(), tasks.end(), [](const Task& each) { return each.is_removal; });
  if (removal == tasks.end())
    std::stable_partition(tasks.begin(), tasks.end(),
                          [](const Task& each) { return each.submission.has_value(); });
  std::vector<Task*> submissions;
  std::vector<Journal::Change> changes;
  for (Task& each : tasks) {
    if (!each.submission) accept_all(submissions);
    if (!each.change) record_all(changes);
    if (each.submission) submissions.push_back(&each);
    if (each.change) changes.push_back(std::move(*each.change));
    if (each.other) failure_in([&] { each.other(journal_); });
  }
  accept_all(submissions);
  record_all(changes);
}

void JournalThread::accept_all(std::vector<Task*>& tasks) {
  if (tasks.empty()) return;
  std::vector<Submission> submissions;
  for (Task* each : tasks) submissions.push_back(std::move(*each->submission));
  std::vector<Acceptance> acceptances;
  const auto failure = failure_in([&] { acceptances = journal_.accept(submissions); });
  for (size_t i = 0; i < tasks.size(); ++i) {
    std::variant<Acceptance, std::string> answer;
    if (failure) {
      answer = *failure;
    } else {
      answer = acceptances[i];
    }
    post_([done = std::move(tasks[i]->accepted), answer = std::move(answer)] { done(answer); });
  }
  tasks.clear();
}

void JournalThread::record_all(std::vector<Journal::Change>& changes) {
  if (changes.empty()) return;
  failure_in([&] { journal_.record(changes, wall_clock_()); });
  changes.clear();
}

void JournalThread::accept(Submission submission, Accepted done) {
  add(Task{.submission = std::move(submission), .accepted = std::move(done)});
}

void JournalThread::record(Journal::Change change) {
  add(Task{.change = std::move(change)});
}

void JournalThread::rewrite(std::string id, std::string request) {
  add([id = std::move(id), request = std::move(request)](Journal& journal) {
    failure_in([&] { journal.rewrite(id, request); });
  });
}

void JournalThread::succeed(const std::string& id, std::vector<File> files, std::optional<WallTime> started,
                            const std::string& seconds, Stored done) {
  add([=, this, files = std::move(files), done = std::move(done)](Journal& journal) {
    std::vector<NewResult> results;
    for (const File& each : files)
      results.push_back({.content_type = each.content_type, .bytes = as_bytes(*each.bytes)});
    std::variant<std::vector<StoredResult>, std::string> answer;
    const auto failure = failure_in([&] {
      journal.succeed(id, results, wall_clock_(), started, seconds);
      answer = journal.results(id);
    });
    if (failure) answer = *failure;
    post_([done, answer = std::move(answer)] { done(answer); });
  });
}

void JournalThread::save_step(std::vector<std::string> ids, int64_t step, std::string head,
                              std::shared_ptr<const std::string> run) {
  add([ids = std::move(ids), step, head = std::move(head), run = std::move(run)](Journal& journal) {
    journal.save_step(ids, step, as_bytes(head + *run));
  });
}

void JournalThread::find(const std::string& id, std::function<void(std::optional<Found>)> done) {
  add([=, this](Journal& journal) {
    std::optional<Found> found;
    failure_in([&] {
      if (auto job = journal.find(id)) found = Found{.job = std::move(*job), .results = journal.results(id)};
    });
    post_([done, found = std::move(found)] { done(found); });
  });
}

void JournalThread::list(const std::string& owner, const JobFilter& filter,
                         std::function<void(std::vector<Found>)> done) {
  add([=, this](Journal& journal) {
    std::vector<Found> all;
    failure_in([&] {
      for (JournalJob& job : journal.list(owner, filter)) {
        std::vector<StoredResult> results = journal.results(job.submission.id);
        all.push_back({.job = std::move(job), .results = std::move(results)});
      }
    });
    post_([done, all = std::move(all)] { done(all); });
  });
}

void JournalThread::remove(const std::string& id) {
  add(Task{.other = [id](Journal& journal) { journal.remove(id); }, .is_removal = true});
}

void JournalThread::remove_expired() {
  add([this](Journal& journal) { journal.remove_expired(wall_clock_()); });
}

}  // namespace tessera::serve
