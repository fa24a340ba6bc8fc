// Temporary files: their names, which a signal handler can remove, and how a finished one takes the place of
// another file, which may exist already.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera {

struct Unfinished;

// What remove_unfinished_files() removes as long as this object lives and forget() has not been called.
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

// Returns the target of a chain of links, even if it does not exist yet. A chain in a circle ends at one of
// its links.
std::filesystem::path follow_links(std::filesystem::path path);

// Returns the name of a temporary file or folder beside `path` that has this token in it: NAME.TOKEN.tmp, or
// a short name where the file system allows none that is so long.
std::filesystem::path temporary_beside(const std::filesystem::path& path, const std::string& token);

// The following functions return a negative number or false when they fail, with the reason in errno.

// Creates a new file that is to replace the one at `path`; if there is one, it gets its mode, and its owner
// and group where this process may give files away. Fails if anything exists at `temporary`, even a link,
// because anybody with write access to the folder could have put it there.
int create_replacement(const std::filesystem::path& temporary, const std::filesystem::path& path);

// Flushes a file to the disk, on file systems that can do so.
bool flush_to_disk(int descriptor);

// Puts the temporary file in the place of `path`: renames it, or, where that cannot be done, writes its
// content over the file there. A file cannot be replaced where it is mounted by itself, or where it belongs
// to another user and its folder has the sticky bit.
bool put_in_place(const std::filesystem::path& temporary, const std::filesystem::path& path);

// Writes the whole content of an open file over that of the file at `path`.
bool copy_over(int descriptor, const std::filesystem::path& path);

// Throws Error if the temporary file or folder that is to take the place of `path` is no longer there.
void require_temporary(const std::filesystem::path& temporary, const std::filesystem::path& path);

// For a temporary file or folder that could not be put in the place of `path` and whose content must not be
// lost: gives it a name that no cleaning up looks for, and returns it. Throws Error if it is
// no longer there.
std::filesystem::path keep_temporary(const std::filesystem::path& temporary,
                                     const std::filesystem::path& path);

}  // namespace tessera
