// What the JSON files beside a vocabulary say of a tokenizer, as transformers 5 reads them:
// tokenizer_config.json, and where that does not list the added tokens, what older versions saved instead.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "text/added_tokens.h"

namespace tessera::text {

// The file, or an empty object when there is none.
JsonConfig read_json_if_there(const std::filesystem::path& path);

// A token as configs write it: its text, or an object with the text and flags. `normalized` is what it is
// unless `value` says so. Throws Error(kInput) with `where` for another shape.
AddedToken parse_added_token(const Json& value, bool normalized, const std::string& where);

// The `added_tokens` of a tokenizer.json, in its order, with their ids. Throws Error(kInput) for another
// shape.
std::vector<std::pair<int64_t, AddedToken>> parse_added_tokens(const JsonConfig& document);

class TokenizerConfig {
 public:
  // Reads tokenizer_config.json, special_tokens_map.json and added_tokens.json, as far as they are in
  // `folder`. Throws Error(kInput) when one is damaged.
  explicit TokenizerConfig(const std::filesystem::path& folder);

  const JsonConfig& values() const { return config_; }

  // The token under `key` ("eos_token"), or that of the object `defaults` where no file has the key; nothing
  // when there is none.
  std::optional<AddedToken> token(const std::string& key, const Json& defaults = Json::object()) const;
  // Those under transformers' keys (bos_token, eos_token, ...), then under others that end in `_token`, then
  // those of the lists of further ones.
  std::vector<AddedToken> named_tokens(const Json& defaults = Json::object()) const;
  // The tokens that were added to the vocabulary, by id. Those of `document`, a tokenizer.json, count where
  // added_tokens.json counts. Throws Error(kInput) when they are of another shape.
  std::map<int64_t, AddedToken> saved_tokens(const JsonConfig& document) const;

 private:
  JsonConfig config_;
  JsonConfig special_tokens_map_, added_tokens_;  // empty where the first lists the tokens
};

}  // namespace tessera::text
