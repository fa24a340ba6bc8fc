// Who may use a server: keys, the origins of web pages, and names of the host.
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
// Error(kUsage) with the line for another form, a key of less than 16 characters or one that occurs twice,
// and for a file that others than its owner may read or that has no key.
std::vector<Key> read_keys(const std::filesystem::path& file);

// Throws Error(kUsage) for what no request can have as its origin, or as the name of its host (Access).
void require_names(const std::vector<std::string>& origins, const std::vector<std::string>& hosts);

struct Access {
  std::vector<Key> keys;             // none: everybody may do everything, as the owner ""
  std::vector<std::string> origins;  // of web pages that may call ("https://example.org"), "*" for all
  // Names by which the server may be called, without a port: a web page elsewhere whose name leads to this
  // host (DNS rebinding) is refused so. None: any.
  std::vector<std::string> hosts;

  struct Verdict {
    int status = 200;  // else 400, 401, 403
    std::string message = {};
    std::string owner = {};
    NamedTexts headers = {};  // that belong into the answer: of CORS, and WWW-Authenticate
  };

  // The key is the password of Authorization: Basic, the token of Authorization: Bearer, or X-Api-Key. It is
  // compared in a time that does not depend on how much of it is right. Without keys the three are ignored,
  // well formed or not, because clients send them empty. `is_public` says that no key is needed.
  Verdict check(const NamedTexts& headers, bool is_public) const;
  // The answer to a preflight request (OPTIONS) of a web page; status 204 or 403.
  Verdict preflight(const NamedTexts& headers, std::string_view methods) const;
};

}  // namespace tessera::serve
