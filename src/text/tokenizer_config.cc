#include "text/tokenizer_config.h"

#include <algorithm>

#include "core/error.h"
#include "core/file.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};

// The list of extra tokens has two names.
constexpr const char *kExtra = "extra_special_tokens", *kAdditional = "additional_special_tokens";

const Json& value_of(const JsonConfig& file, const char* key) {
  static const Json null;
  return file.values().contains(key) ? file.values()[key] : null;
}

// Appends the tokens of a list; a text that is already there is not added again.
void append_list(const JsonConfig& file, const char* key, std::vector<AddedToken>& tokens) {
  if (!value_of(file, key).is_array()) return;
  for (const Json& value : value_of(file, key)) {
    AddedToken token = parse_added_token(value, false, file.where());
    if (!has_text(tokens, token.text)) tokens.push_back(std::move(token));
  }
}

bool is_token(const Json& value) {
  return value.is_string() || (value.is_object() && value.contains("content"));
}

}  // namespace

JsonConfig read_json_if_there(const fs::path& path) {
  return type_at(path) == fs::file_type::regular ? JsonConfig::read(path)
                                                 : JsonConfig(Json::object(), path.string());
}

AddedToken parse_added_token(const Json& value, bool normalized, const std::string& where) {
  if (value.is_string()) return {.text = value.get<std::string>(), .normalized = normalized};
  if (!value.is_object())
    input_error(where, "a token must be a string or an object, got {}",
                value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40));
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
    for (const char* key : {kExtra, "model_specific_special_tokens"}) {
      if (!value_of(*file, key).is_object()) continue;
      for (const Json& value : value_of(*file, key))
        tokens.push_back(parse_added_token(value, false, file->where()));
    }
  }
  const std::vector<AddedToken> extra = extra_tokens().value_or(additional_tokens());
  tokens.insert(tokens.end(), extra.begin(), extra.end());
  return tokens;
}

std::optional<std::vector<AddedToken>> TokenizerConfig::extra_tokens() const {
  std::optional<std::vector<AddedToken>> tokens;
  const auto take = [&](const JsonConfig& file, const char* key) {
    if (!tokens) tokens.emplace();
    append_list(file, key, *tokens);
  };
  const Json& values = config_.values();
  if (values.contains(kAdditional) && value_of(config_, kExtra).empty()) {
    take(config_, kAdditional);
  } else if (values.contains(kExtra) && !values[kExtra].is_object()) {
    take(config_, kExtra);
  }
  if (value_of(special_tokens_map_, kExtra).is_array()) take(special_tokens_map_, kExtra);
  return tokens;
}

std::vector<AddedToken> TokenizerConfig::additional_tokens() const {
  std::vector<AddedToken> tokens;
  append_list(special_tokens_map_.has(kAdditional) ? special_tokens_map_ : config_, kAdditional, tokens);
  return tokens;
}

TruncationSide TokenizerConfig::truncation_side(const JsonConfig& document) const {
  const Json& truncation = value_of(document, "truncation");
  const bool is_left = truncation.is_object() && truncation.value("direction", Json()) == "Left";
  const std::string side = config_.string("truncation_side", is_left ? "left" : "right");
  if (side != "left" && side != "right") config_.fail("truncation_side", "left or right");
  return side == "left" ? TruncationSide::kLeft : TruncationSide::kRight;
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
    const bool special = has_text(named, item.key());
    tokens.insert_or_assign(added_tokens_.integer(item.key()),
                            AddedToken{.text = item.key(), .normalized = !special});
  }
  for (auto& [id, token] : parse_added_tokens(document)) tokens.insert_or_assign(id, std::move(token));
  return tokens;
}

}  // namespace tessera::text
