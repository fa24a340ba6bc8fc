// How a finished temporary file takes the place of another, which may exist already.
#pragma once

#include <filesystem>
#include <string>

namespace tessera {

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
