// The JSON files beside a vocabulary that describe a tokenizer, as transformers 5 reads them:
// tokenizer_config.json, and if that does not list the added tokens, the files of older versions.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "text/tokens.h"

namespace tessera::text {

// Reads the file; returns an empty object if it does not exist.
JsonConfig read_json_if_there(const std::filesystem::path& path);

// Parses a token in the form that configs use: its text, or an object with text and flags. `normalized` is
// the default of that flag. Throws Error(kInput) with `where` for another shape.
AddedToken parse_added_token(const Json& value, bool normalized, const std::string& where);

// Parses the `added_tokens` of a tokenizer.json, in order, with their ids. Throws Error(kInput) for another
// shape.
std::vector<std::pair<int64_t, AddedToken>> parse_added_tokens(const JsonConfig& document);

class TokenizerConfig {
 public:
  // Reads those of tokenizer_config.json, special_tokens_map.json and added_tokens.json that are in `folder`.
  // Throws Error(kInput) if one is damaged.
  explicit TokenizerConfig(const std::filesystem::path& folder);

  const JsonConfig& values() const { return config_; }

  // Returns the token under `key` ("eos_token"), or that of `defaults` if no file has the key, or nothing.
  std::optional<AddedToken> token(const std::string& key, const Json& defaults = Json::object()) const;
  // Returns the tokens under transformers' keys (bos_token, eos_token, ...), then those under other keys that
  // end in `_token`, then those of the list of extra tokens.
  std::vector<AddedToken> named_tokens(const Json& defaults = Json::object()) const;
  // Returns the list `extra_special_tokens`. Older files name it `additional_special_tokens`, which is read
  // only if the first is missing or empty. Returns nothing if no file has such a list.
  std::optional<std::vector<AddedToken>> extra_tokens() const;
  // Returns the side that tokenizer_config.json sets, or else the tokenizer.json `document`. Throws
  // Error(kInput) for another side.
  TruncationSide truncation_side(const JsonConfig& document) const;
  // Returns the tokens added to the vocabulary, by id. Those of `document`, a tokenizer.json, are used where
  // added_tokens.json would be. Throws Error(kInput) for another shape.
  std::map<int64_t, AddedToken> saved_tokens(const JsonConfig& document) const;

 private:
  // Returns the list that is used if there are no extra_tokens().
  std::vector<AddedToken> additional_tokens() const;

  JsonConfig config_;
  JsonConfig special_tokens_map_, added_tokens_;  // empty if tokenizer_config.json lists the added tokens
};

}  // namespace tessera::text
