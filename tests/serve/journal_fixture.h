// A journal in a new folder, and jobs for it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "serve/journal.h"
#include "tests/support/folder_fixture.h"

namespace tessera::serve {

inline constexpr WallTime kNow{std::chrono::milliseconds(1'790'000'000'000)};

// Random bytes that are the same in every run.
inline RandomBytes repeatable(uint64_t seed) {
  return [random = std::make_shared<std::mt19937_64>(seed)](std::span<std::byte> bytes) {
    for (std::byte& each : bytes) each = static_cast<std::byte>((*random)());
  };
}

inline std::string id_of(uint64_t number) {
  return new_job_id(kNow + std::chrono::milliseconds(number), repeatable(number));
}

inline Submission submission(uint64_t number, const std::optional<std::string>& key = {}) {
  return {.id = id_of(number),
          .owner = "owner",
          .family = "native",
          .request = R"({"prompt": "a 'fox' in snow ❄"})",
          .accepted = kNow,
          .idempotency_key = key,
          .body_hash = "body"};
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

inline std::string text_of(const std::filesystem::path& path) {
  return read_file(path, 1 << 20);
}

class JournalTest : public FolderFixture {
 protected:
  JournalOptions options() const { return {.folder = folder_ / "journal", .max_result_bytes = 1000}; }
  std::filesystem::path database() const { return folder_ / "journal" / "journal.sqlite"; }
  void open(WallTime now = kNow) {
    journal_.reset();
    journal_.emplace(options(), now);
  }
  void SetUp() override { open(); }

  void accept(const std::vector<Submission>& submissions) {
    for (const Acceptance& each : journal_->accept(submissions))
      ASSERT_EQ(each.kind, Acceptance::Kind::kAccepted);
  }
  void succeed(uint64_t number, const std::string& text, WallTime now = kNow) {
    journal_->succeed(id_of(number), std::array{NewResult{"image/png", bytes_of(text)}}, now);
  }
  // What opening the journal throws.
  std::string failure(ErrorKind kind) {
    journal_.reset();
    try {
      const Journal journal(options(), kNow);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), kind);
      return error.what();
    }
    return "opened";
  }
  std::string at_database(const std::string& what) const { return "[" + database().string() + "] " + what; }

  std::optional<Journal> journal_;
};

inline std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator(folder))
    names.push_back(each.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace tessera::serve
