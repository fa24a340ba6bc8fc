// The names of this process's temporary files, which a signal handler can remove.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

struct Unfinished;

// What remove_unfinished_files() removes as long as this lives and is not told to forget it.
class UnfinishedName {
 public:
  UnfinishedName() = default;
  ~UnfinishedName() { forget(); }
  UnfinishedName(const UnfinishedName&) = delete;
  UnfinishedName& operator=(const UnfinishedName&) = delete;

  void remember(const std::string& file);
  void remember_folder(const std::string& folder);  // with files named 0, 1, 2, ...
  void set_files(int64_t count);                    // that the folder may hold from now on
  void forget();

 private:
  Unfinished* slot_ = nullptr;
};

// Removes the temporary files of every open AtomicFile and AtomicSequence of this process.
// Async-signal-safe, for a handler that ends the program at once.
void remove_unfinished_files() noexcept;

// Whether this process has put a file in its place. Async-signal-safe.
bool has_finished_file() noexcept;
void remember_finished_file() noexcept;

// An unguessable part of the names of this process's temporary files. Forks that are made after the first
// call have the same.
const std::string& temporary_token();

}  // namespace tessera
