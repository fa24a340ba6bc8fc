#include "serve/journal.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/serve/journal_fixture.h"

namespace tessera::serve {
namespace {

namespace fs = std::filesystem;
using std::chrono::hours;
using std::chrono::milliseconds;

TEST(JobId, SortsByTimeAndCannotBeGuessed) {
  const RandomBytes random = repeatable(1);
  std::set<std::string> ids;
  std::string last;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = new_job_id(kNow + milliseconds(i), random);
    EXPECT_TRUE(is_job_id(id)) << id;
    EXPECT_LT(last, id);
    ids.insert(id.substr(10));
    last = id;
  }
  EXPECT_EQ(ids.size(), 1000U);
  EXPECT_NE(new_job_id(kNow), new_job_id(kNow));
  for (const char* text : {"", "../../../../../../../../etc/passwd/x", "01j00000000000000000000000000000000"})
    EXPECT_FALSE(is_job_id(text));
}

TEST(JobId, HasEveryRandomBit) {
  const auto with = [](size_t index, std::byte value) {
    return new_job_id(kNow, [=](std::span<std::byte> bytes) {
      ASSERT_EQ(bytes.size(), 16U);
      bytes[index] = value;
    });
  };
  std::set<std::string> ids;
  for (size_t i = 0; i < 16; ++i) {
    for (int bit = 0; bit < 8; ++bit) ids.insert(with(i, static_cast<std::byte>(1 << bit)));
  }
  EXPECT_EQ(ids.size(), 128U);
}

TEST_F(JournalTest, GivesBackWhatHasNotEnded) {
  Submission first = submission(3);
  first.deadline = kNow + hours(1);
  first.idempotency_key = "key";
  accept({first, submission(1), submission(2), submission(4)});
  journal_->record(
      std::array<Journal::Change, 3>{{{.id = id_of(3), .state = JobState::kRunning, .attempts = 2},
                                      {.id = id_of(2), .state = JobState::kFailed, .error = "why"},
                                      {.id = id_of(4), .state = JobState::kCancelled}}},
      kNow + hours(2));
  // Those that have ended stay so.
  journal_->record(std::array<Journal::Change, 1>{{{.id = id_of(2), .state = JobState::kRunning}}}, kNow);
  open();
  const std::vector<JournalJob> jobs = journal_->unfinished();
  ASSERT_EQ(jobs.size(), 2U);
  EXPECT_EQ(jobs[0].submission.id, id_of(3));
  EXPECT_EQ(jobs[0].submission.owner, "owner");
  EXPECT_EQ(jobs[0].submission.family, "native");
  EXPECT_EQ(jobs[0].submission.request, first.request);
  EXPECT_EQ(jobs[0].submission.deadline, kNow + hours(1));
  EXPECT_EQ(jobs[0].submission.idempotency_key, "key");
  EXPECT_EQ(jobs[0].submission.body_hash, "body");
  EXPECT_EQ(jobs[0].state, JobState::kRunning);
  EXPECT_EQ(jobs[0].attempts, 2);
  EXPECT_EQ(jobs[0].submission.accepted, kNow);
  EXPECT_EQ(jobs[1].submission.id, id_of(1));
  EXPECT_EQ(jobs[1].state, JobState::kQueued);
  EXPECT_EQ(jobs[1].submission.deadline, std::nullopt);
  const std::optional<JournalJob> failed = journal_->find(id_of(2));
  ASSERT_TRUE(failed);
  EXPECT_EQ(failed->state, JobState::kFailed);
  EXPECT_EQ(failed->error, "why");
  EXPECT_EQ(failed->ended, kNow + hours(2));
  EXPECT_FALSE(journal_->find(id_of(9)));
}

TEST_F(JournalTest, AKeyAttachesTheSameBody) {
  accept({submission(1, "key")});
  Submission other = submission(2, "key");
  other.body_hash = "other body";
  Submission stranger = submission(4, "key");
  stranger.owner = "stranger";
  const std::vector<Submission> submissions = {
      submission(3, "key"), other,         stranger,     submission(5, "new"),
      submission(6, "new"), submission(7), submission(8)};
  open();
  const std::vector<Acceptance> acceptances = journal_->accept(submissions);
  using Kind = Acceptance::Kind;
  const std::vector<std::pair<Kind, std::string>> expected = {
      {Kind::kAttached, id_of(1)}, {Kind::kRefused, id_of(1)},  {Kind::kAccepted, id_of(4)},
      {Kind::kAccepted, id_of(5)}, {Kind::kAttached, id_of(5)}, {Kind::kAccepted, id_of(7)},
      {Kind::kAccepted, id_of(8)}};
  ASSERT_EQ(acceptances.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(acceptances[i].kind, expected[i].first) << i;
    EXPECT_EQ(acceptances[i].id, expected[i].second) << i;
  }
  EXPECT_EQ(journal_->unfinished().size(), 5U);
}

TEST_F(JournalTest, AddsToTheTablesOfTheVersionBefore) {
  accept({submission(1), submission(2)});
  succeed(2, "picture");
  journal_.reset();
  Database(database()).run("ALTER TABLE jobs DROP COLUMN seconds; PRAGMA user_version = 1");
  open();
  EXPECT_EQ(journal_->find(id_of(2))->seconds, "");
  const std::string picture = "picture";
  journal_->succeed(id_of(1), std::array{NewResult{"image/png", bytes_of(picture)}}, kNow, {}, "{}");
  open();
  EXPECT_EQ(journal_->find(id_of(1))->seconds, "{}");
  EXPECT_EQ(journal_->find(id_of(2))->state, JobState::kSucceeded);
}

TEST_F(JournalTest, KeepsResultsForTheirTime) {
  accept({submission(1), submission(2)});
  const std::string picture = "picture", other = "another";
  journal_->succeed(
      id_of(1),
      std::array{NewResult{"image/png", bytes_of(picture)}, NewResult{"video/mp4", bytes_of(other)}}, kNow);
  succeed(2, "later", kNow + hours(1));
  open(kNow + hours(23));
  std::vector<StoredResult> results = journal_->results(id_of(1));
  ASSERT_EQ(results.size(), 2U);
  EXPECT_EQ(text_of(results[0].path), "picture");
  EXPECT_EQ(results[0].content_type, "image/png");
  EXPECT_EQ(results[0].bytes, 7U);
  EXPECT_EQ(results[0].expires, kNow + hours(24));
  EXPECT_EQ(text_of(results[1].path), "another");
  EXPECT_EQ(results[1].content_type, "video/mp4");
  EXPECT_EQ(journal_->find(id_of(1))->state, JobState::kSucceeded);
  EXPECT_EQ(journal_->result_bytes(), 19U);
  journal_->remove_expired(kNow + hours(24));
  EXPECT_TRUE(journal_->results(id_of(1)).empty());
  EXPECT_FALSE(journal_->find(id_of(1)));
  EXPECT_EQ(journal_->results(id_of(2)).size(), 1U);
  EXPECT_EQ(journal_->result_bytes(), 5U);
  open(kNow + hours(25));  // a server that starts removes them too
  EXPECT_TRUE(journal_->results(id_of(2)).empty());
  EXPECT_TRUE(names_in(folder_ / "journal" / "results").empty());
}

TEST_F(JournalTest, RemovesTheOldestResultsBeyondTheCap) {
  for (uint64_t i = 1; i <= 4; ++i) accept({submission(i)});
  // In the order in which they were stored, not accepted.
  succeed(2, std::string(400, 'a'));
  succeed(1, std::string(500, 'b'));
  succeed(3, std::string(100, 'c'));
  EXPECT_EQ(journal_->result_bytes(), 1000U);
  succeed(4, std::string(1, 'd'));
  EXPECT_TRUE(journal_->results(id_of(2)).empty());
  EXPECT_EQ(journal_->results(id_of(1)).size(), 1U);
  EXPECT_EQ(journal_->find(id_of(2))->state, JobState::kSucceeded);  // though its result is gone
  EXPECT_EQ(journal_->result_bytes(), 601U);
  accept({submission(5), submission(6)});
  succeed(5, std::string(900, 'e'));
  EXPECT_EQ(names_in(folder_ / "journal" / "results"),
            (std::vector<std::string>{id_of(4) + ".0", id_of(5) + ".0"}));
  EXPECT_THROW(succeed(6, std::string(1001, 'f')), Error);
  EXPECT_EQ(journal_->find(id_of(6))->state, JobState::kQueued);
  EXPECT_EQ(journal_->results(id_of(5)).size(), 1U);
}

TEST_F(JournalTest, KeepsTheLastSavedStep) {
  accept({submission(1), submission(2), submission(3)});
  const std::string four = "at four", five = "at five", alone = "alone";
  journal_->save_step(std::array{id_of(1), id_of(2)}, 4, bytes_of(four));
  open();
  std::vector<JournalJob> jobs = journal_->unfinished();
  EXPECT_EQ(text_of(jobs[0].saved_file), "at four");
  EXPECT_EQ(jobs[0].saved_file, jobs[1].saved_file);
  EXPECT_EQ(jobs[1].saved_step, 4);
  EXPECT_TRUE(jobs[2].saved_file.empty());
  journal_->save_step(std::array{id_of(1), id_of(2)}, 5, bytes_of(five));
  EXPECT_EQ(names_in(folder_ / "journal" / "saved").size(), 1U);
  journal_->save_step(std::array{id_of(1)}, 5, bytes_of(alone));  // after it began anew by itself
  jobs = journal_->unfinished();
  EXPECT_EQ(text_of(jobs[0].saved_file), "alone");
  EXPECT_EQ(text_of(jobs[1].saved_file), "at five");
  succeed(1, "picture");
  EXPECT_EQ(names_in(folder_ / "journal" / "saved").size(), 1U);
  journal_->record(std::array<Journal::Change, 1>{{{.id = id_of(2), .state = JobState::kFailed}}}, kNow);
  EXPECT_TRUE(names_in(folder_ / "journal" / "saved").empty());
  journal_->save_step(std::array{id_of(2)}, 6, bytes_of(five));
  EXPECT_TRUE(names_in(folder_ / "journal" / "saved").empty());
}

TEST_F(JournalTest, FilesAndRowsBelongTogether) {
  accept({submission(1), submission(2), submission(3)});
  succeed(1, "picture");
  succeed(2, "another");
  const std::string run = "run";
  journal_->save_step(std::array{id_of(3)}, 4, bytes_of(run));
  const fs::path results = folder_ / "journal" / "results", saved = folder_ / "journal" / "saved";
  std::ofstream(results / "stray") << "text";
  std::ofstream(saved / (id_of(3) + ".9.tmp")) << "text";
  fs::remove(results / (id_of(1) + ".0"));
  open();
  EXPECT_EQ(names_in(results), std::vector<std::string>{id_of(2) + ".0"});
  EXPECT_TRUE(journal_->results(id_of(1)).empty());
  EXPECT_EQ(journal_->result_bytes(), 7U);
  EXPECT_EQ(names_in(saved).size(), 1U);
  fs::remove_all(saved);
  open();
  EXPECT_TRUE(journal_->unfinished().front().saved_file.empty());
  EXPECT_EQ(journal_->unfinished().front().saved_step, 0);
}

TEST_F(JournalTest, ListsWhatHasEndedOfAnOwner) {
  std::vector<Submission> all;
  for (uint64_t number = 1; number <= 5; ++number) all.push_back(submission(number));
  all[3].owner = "another";
  all[4].family = "images";
  accept(all);
  for (const uint64_t number : {1, 3, 4, 5}) succeed(number, "text");
  journal_->record(
      std::array{Journal::Change{.id = id_of(2), .state = JobState::kCancelled, .started = kNow}}, kNow);
  const auto listed = [&](const JobFilter& filter) {
    std::vector<std::string> ids;
    for (const JournalJob& each : journal_->list("owner", filter)) ids.push_back(each.submission.id);
    return ids;
  };
  EXPECT_EQ(listed({}), (std::vector{id_of(1), id_of(2), id_of(3), id_of(5)}));
  EXPECT_EQ(listed({.api = "native", .newest_first = true}), (std::vector{id_of(3), id_of(2), id_of(1)}));
  EXPECT_EQ(listed({.after = id_of(1), .limit = 2}), (std::vector{id_of(2), id_of(3)}));
  EXPECT_EQ(listed({.after = id_of(3), .newest_first = true}), (std::vector{id_of(2), id_of(1)}));
  EXPECT_EQ(listed({.states = {JobState::kCancelled, JobState::kQueued}}), std::vector{id_of(2)});
  EXPECT_EQ(journal_->find(id_of(2))->started, kNow);
}

TEST_F(JournalTest, ForgetsAJobWithItsFiles) {
  accept({submission(1, "key"), submission(2)});
  journal_->save_step(std::array{id_of(2)}, 3, bytes_of("run"));
  succeed(1, "text");
  journal_->remove(id_of(1));
  journal_->remove(id_of(2));
  EXPECT_FALSE(journal_->find(id_of(1)));
  EXPECT_TRUE(journal_->unfinished().empty());
  EXPECT_EQ(journal_->result_bytes(), 0U);
  EXPECT_TRUE(names_in(folder_ / "journal" / "results").empty());
  EXPECT_TRUE(names_in(folder_ / "journal" / "saved").empty());
  accept({submission(3, "key")});
}

TEST_F(JournalTest, IsReadableForItsUserAlone) {
  accept({submission(1)});
  struct stat status = {};
  for (const char* name : {"", "results", "saved"}) {
    ASSERT_EQ(::stat((folder_ / "journal" / name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700U) << name;
  }
  for (const char* name : {"journal.sqlite", "journal.sqlite-wal"}) {
    ASSERT_EQ(::stat((folder_ / "journal" / name).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U) << name;
  }
}

}  // namespace
}  // namespace tessera::serve
