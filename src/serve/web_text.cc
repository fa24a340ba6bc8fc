#include "serve/web_text.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "core/text.h"

namespace tessera::serve {
namespace {

constexpr size_t kMostParts = 1000, kMostPartHeaders = 8 << 10;

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

int hexadecimal(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  c = lower(c);
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool has_control_character(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x7f;
  });
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

// Splits "form-data; name=\"a\"; filename=\"b;c\"" into its value and its parameters. In quotes, a backslash
// escapes a quote or a backslash.
struct HeaderValue {
  std::string value;
  NamedTexts parameters;
};

std::optional<HeaderValue> parse_header_value(std::string_view text) {
  HeaderValue result;
  const size_t first = std::min(text.find(';'), text.size());
  result.value = trim(text.substr(0, first));
  for (size_t at = first; at < text.size();) {
    const size_t equals = text.find('=', ++at);
    const std::string_view rest = trim(text.substr(at));
    if (rest.empty()) break;
    if (equals == std::string_view::npos) return std::nullopt;
    const std::string name(trim(text.substr(at, equals - at)));
    std::string value;
    at = equals + 1;
    if (at < text.size() && text[at] == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at) {
        if (text[at] == '\\' && at + 1 < text.size() && (text[at + 1] == '"' || text[at + 1] == '\\')) ++at;
        value += text[at];
      }
      if (at == text.size()) return std::nullopt;  // the closing quote is missing
      at = std::min(text.find(';', at), text.size());
    } else {
      const size_t end = std::min(text.find(';', at), text.size());
      value = trim(text.substr(at, end - at));
      at = end;
    }
    result.parameters.emplace_back(name, value);
  }
  return result;
}

// Reads the headers of a part up to the empty line, and returns the part without its data.
std::optional<FormPart> read_part_headers(std::string_view headers) {
  FormPart part;
  bool has_name = false;
  while (!headers.empty()) {
    const size_t end = std::min(headers.find("\r\n"), headers.size());
    const std::string_view line = headers.substr(0, end);
    headers.remove_prefix(std::min(end + 2, headers.size()));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    const std::string_view name = trim(line.substr(0, colon)), value = trim(line.substr(colon + 1));
    if (equal_names(name, "content-type")) part.content_type = value;
    if (!equal_names(name, "content-disposition")) continue;
    const auto disposition = parse_header_value(value);
    if (!disposition || !equal_names(disposition->value, "form-data")) return std::nullopt;
    for (const auto& [key, text] : disposition->parameters) {
      if (equal_names(key, "name")) part.name = text, has_name = true;
      if (equal_names(key, "filename")) part.file_name = text;
    }
  }
  if (!has_name) return std::nullopt;
  return part;
}

}  // namespace

bool equal_names(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view text_of(const NamedTexts& texts, std::string_view name) {
  for (const auto& [key, text] : texts) {
    if (equal_names(key, name)) return text;
  }
  return {};
}

std::optional<std::string> decode_percent(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      result += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = hexadecimal(text[i + 1]), low = hexadecimal(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    result += static_cast<char>(high * 16 + low);
    i += 2;
  }
  if (find_invalid_utf8(result) || has_control_character(result)) return std::nullopt;
  return result;
}

std::optional<NamedTexts> parse_query(std::string_view query) {
  NamedTexts result;
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    std::string pair(query.substr(0, end));
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.empty()) continue;
    std::replace(pair.begin(), pair.end(), '+', ' ');
    const size_t equals = std::min(pair.find('='), pair.size());
    const auto name = decode_percent(std::string_view(pair).substr(0, equals));
    const auto value = decode_percent(std::string_view(pair).substr(std::min(equals + 1, pair.size())));
    if (!name || !value) return std::nullopt;
    result.emplace_back(*name, *value);
  }
  return result;
}

std::optional<std::vector<FormPart>> parse_form(std::string_view content_type, std::string_view body) {
  const auto type = parse_header_value(content_type);
  if (!type || !equal_names(type->value, "multipart/form-data")) return std::nullopt;
  const std::string_view boundary = text_of(type->parameters, "boundary");
  if (boundary.empty() || boundary.size() > 70) return std::nullopt;
  const std::string delimiter = "\r\n--" + std::string(boundary);
  // Anything before the first delimiter is ignored; the delimiter may be at the beginning of the body.
  size_t at =
      body.starts_with(std::string_view(delimiter).substr(2)) ? delimiter.size() - 2 : body.find(delimiter);
  if (at == std::string_view::npos) return std::nullopt;
  if (!body.starts_with(std::string_view(delimiter).substr(2))) at += delimiter.size();
  std::vector<FormPart> parts;
  while (true) {
    if (body.substr(at, 2) == "--") return parts;
    const size_t line = body.find("\r\n", at);
    if (line == std::string_view::npos || !trim(body.substr(at, line - at)).empty()) return std::nullopt;
    const size_t end_of_headers = body.find("\r\n\r\n", line);
    if (end_of_headers == std::string_view::npos || end_of_headers - line > kMostPartHeaders ||
        parts.size() == kMostParts)
      return std::nullopt;
    const size_t next = body.find(delimiter, end_of_headers + 2);
    if (next == std::string_view::npos) return std::nullopt;
    auto part = read_part_headers(body.substr(line + 2, end_of_headers - std::min(end_of_headers, line + 2)));
    if (!part) return std::nullopt;
    const size_t begin = end_of_headers + 4;
    part->data = next < begin ? std::string_view() : body.substr(begin, next - begin);
    parts.push_back(std::move(*part));
    at = next + delimiter.size();
  }
}

}  // namespace tessera::serve
