#include "serve/page.h"

#include <array>
#include <string>
#include <utility>

#include "core/error.h"
#include "page_files.h"  // kPageFiles; CMakeLists.txt generates it

namespace tessera::serve {
namespace {

constexpr std::string_view kDocument = "index.html";

// The page loads nothing from elsewhere and has no inline scripts or styles; no other page may show it in a
// frame; text never becomes markup or script. Pictures that need a key come as blobs.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'";

std::string type_of(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, const char*>, 4> kTypes = {
      {{".html", "text/html; charset=utf-8"},
       {".css", "text/css; charset=utf-8"},
       {".js", "text/javascript; charset=utf-8"},
       {".svg", "image/svg+xml"}}};
  for (const auto& [suffix, type] : kTypes) {
    if (name.ends_with(suffix)) return type;
  }
  TESSERA_CHECK(false, "no type for the page's file {}", name);
}

Handler handler_of(const PageFile& file) {
  const std::string tag = "\"" + std::string(file.hash) + "\"";
  NamedTexts headers = {{"ETag", tag},
                        {"Cache-Control", "no-cache"},
                        {"X-Content-Type-Options", "nosniff"},
                        {"Referrer-Policy", "no-referrer"}};
  if (file.name == kDocument) {
    headers.emplace_back("Content-Security-Policy", kPolicy);
    headers.emplace_back("Cross-Origin-Opener-Policy", "same-origin");
  }
  return [file, tag, headers](const std::shared_ptr<Exchange>& exchange) {
    const bool is_known = exchange->request().header("If-None-Match") == tag;
    exchange->respond({.status = is_known ? 304 : 200,
                       .content_type = type_of(file.name),
                       .body = is_known ? std::string() : std::string(file.bytes),
                       .headers = headers});
  };
}

}  // namespace

std::span<const PageFile> page_files() {
  return kPageFiles;
}

std::vector<Route> page_routes() {
  std::vector<Route> routes;
  for (const PageFile& file : page_files()) {
    const std::string path = file.name == kDocument ? "/" : "/page/" + std::string(file.name);
    routes.push_back({"GET", path, handler_of(file), 0, true});
  }
  return routes;
}

}  // namespace tessera::serve
