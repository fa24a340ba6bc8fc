// Fuzzes the reader of the settings that this program keeps in its files: a text lies within its file, and a
// damaged file is refused with an input error.
#include <cstdint>

#include "fuzz/check.h"
#include "media/codecs.h"
#include "media/file_text.h"
#include "media/libav/decoder.h"

namespace tessera::media {

// Linked, not loaded.
const Codecs& codecs() {
  static const Codecs linked = {.read_comment = read_comment};
  return linked;
}

namespace {

using fuzz::require;

void run(std::span<const std::byte> file) {
  fuzz::accepts([&] {
    const std::optional<FileText> text = read_file_text(memory_source(file), "file");
    if (!text || !text->settings) return;
    require(text->may_have_settings, "a kind without settings has none");
    require(text->kind == "PNG" || text->settings->starts_with('{'), "settings are an object");
    // A PNG may hold them compressed.
    require(text->kind == "PNG" || text->settings->size() < file.size(), "a text lies within its file");
  });
}

}  // namespace
}  // namespace tessera::media

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::media::run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
