#include "serve/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <set>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/system_call.h"
#include "core/text.h"

namespace tessera::serve {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kApplication = 0x54535352;  // identifies the database as a journal
constexpr int64_t kVersion = 2;               // of the tables

// `place` is the order in which jobs were accepted, or results stored.
constexpr const char* kTables = R"(
  CREATE TABLE jobs(place INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
                    family TEXT NOT NULL, request TEXT NOT NULL, state INTEGER NOT NULL, attempts INTEGER NOT NULL,
                    accepted INTEGER NOT NULL, deadline INTEGER, started INTEGER, ended INTEGER, error TEXT NOT NULL,
                    saved_file TEXT, saved_step INTEGER NOT NULL, idempotency_key TEXT, body_hash TEXT NOT NULL,
                    seconds TEXT NOT NULL DEFAULT '');
  CREATE UNIQUE INDEX keys ON jobs(owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
  CREATE INDEX unfinished ON jobs(place) WHERE ended IS NULL;
  CREATE INDEX ends ON jobs(ended) WHERE ended IS NOT NULL;
  CREATE INDEX saved ON jobs(saved_file) WHERE saved_file IS NOT NULL;
  CREATE TABLE results(place INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL REFERENCES jobs(id),
                       file TEXT NOT NULL UNIQUE, content_type TEXT NOT NULL, bytes INTEGER NOT NULL,
                       expires INTEGER NOT NULL);
  CREATE INDEX results_of_job ON results(job);
  CREATE INDEX expiries ON results(expires);
)";
constexpr const char* kJobColumns =
    "id, owner, family, request, deadline, idempotency_key, body_hash, state, attempts, accepted, ended, "
    "error, "
    "saved_file, saved_step, started, seconds";
// What each version adds to the previous one, from the second on.
constexpr std::array<const char*, kVersion - 1> kAdditions = {
    "ALTER TABLE jobs ADD COLUMN seconds TEXT NOT NULL DEFAULT ''"};

int64_t milliseconds(WallTime time) {
  return time.time_since_epoch().count();
}
WallTime wall_time(int64_t milliseconds) {
  return WallTime(std::chrono::milliseconds(milliseconds));
}

Statement& bind_time(Statement& statement, int index, const std::optional<WallTime>& time) {
  return time ? statement.bind(index, milliseconds(*time)) : statement.bind_null(index);
}

// Requests and pictures are private to their owners. When this returns, the created folders are on disk.
fs::path private_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    usage_error(path.string(), "cannot create the folder: {}", system_reason(errno));
  return path;
}

// After this, files that were created or renamed in the folder are on disk.
void flush_folder(const fs::path& path) {
  const Descriptor folder(
      uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (folder.number() < 0 || !flush_to_disk(folder.number()))
    usage_error(path.string(), "cannot write to the folder: {}", system_reason(errno));
}

void remove_file(const fs::path& path) {
  std::error_code ignored;  // the next process removes leftovers
  fs::remove(path, ignored);
}

// Files that are removed unless keep() is called.
class NewFiles {
 public:
  explicit NewFiles(fs::path folder) : folder_(std::move(folder)) {}
  ~NewFiles() {
    for (const std::string& name : names_) remove_file(folder_ / name);
  }
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  void add(const std::string& name, std::span<const std::byte> bytes) {
    AtomicFile file(folder_ / name);
    file.write(bytes);
    file.commit();
    names_.push_back(name);
  }
  void keep() { names_.clear(); }

 private:
  fs::path folder_;
  std::vector<std::string> names_;
};

}  // namespace

Journal::Journal(const JournalOptions& options, WallTime now)
    : options_(options),
      results_folder_(private_folder(options.folder) / "results"),
      saved_folder_(options.folder / "saved"),
      database_(options.folder / "journal.sqlite") {
  private_folder(results_folder_);
  private_folder(saved_folder_);
  create_tables();
  flush_folder(options_.folder);
  remove_strays();
  remove_expired(now);
}

void Journal::create_tables() {
  const std::string where = database_.path().string();
  Statement check(database_, "PRAGMA quick_check(1)");
  if (!check.next() || check.text(0) != "ok")
    input_error(where, "is damaged ({}); move it away, or put a copy in its place", printable(check.text(0)));
  check.reset();
  Transaction transaction(database_);
  if (database_.integer("SELECT count(*) FROM sqlite_master") == 0) {
    database_.run(kTables);
    database_.run(
        fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplication, kVersion));
  } else if (database_.integer("PRAGMA application_id") != kApplication) {
    input_error(where, "is the database of another program; name another folder");
  }
  const int64_t version = database_.integer("PRAGMA user_version");
  if (version > kVersion) {
    input_error(where, "was written by a newer version of tessera (tables of version {}, this one knows {})",
                version, kVersion);
  }
  for (int64_t next = version + 1; next <= kVersion; ++next) {
    database_.run(kAdditions.at(static_cast<size_t>(next - 2)));
    database_.run(fmt::format("PRAGMA user_version = {}", next));
  }
  transaction.commit();
}

// Removes files without rows, and rows of results without files; saved runs without a file are forgotten.
void Journal::remove_strays() {
  std::set<std::string> found, missing;
  const auto sort = [&](const fs::path& folder, const char* sql) {
    found.clear();
    missing.clear();
    std::error_code code;
    for (const fs::path& path : list_folder(folder, code)) found.insert(path.filename());
    if (code) usage_error(folder.string(), "cannot read the folder: {}", code.message());
    std::set<std::string> strays = found;
    Statement rows(database_, sql);
    while (rows.next()) {
      if (strays.erase(rows.text(0)) == 0 && !found.contains(rows.text(0))) missing.insert(rows.text(0));
    }
    for (const std::string& name : strays) remove_file(folder / name);
  };
  Transaction transaction(database_);
  sort(saved_folder_, "SELECT DISTINCT saved_file FROM jobs WHERE saved_file IS NOT NULL");
  Statement forget(database_, "UPDATE jobs SET saved_file = NULL, saved_step = 0 WHERE saved_file = ?");
  for (const std::string& name : missing) forget.bind(0, name).run();
  sort(results_folder_, "SELECT file FROM results");
  Statement remove(database_, "DELETE FROM results WHERE file = ?");
  for (const std::string& name : missing) remove.bind(0, name).run();
  transaction.commit();
  result_bytes_ = static_cast<uint64_t>(database_.integer("SELECT total(bytes) FROM results"));
}

std::vector<Acceptance> Journal::accept(std::span<const Submission> submissions) {
  std::vector<Acceptance> acceptances;
  Transaction transaction(database_);
  Statement before(database_, "SELECT id, body_hash FROM jobs WHERE owner = ? AND idempotency_key = ?");
  Statement insert(database_,
                   "INSERT INTO jobs(id, owner, family, request, state, attempts, accepted, deadline, error, "
                   "saved_step, idempotency_key, body_hash) VALUES(?, ?, ?, ?, ?, 0, ?, ?, '', 0, ?, ?)");
  for (const Submission& each : submissions) {
    TESSERA_CHECK(is_job_id(each.id), "a job's id is '{}'", each.id);
    if (each.idempotency_key && before.bind(0, each.owner).bind(1, *each.idempotency_key).next()) {
      const bool is_same = before.text(1) == each.body_hash;
      acceptances.push_back(
          {is_same ? Acceptance::Kind::kAttached : Acceptance::Kind::kRefused, before.text(0)});
      before.reset();
      continue;
    }
    insert.bind(0, each.id).bind(1, each.owner).bind(2, each.family).bind(3, each.request);
    insert.bind(4, static_cast<int64_t>(JobState::kQueued)).bind(5, milliseconds(each.accepted));
    bind_time(insert, 6, each.deadline);
    insert.bind(7, each.idempotency_key).bind(8, each.body_hash).run();
    acceptances.push_back({Acceptance::Kind::kAccepted, each.id});
  }
  transaction.commit();
  return acceptances;
}

void Journal::rewrite(const std::string& id, const std::string& request) {
  Statement update(database_, "UPDATE jobs SET request = ? WHERE id = ? AND ended IS NULL");
  update.bind(0, request).bind(1, id).run();
}

// The saved files of these jobs, each once.
std::vector<std::string> Journal::saved_files(std::span<const std::string> ids) {
  std::set<std::string> files;
  Statement select(database_, "SELECT saved_file FROM jobs WHERE id = ? AND saved_file IS NOT NULL");
  for (const std::string& id : ids) {
    select.bind(0, id);
    while (select.next()) files.insert(select.text(0));
  }
  return {files.begin(), files.end()};
}

// Removes those of these files that no job has any more.
void Journal::remove_saved(const std::vector<std::string>& files) {
  Statement used(database_, "SELECT 1 FROM jobs WHERE saved_file = ?");
  for (const std::string& file : files) {
    if (!used.bind(0, file).next()) remove_file(saved_folder_ / file);
    used.reset();
  }
}

void Journal::record(std::span<const Change> changes, WallTime now) {
  std::vector<std::string> ids;
  for (const Change& change : changes) {
    if (has_ended(change.state)) ids.push_back(change.id);
  }
  const std::vector<std::string> files = saved_files(ids);
  Transaction transaction(database_);
  Statement change_state(
      database_,
      "UPDATE jobs SET state = ?, attempts = ?, error = ?, started = ? WHERE id = ? AND ended IS NULL");
  Statement end(
      database_,
      "UPDATE jobs SET ended = ?, saved_file = NULL, saved_step = 0 WHERE id = ? AND ended IS NULL");
  for (const Change& change : changes) {
    change_state.bind(0, static_cast<int64_t>(change.state)).bind(1, change.attempts).bind(2, change.error);
    bind_time(change_state, 3, change.started).bind(4, change.id).run();
    if (has_ended(change.state)) end.bind(0, milliseconds(now)).bind(1, change.id).run();
  }
  transaction.commit();
  remove_saved(files);
}

void Journal::save_step(std::span<const std::string> ids, int64_t step, std::span<const std::byte> run) {
  TESSERA_CHECK(!ids.empty() && is_job_id(ids.front()), "jobs without an id");
  const std::vector<std::string> before = saved_files(ids);
  // The new file has its own name, so that the previously saved one stays until no row names it.
  const std::string name = fmt::format("{}.{}.{}", ids.front(), step, random_name(2));
  NewFiles files(saved_folder_);
  files.add(name, run);
  flush_folder(saved_folder_);
  Transaction transaction(database_);
  Statement update(database_,
                   "UPDATE jobs SET saved_file = ?, saved_step = ? WHERE id = ? AND ended IS NULL");
  for (const std::string& id : ids) update.bind(0, name).bind(1, step).bind(2, id).run();
  transaction.commit();
  files.keep();
  remove_saved(before);
  remove_saved({name});  // if all of the jobs have ended
}

void Journal::succeed(const std::string& id, std::span<const NewResult> results, WallTime now,
                      std::optional<WallTime> started, std::string_view seconds) {
  TESSERA_CHECK(is_job_id(id), "a job's id is '{}'", id);
  uint64_t bytes = 0;
  for (const NewResult& result : results) bytes += result.bytes.size();
  if (bytes > options_.max_result_bytes) {
    usage_error(results_folder_.string(), "results of {} exceed the cap of {}", bytes_text(bytes),
                bytes_text(options_.max_result_bytes));
  }
  make_room(bytes);
  const std::vector<std::string> saved = saved_files(std::array{id});
  NewFiles files(results_folder_);
  Transaction transaction(database_);
  Statement insert(database_,
                   "INSERT INTO results(job, file, content_type, bytes, expires) VALUES(?, ?, ?, ?, ?)");
  const int64_t expires = milliseconds(now + options_.time_to_live);
  for (size_t i = 0; i < results.size(); ++i) {
    const std::string name = fmt::format("{}.{}", id, i);
    files.add(name, results[i].bytes);
    insert.bind(0, id).bind(1, name).bind(2, results[i].content_type);
    insert.bind(3, static_cast<int64_t>(results[i].bytes.size())).bind(4, expires).run();
  }
  flush_folder(results_folder_);
  Statement end(database_,
                "UPDATE jobs SET state = ?, ended = ?, started = ?, seconds = ?, saved_file = NULL, "
                "saved_step = 0 WHERE id = ?");
  end.bind(0, static_cast<int64_t>(JobState::kSucceeded)).bind(1, milliseconds(now));
  bind_time(end, 2, started).bind(3, seconds).bind(4, id).run();
  transaction.commit();
  files.keep();
  result_bytes_ += bytes;
  remove_saved(saved);
}

// Removes the results that a statement lists, with their files.
void Journal::remove_results(Statement& which) {
  std::vector<std::string> names;
  uint64_t bytes = 0;
  while (which.next()) {
    names.push_back(which.text(0));
    bytes += static_cast<uint64_t>(which.integer(1));
  }
  if (names.empty()) return;
  Transaction transaction(database_);
  Statement remove(database_, "DELETE FROM results WHERE file = ?");
  for (const std::string& name : names) remove.bind(0, name).run();
  transaction.commit();
  result_bytes_ -= bytes;
  for (const std::string& name : names) remove_file(results_folder_ / name);
}

// Removes the oldest results until there is room for this many bytes.
void Journal::make_room(uint64_t bytes) {
  const uint64_t cap = options_.max_result_bytes;
  if (result_bytes_ + bytes <= cap) return;
  // Those beyond the newest ones for which there is room.
  Statement oldest(
      database_,
      "SELECT file, bytes FROM (SELECT file, bytes, place, sum(bytes) OVER (ORDER BY place DESC) AS "
      "newer FROM results) WHERE newer > ? ORDER BY place");
  oldest.bind(0, static_cast<int64_t>(cap - bytes));
  remove_results(oldest);
}

void Journal::remove_expired(WallTime now) {
  Statement expired(database_, "SELECT file, bytes FROM results WHERE expires <= ?");
  remove_results(expired.bind(0, milliseconds(now)));
  Statement remove(
      database_,
      "DELETE FROM jobs WHERE ended <= ? AND NOT EXISTS (SELECT 1 FROM results WHERE job = jobs.id)");
  remove.bind(0, milliseconds(now - options_.time_to_live)).run();
}

std::vector<JournalJob> Journal::read(Statement& statement) {
  std::vector<JournalJob> jobs;
  while (statement.next()) {
    Submission submission = {.id = statement.text(0),
                             .owner = statement.text(1),
                             .family = statement.text(2),
                             .request = statement.text(3)};
    submission.accepted = wall_time(statement.integer(9));
    if (!statement.is_null(4)) submission.deadline = wall_time(statement.integer(4));
    if (!statement.is_null(5)) submission.idempotency_key = statement.text(5);
    submission.body_hash = statement.text(6);
    JournalJob job = {.submission = std::move(submission)};
    const int64_t state = statement.integer(7);
    if (state < 0 || state >= static_cast<int64_t>(kJobStateNames.size()))
      input_error(database_.path().string(), "is damaged: a job has state {}; put a copy in its place",
                  state);
    job.state = static_cast<JobState>(state);
    job.attempts = static_cast<int>(statement.integer(8));
    if (!statement.is_null(10)) job.ended = wall_time(statement.integer(10));
    job.error = statement.text(11);
    if (!statement.is_null(12)) job.saved_file = saved_folder_ / statement.text(12);
    job.saved_step = statement.integer(13);
    if (!statement.is_null(14)) job.started = wall_time(statement.integer(14));
    job.seconds = statement.text(15);
    jobs.push_back(std::move(job));
  }
  return jobs;
}

std::vector<JournalJob> Journal::unfinished() {
  Statement select(database_,
                   fmt::format("SELECT {} FROM jobs WHERE ended IS NULL ORDER BY place", kJobColumns));
  return read(select);
}

std::optional<JournalJob> Journal::find(std::string_view id) {
  Statement select(database_, fmt::format("SELECT {} FROM jobs WHERE id = ?", kJobColumns));
  std::vector<JournalJob> found = read(select.bind(0, id));
  if (found.empty()) return std::nullopt;
  return std::move(found.front());
}

std::vector<JournalJob> Journal::list(const std::string& owner, const JobFilter& filter) {
  std::string states;
  for (size_t i = 0; i < kJobStateNames.size(); ++i) {
    if (filter.includes(static_cast<JobState>(i)))
      states += fmt::format("{}{}", states.empty() ? "" : ",", i);
  }
  Statement select(
      database_,
      fmt::format("SELECT {} FROM jobs WHERE owner = ? AND id {} ? AND ended IS NOT NULL AND state "
                  "IN ({}) AND family = coalesce(?, family) ORDER BY id {} LIMIT ?",
                  kJobColumns, filter.newest_first ? "<" : ">", states,
                  filter.newest_first ? "DESC" : "ASC"));
  // "~" sorts after all ids.
  const std::string after = filter.newest_first && filter.after.empty() ? "~" : filter.after;
  select.bind(0, owner).bind(1, after).bind(2, filter.api).bind(3, filter.limit);
  return read(select);
}

void Journal::remove(const std::string& id) {
  const std::vector<std::string> saved = saved_files(std::array{id});
  Statement results(database_, "SELECT file, bytes FROM results WHERE job = ?");
  remove_results(results.bind(0, id));
  Statement remove(database_, "DELETE FROM jobs WHERE id = ?");
  remove.bind(0, id).run();
  remove_saved(saved);
}

std::vector<StoredResult> Journal::results(std::string_view id) {
  std::vector<StoredResult> results;
  Statement select(database_,
                   "SELECT file, content_type, bytes, expires FROM results WHERE job = ? ORDER BY place");
  select.bind(0, id);
  while (select.next()) {
    results.push_back({.path = results_folder_ / select.text(0),
                       .content_type = select.text(1),
                       .bytes = static_cast<uint64_t>(select.integer(2)),
                       .expires = wall_time(select.integer(3))});
  }
  return results;
}

}  // namespace tessera::serve
