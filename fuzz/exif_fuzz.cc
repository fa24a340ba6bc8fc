// Fuzzes the readers of EXIF: a block lies within its file, and a text within its block.
#include <cstdint>
#include <string_view>

#include "fuzz/check.h"
#include "media/exif.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const std::string_view found = tessera::media::find_exif(file);
  tessera::fuzz::require(found.empty() || (found.begin() >= file.begin() && found.end() <= file.end()),
                         "a block lies within its file");
  for (const std::string_view block : {file, found}) {
    const auto text = tessera::media::exif_description(block);
    tessera::media::exif_orientation(block);
    tessera::fuzz::require(!text || text->size() < block.size(), "a text lies within its block");
  }
  return 0;
}
