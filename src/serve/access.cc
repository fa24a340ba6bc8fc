#include "serve/access.h"

#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace tessera::serve {
namespace {

constexpr size_t kLeastSecret = 16, kMostKeyFile = 16 << 20;

// Compares every byte, even after a difference, so that the time reveals nothing about the key but its
// length.
bool equal_secrets(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

// Returns the key in a request, which has one of three forms; nothing if there is none.
std::optional<std::string> secret_of(const NamedTexts& headers) {
  if (const std::string_view key = text_of(headers, "x-api-key"); !key.empty()) return std::string(key);
  const std::string_view value = text_of(headers, "authorization");
  const size_t space = value.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::string_view scheme = value.substr(0, space), rest = value.substr(space + 1);
  if (equal_names(scheme, "bearer")) return std::string(rest);
  if (!equal_names(scheme, "basic")) return std::nullopt;
  const auto pair = decode_base64(rest);
  const size_t colon = pair ? pair->find(':') : std::string::npos;
  if (colon == std::string::npos) return std::nullopt;
  return pair->substr(colon + 1);
}

// "localhost" of "localhost:8000", "[::1]" of "[::1]:8000"
std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  const size_t bracket = host.rfind(']');
  if (colon == std::string_view::npos || (bracket != std::string_view::npos && colon < bracket)) return host;
  return host.substr(0, colon);
}

// The host of an origin: "localhost:8000" of "http://localhost:8000"
std::string_view host_of(std::string_view origin) {
  const size_t slashes = origin.find("://");
  return slashes == std::string_view::npos ? std::string_view() : origin.substr(slashes + 3);
}

}  // namespace

std::vector<Key> read_keys(const std::filesystem::path& file) {
  struct stat status = {};
  const bool is_there = ::stat(file.c_str(), &status) == 0;
  if (is_there && S_ISDIR(status.st_mode)) usage_error(file.string(), "is a folder, not a file of keys");
  if (is_there && (status.st_mode & 077) != 0)
    usage_error(file.string(), "others than its owner may use this file of keys; chmod 600 it");
  std::vector<Key> keys;
  std::istringstream lines(read_file(file, kMostKeyFile));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream words(line);
    Key key;
    std::string more;
    if (!(words >> key.owner) || key.owner.starts_with("#")) continue;
    const std::string where = fmt::format("{}:{}", file.string(), number);
    if (!(words >> key.secret) || words >> more) usage_error(where, "a line must be NAME KEY");
    if (key.secret.size() < kLeastSecret)
      usage_error(where, "the key has {} characters, it needs {}", key.secret.size(), kLeastSecret);
    const auto is_same = [&](const Key& other) { return other.secret == key.secret; };
    if (std::any_of(keys.begin(), keys.end(), is_same)) usage_error(where, "the key occurs twice");
    keys.push_back(std::move(key));
  }
  if (keys.empty()) usage_error(file.string(), "there is no key in this file; each line is NAME KEY");
  return keys;
}

void require_names(const std::vector<std::string>& origins, const std::vector<std::string>& hosts) {
  for (const std::string& origin : origins) {
    const std::string_view host = host_of(origin);
    if (origin != "*" && (host.empty() || host.find_first_of("/?# ") != host.npos))
      usage_error(field("allow_origin"), "must be as https://example.org, or *, got '{}'", printable(origin));
  }
  for (const std::string& host : hosts) {
    if (host.empty() || host != without_port(host) || host.find_first_of("/?# ") != host.npos)
      usage_error(field("allow_host"), "must be the name of a host, without a port, got '{}'",
                  printable(host));
  }
}

Access::Verdict Access::check(const NamedTexts& headers, bool is_public) const {
  Verdict verdict;
  const std::string_view host = text_of(headers, "host"), origin = text_of(headers, "origin");
  const auto is_host = [&](const std::string& name) { return equal_names(name, without_port(host)); };
  if (!hosts.empty() && !std::any_of(hosts.begin(), hosts.end(), is_host)) {
    return {.status = 403, .message = fmt::format("this server is not called '{}'", printable(host))};
  }
  // The server's own pages call it too. Programs other than browsers send no origin.
  const bool is_own = !origin.empty() && equal_names(host_of(origin), host);
  const bool is_listed = std::find(origins.begin(), origins.end(), origin) != origins.end();
  const bool is_any = std::find(origins.begin(), origins.end(), "*") != origins.end();
  if (!origin.empty() && !is_own && !is_listed && !is_any)
    return {.status = 403,
            .message = fmt::format("pages of '{}' may not call this server", printable(origin))};
  if (!origin.empty() && !is_own) {
    verdict.headers = {{"Access-Control-Allow-Origin", is_listed ? std::string(origin) : "*"},
                       {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After, Location"},
                       {"Vary", "Origin"}};
  }
  if (keys.empty()) return verdict;
  const auto secret = secret_of(headers);
  for (const Key& key : keys) {  // all of them, always
    if (secret && equal_secrets(*secret, key.secret)) verdict.owner = key.owner;
  }
  if (!is_public && verdict.owner.empty()) {
    verdict.status = 401;
    verdict.message = secret ? "the API key is not known" : "an API key is needed: Authorization: Bearer KEY";
    verdict.headers.emplace_back("WWW-Authenticate", R"(Bearer realm="tessera")");
    // Given this header, a browser asks for a name and a password itself, before a script sees the answer.
    if (text_of(headers, "x-requested-with").empty())
      verdict.headers.emplace_back("WWW-Authenticate", R"(Basic realm="tessera")");
  }
  return verdict;
}

Access::Verdict Access::preflight(const NamedTexts& headers, std::string_view methods) const {
  Verdict verdict = check(headers, true);
  if (verdict.status != 200) return verdict;
  verdict.status = 204;
  verdict.headers.emplace_back("Access-Control-Allow-Methods", methods);
  const std::string_view wanted = text_of(headers, "access-control-request-headers");
  if (!wanted.empty()) verdict.headers.emplace_back("Access-Control-Allow-Headers", wanted);
  verdict.headers.emplace_back("Access-Control-Max-Age", "600");
  return verdict;
}

}  // namespace tessera::serve
