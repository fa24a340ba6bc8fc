#include "launch/fingerprint.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <fstream>

#include "core/hash.h"

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPiece = 64 << 10;

std::string describe(const fs::path& path) {
  std::error_code code;
  const uint64_t size = fs::file_size(path, code);
  std::ifstream file(path, std::ios::binary);
  if (code || !file) return "unreadable";
  Hash hash;
  std::string piece(std::min(size, kPiece), '\0');
  const auto add = [&] {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    hash.add({piece.data(), static_cast<size_t>(file.gcount())});
  };
  add();
  if (size > kPiece) {
    file.seekg(static_cast<std::streamoff>(size - piece.size()));
    add();
  }
  return fmt::format("{} bytes, {}", size, hash.text());
}

// Other files may differ between hosts: a README, or what a concurrent run has just written next to
// model_index.json, such as latents. The folder of a denoiser alone has no model_index.json.
bool is_read(const fs::path& path, int depth, bool is_model) {
  const std::string extension = path.extension().string();
  if (depth == 0 && is_model) return path.filename() == "model_index.json";
  if (depth == 0) return path.filename() == "config.json" || extension == ".safetensors";
  return extension == ".json" || extension == ".safetensors" || extension == ".model" || extension == ".txt";
}

std::string describe_build() {
  return fmt::format("tessera {}, libtorch {}, {}", TESSERA_VERSION, TORCH_VERSION,
                     describe("/proc/self/exe"));
}

}  // namespace

Fingerprint make_fingerprint(const fs::path& model, const std::optional<fs::path>& single_file) {
  Fingerprint fingerprint;
  if (single_file) fingerprint["single file"] = describe(*single_file);
  fingerprint["build"] = describe_build();
  std::error_code code;
  const bool is_model = fs::exists(model / "model_index.json", code);
  fs::recursive_directory_iterator files(
      model, fs::directory_options::follow_directory_symlink | fs::directory_options::skip_permission_denied,
      code);
  constexpr int kDepth = 1;  // component folders; deeper files are not read
  for (const fs::recursive_directory_iterator end; !code && files != end; files.increment(code)) {
    if (files.depth() >= kDepth) files.disable_recursion_pending();
    std::error_code none;
    if (is_read(files->path(), files.depth(), is_model) && files->is_regular_file(none)) {
      fingerprint[files->path().lexically_relative(model).string()] = describe(files->path());
    }
  }
  return fingerprint;
}

std::string write_fingerprint(const Fingerprint& fingerprint) {
  std::string text;
  for (const auto& [name, value] : fingerprint)
    text.append(name).append(1, '\0').append(value).append(1, '\0');
  return text;
}

Fingerprint read_fingerprint(const std::string& text) {
  Fingerprint fingerprint;
  for (size_t begin = 0; begin < text.size();) {
    const size_t name = text.find('\0', begin);
    if (name == std::string::npos) break;
    const size_t value = text.find('\0', name + 1);
    if (value == std::string::npos) break;
    fingerprint[text.substr(begin, name - begin)] = text.substr(name + 1, value - name - 1);
    begin = value + 1;
  }
  return fingerprint;
}

std::string difference(const Fingerprint& first, const Fingerprint& other) {
  std::string found;
  size_t count = 0;
  const auto note = [&](const std::string& what) {
    if (count++ == 0) found = what;
  };
  for (const auto& [name, value] : first) {
    const auto same = other.find(name);
    if (same == other.end()) {
      note(fmt::format("has no {}", name));
    } else if (same->second != value) {
      note(fmt::format("has a different {}: {} instead of {}", name, same->second, value));
    }
  }
  for (const auto& [name, value] : other) {
    if (!first.contains(name)) note(fmt::format("has {}, which rank 0 lacks", name));
  }
  if (count > 1)
    found += fmt::format(" (and {} {} more)", count - 1, count == 2 ? "difference" : "differences");
  return found;
}

}  // namespace tessera::launch
