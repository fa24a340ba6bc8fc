// Whether ranks run the same program on the same model: compared when they have joined, where a difference
// can still be named. Later it would be a size that does not fit, or a wrong picture.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::launch {

// What a rank has, by name: "build", "transformer/config.json", ...
using Fingerprint = std::map<std::string, std::string>;

// This program (version, libtorch, a hash of the file that runs), and of model_index.json and each file that
// is read of the folders beside it the size, and a hash: of all of it where it is small, else of its first
// and last 64 KiB, in which the header of a safetensors file is or begins. Reads no more. Files that cannot
// be read say so. `single_file`: one that holds the weights of a model whose folder has but its configs.
Fingerprint make_fingerprint(const std::filesystem::path& model,
                             const std::optional<std::filesystem::path>& single_file = std::nullopt);

// As one text, and back. Nothing is believed of it: what makes no sense is left out, and differs thereby.
std::string write_fingerprint(const Fingerprint& fingerprint);
Fingerprint read_fingerprint(const std::string& text);

// How `other` differs from `first`, in one line; empty when it does not.
std::string difference(const Fingerprint& first, const Fingerprint& other);

}  // namespace tessera::launch
