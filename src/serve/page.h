// The web page of a server: files of src/serve/page/, which the build puts into the program.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "serve/http.h"

namespace tessera::serve {

struct PageFile {
  std::string_view name;   // "main.js"
  std::string_view bytes;  // lives as long as the program, as the other two do
  std::string_view hash;
};
std::span<const PageFile> page_files();

// "/" with the document, and "/page/NAME" with what it loads. They need no key, since the page asks for one
// when the API does. Browsers keep them and ask each time whether they are still the same (ETag).
std::vector<Route> page_routes();

}  // namespace tessera::serve
