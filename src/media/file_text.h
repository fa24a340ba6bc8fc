// The settings that this program keeps in images and videos.
#pragma once

#include <optional>
#include <string>

#include "media/source.h"

namespace tessera::media {

struct FileText {
  std::string kind;  // of the file, such as "PNG"
  bool may_have_settings = true;
  std::optional<std::string> settings = {};  // the text of `tessera` in ImageText
};

// Reads them from a PNG, JPEG, WebP, MP4 or WebM, without decoding its pictures; a GIF has none. Returns
// nothing for a file of another kind. Throws Error(kInput) that names `where` for a damaged file.
std::optional<FileText> read_file_text(const Source& source, const std::string& where);

}  // namespace tessera::media
