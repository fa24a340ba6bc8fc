#include "launch/fingerprint.h"

#include <fmt/format.h>
#include <link.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <fstream>
#include <span>
#include <string_view>

#include "core/text.h"

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPiece = 64 << 10;

size_t padded(size_t bytes, size_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

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
// model_index.json, such as latents. A folder that holds only a denoiser does not have a model_index.json.
bool is_read(const fs::path& path, int depth, bool is_model) {
  const std::string extension = path.extension().string();
  if (depth == 0 && is_model) return path.filename() == "model_index.json";
  if (depth == 0) return path.filename() == "config.json" || extension == ".safetensors";
  return extension == ".json" || extension == ".safetensors" || extension == ".model" || extension == ".txt";
}

// Returns the build id of the program, which its linker made from everything it linked; empty if there is
// none.
std::string build_id() {
  std::string id;
  const auto read = [](dl_phdr_info* program, size_t, void* found) {
    for (const ElfW(Phdr) & part : std::span(program->dlpi_phdr, program->dlpi_phnum)) {
      if (part.p_type != PT_NOTE) continue;
      // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives addresses as numbers
      const auto* const notes = reinterpret_cast<const char*>(program->dlpi_addr + part.p_vaddr);
      for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= part.p_memsz;) {
        const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(notes + at);
        const std::string_view name(notes + at + sizeof(note), note.n_namesz);
        const size_t content = at + sizeof(note) + padded(note.n_namesz, part.p_align);
        if (note.n_type == NT_GNU_BUILD_ID && name == std::string_view("GNU\0", 4)) {
          for (const char byte : std::string_view(notes + content, note.n_descsz))
            *static_cast<std::string*>(found) += fmt::format("{:02x}", static_cast<unsigned char>(byte));
        }
        at = content + padded(note.n_descsz, part.p_align);
      }
    }
    return 1;  // the program itself comes first, before its libraries
  };
  ::dl_iterate_phdr(read, &id);
  return id;
}

std::string describe_build() {
  const std::string id = build_id();
  return fmt::format("tessera {}, libtorch {}, {}", TESSERA_VERSION, TORCH_VERSION,
                     id.empty() ? describe("/proc/self/exe") : "build " + id);
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
