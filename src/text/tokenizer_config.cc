#include "text/tokenizer_config.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};

bool is_token(const Json& value) {
  return value.is_string() || (value.is_object() && value.contains("content"));
}

}  // namespace

JsonConfig read_json_if_there(const fs::path& path) {
  std::error_code code;
  return fs::is_regular_file(path, code) ? JsonConfig::read(path) : JsonConfig(Json::object(), path.string());
}

AddedToken parse_added_token(const Json& value, bool normalized, const std::string& where) {
  if (value.is_string()) return {.text = value.get<std::string>(), .normalized = normalized};
  const JsonConfig token(value, where);
  return {.text = token.string("content"),
          .normalized = token.boolean("normalized", normalized),
          .single_word = token.boolean("single_word", false),
          .lstrip = token.boolean("lstrip", false),
          .rstrip = token.boolean("rstrip", false)};
}

std::vector<std::pair<int64_t, AddedToken>> parse_added_tokens(const JsonConfig& document) {
  std::vector<std::pair<int64_t, AddedToken>> tokens;
  if (!document.has("added_tokens")) return tokens;
  if (!document.values()["added_tokens"].is_array()) document.fail("added_tokens", "an array");
  for (const Json& value : document.values()["added_tokens"]) {
    const JsonConfig token(value, document.where());
    const bool special = token.boolean("special", false);
    tokens.emplace_back(token.integer("id"), parse_added_token(value, !special, document.where()));
  }
  return tokens;
}

TokenizerConfig::TokenizerConfig(const fs::path& folder)
    : config_(read_json_if_there(folder / "tokenizer_config.json")) {
  if (config_.has("added_tokens_decoder")) return;
  special_tokens_map_ = read_json_if_there(folder / "special_tokens_map.json");
  added_tokens_ = read_json_if_there(folder / "added_tokens.json");
}

std::optional<AddedToken> TokenizerConfig::token(const std::string& key, const Json& defaults) const {
  const JsonConfig& file = special_tokens_map_.has(key) ? special_tokens_map_ : config_;
  if (file.has(key)) return parse_added_token(file.values()[key], false, file.where());
  if (file.values().contains(key) || !defaults.contains(key)) return std::nullopt;
  return parse_added_token(defaults[key], false, file.where());
}

std::vector<AddedToken> TokenizerConfig::named_tokens(const Json& defaults) const {
  std::vector<AddedToken> tokens;
  for (const char* name : kNames) {
    if (const auto found = token(name, defaults)) tokens.push_back(*found);
  }
  for (const JsonConfig* file : {&special_tokens_map_, &config_}) {
    for (const auto& item : file->values().items()) {
      const bool other = std::find(std::begin(kNames), std::end(kNames), item.key()) == std::end(kNames);
      if (other && item.key().ends_with("_token") && is_token(item.value()))
        tokens.push_back(parse_added_token(item.value(), false, file->where()));
    }
    for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
      if (!file->has(key) || !file->values()[key].is_structured()) continue;
      for (const Json& value : file->values()[key])
        tokens.push_back(parse_added_token(value, false, file->where()));
    }
  }
  return tokens;
}

std::map<int64_t, AddedToken> TokenizerConfig::saved_tokens(const JsonConfig& document) const {
  std::map<int64_t, AddedToken> tokens;
  if (config_.has("added_tokens_decoder")) {
    const Json& values = config_.values()["added_tokens_decoder"];
    if (!values.is_object()) config_.fail("added_tokens_decoder", "an object");
    for (const auto& [id, value] : values.items()) {
      const bool digits =
          !id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos;
      if (!digits) config_.fail("added_tokens_decoder", "an object whose keys are ids");
      const bool special = value.is_object() && value.value("special", Json(false)) == Json(true);
      tokens.emplace(std::stoll(id), parse_added_token(value, !special, config_.where()));
    }
    return tokens;
  }
  const std::vector<AddedToken> named = named_tokens();
  for (const auto& item : added_tokens_.values().items()) {
    const bool special =
        std::any_of(named.begin(), named.end(), [&](const AddedToken& t) { return t.text == item.key(); });
    tokens.insert_or_assign(added_tokens_.integer(item.key()),
                            AddedToken{.text = item.key(), .normalized = !special});
  }
  for (auto& [id, token] : parse_added_tokens(document)) tokens.insert_or_assign(id, std::move(token));
  return tokens;
}

}  // namespace tessera::text
