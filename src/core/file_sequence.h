// Numbered files that are all written, or none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "core/unfinished.h"

namespace tessera {

// Returns NAME-0007.EXT for NAME.EXT, the number 7 and four digits.
std::filesystem::path numbered_path(const std::filesystem::path& path, int64_t number, int digits);

// Writes files into a new folder next to `path`, with an unpredictable name. commit() renames them to
// NAME-0000.EXT, NAME-0001.EXT, ... where `path` is NAME.EXT; what is uncommitted is removed. Nothing that
// needs space is left for commit(). Only a process that ends amid its renames leaves a part of the files; if
// one cannot take its place, those before it go back to that folder, which stays. Failures are as of an
// AtomicFile.
class AtomicSequence {
 public:
  explicit AtomicSequence(const std::filesystem::path& path);
  ~AtomicSequence();
  AtomicSequence(const AtomicSequence&) = delete;
  AtomicSequence& operator=(const AtomicSequence&) = delete;

  void add(std::string_view file);  // flushed to the disk
  void commit();

 private:
  std::filesystem::path temporary(int64_t number) const;
  std::filesystem::path target(int64_t number) const;

  std::filesystem::path path_;
  std::filesystem::path folder_;  // empty if there is none
  int64_t count_ = 0;
  UnfinishedName name_;
};

}  // namespace tessera
