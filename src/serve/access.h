// Who may use a server: keys, the origins of web pages, and host names.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "serve/web_text.h"

namespace tessera::serve {

// A key and the name of its owner. Names are written to logs, keys never are.
struct Key {
  std::string owner, secret;
};

// Reads a file of lines "NAME KEY"; empty lines and those that begin with # are skipped. Throws
// Error(kUsage): with the line, if it has another form, or a key of less than 16 characters or one that
// occurs twice; and for a file that has no key or that anyone but its owner may read.
std::vector<Key> read_keys(const std::filesystem::path& file);

// Throws Error(kUsage) for a name that no request can have as its origin, or as its host (Access).
void require_names(const std::vector<std::string>& origins, const std::vector<std::string>& hosts);

struct Access {
  std::vector<Key> keys;             // if there are none, everybody may do everything, as the owner ""
  std::vector<std::string> origins;  // of web pages that may call ("https://example.org"), or "*" for all
  // Names by which the server may be called, without a port. This refuses a web page elsewhere whose name
  // leads to this host (DNS rebinding). If empty, any name may be used.
  std::vector<std::string> hosts;

  struct Verdict {
    int status = 200;  // else 400, 401, 403
    std::string message = {};
    std::string owner = {};
    NamedTexts headers = {};  // to be added to the answer: those of CORS, and WWW-Authenticate
  };

  // The key is the password of Authorization: Basic, the token of Authorization: Bearer, or X-Api-Key. The
  // time of the comparison does not depend on how much of the key is right. Without keys all three are
  // ignored, well formed or not, because clients send them empty. If `is_public`, a key is not needed.
  Verdict check(const NamedTexts& headers, bool is_public) const;
  // The answer to a web page's preflight request (OPTIONS), with status 204 or 403.
  Verdict preflight(const NamedTexts& headers, std::string_view methods) const;
};

}  // namespace tessera::serve
