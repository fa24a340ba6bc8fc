// Temporary files: their names, which a signal handler can remove, and how a finished one replaces another
// file, which may already exist.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

struct Unfinished;

// Something that remove_unfinished_files() removes while this object lives, unless forget() has been called.
class UnfinishedName {
 public:
  UnfinishedName() = default;
  ~UnfinishedName() { forget(); }
  UnfinishedName(const UnfinishedName&) = delete;
  UnfinishedName& operator=(const UnfinishedName&) = delete;

  void remember(const std::string& file);
  void remember_folder(const std::string& folder);  // with files named 0, 1, 2, ...
  void set_files(int64_t count);                    // the number that the folder may contain from now on
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

// The unguessable part of the names of this process's temporary files. Forks that are made after the first
// call share it.
const std::string& temporary_token();

// Returns the target of a chain of links, even if it does not exist yet. A chain in a circle ends at one of
// its links.
std::filesystem::path follow_links(std::filesystem::path path);

// Returns the name of a temporary file or folder beside `path` that contains this token: NAME.TOKEN.tmp, or a
// short name if the file system does not allow one of that length.
std::filesystem::path temporary_beside(const std::filesystem::path& path, const std::string& token);

// The following functions return a negative number or false when they fail, with the reason in errno.

// Creates a new file that will replace the one at `path`; if that exists, the new file gets its mode and, if
// this process may give files away, its owner and group. Fails if anything exists at `temporary`, even a
// link, because anybody with write access to the folder could have put it there.
int create_replacement(const std::filesystem::path& temporary, const std::filesystem::path& path);

// Flushes a file to disk, on file systems that support it.
bool flush_to_disk(int descriptor);

// Puts the temporary file in place of `path`: renames it, or, if that is impossible, writes its content over
// the file there. A file cannot be replaced if it is mounted by itself, or if it belongs to another user and
// its folder has the sticky bit.
bool put_in_place(const std::filesystem::path& temporary, const std::filesystem::path& path);

// Writes the whole content of an open file over that of the file at `path`.
bool copy_over(int descriptor, const std::filesystem::path& path);

// Throws Error if the temporary file or folder that is to replace `path` no longer exists.
void require_temporary(const std::filesystem::path& temporary, const std::filesystem::path& path);

// For a temporary file or folder that could not replace `path` and whose content must not be lost: gives it a
// name that cleanups do not look for, and returns that name. Throws Error if it no longer exists.
std::filesystem::path keep_temporary(const std::filesystem::path& temporary,
                                     const std::filesystem::path& path);

}  // namespace tessera
