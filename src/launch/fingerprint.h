// Detects whether ranks run the same program on the same model. They compare right after joining, when a
// difference can still be named; later it would show up as a size mismatch or a wrong image.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::launch {

// Describes what a rank has, by name: "build", "transformer/config.json", ...
using Fingerprint = std::map<std::string, std::string>;

// Covers this program (version, libtorch, the build id of its linker), and the size and a hash of
// model_index.json and of each file that is read from the folders next to it. Small files are hashed whole,
// others by their first and last 64 KiB, in which a safetensors header lies or begins; nothing else is read.
// Unreadable files are marked. `single_file` holds the weights of a model whose folder has only configs.
Fingerprint make_fingerprint(const std::filesystem::path& model,
                             const std::optional<std::filesystem::path>& single_file = std::nullopt);

// Converts to a single text and back. The text is not trusted: malformed parts are left out and thus count as
// differences.
std::string write_fingerprint(const Fingerprint& fingerprint);
Fingerprint read_fingerprint(const std::string& text);

// Describes in one line how `other` differs from `first`; empty if it does not.
std::string difference(const Fingerprint& first, const Fingerprint& other);

}  // namespace tessera::launch
