#include "media/codecs.h"

#include <dlfcn.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "codecs_version.h"
#include "core/error.h"
#include "core/folders.h"

namespace tessera::media {
namespace {

namespace fs = std::filesystem;

// In a build, lib/ is in the program's folder or, for the tests, beside it, as in an installation.
fs::path find_module() {
  const fs::path name = "lib/tessera/codecs.so";
  std::vector<fs::path> folders = install_prefixes();
  if (const fs::path own = own_path(); !own.empty()) folders.push_back(own.parent_path());
  std::error_code code;
  for (const fs::path& folder : folders) {
    if (fs::exists(folder / name, code)) return folder / name;
  }
  input_error((folders.empty() ? name : folders.front() / name).string(),
              "videos, references, JPEG and WebP need this module, which is missing; build or install the "
              "program again");
}

const Codecs& load() {
  const std::string path = find_module();
  void* const module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const void* const symbol = module ? ::dlsym(module, "tessera_codecs") : nullptr;
  if (!symbol) {
    input_error(path,
                "videos, references, JPEG and WebP need this module, which cannot be loaded: {}; install "
                "FFmpeg's libraries and libjpeg",
                ::dlerror());
  }
  const Codecs& loaded = *static_cast<const Codecs*>(symbol);
  if (std::strcmp(loaded.version, TESSERA_CODECS_VERSION) != 0)
    input_error(path, "belongs to another version of the program ({}; this is {}); install both together",
                loaded.version, TESSERA_CODECS_VERSION);
  return loaded;
}

}  // namespace

const Codecs& codecs() {
  static const Codecs& loaded = load();
  return loaded;
}

}  // namespace tessera::media
