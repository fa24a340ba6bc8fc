// The web page of a server: the files of src/serve/page/, which the build embeds in the program.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "serve/http.h"

namespace tessera::serve {

struct PageFile {
  std::string_view name;   // "main.js"
  std::string_view bytes;  // lives as long as the program, as do the other two
  std::string_view hash;
};
std::span<const PageFile> page_files();

// "/" with the document, and "/page/NAME" with the files that it loads. They need no key, since the page asks
// for one when the API does. Browsers keep them, and ask each time whether they have changed (ETag).
std::vector<Route> page_routes();

}  // namespace tessera::serve
