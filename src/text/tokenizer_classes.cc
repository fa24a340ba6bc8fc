#include "text/tokenizer_classes.h"

namespace tessera::text {
namespace {

// transformers/models/clip/tokenization_clip.py, qwen2/tokenization_qwen2.py
constexpr TokenizerClass kClasses[] = {
    {.name = "CLIPTokenizer",
     .description = R"json({
       "normalizer": {"type": "Sequence", "normalizers": [
         {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "}, {"type": "Lowercase"}]},
       "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
         {"type": "Split", "behavior": "Removed", "invert": true, "pattern": {"Regex":
           "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"}},
         {"type": "ByteLevel", "add_prefix_space": false}]},
       "model": {"end_of_word_suffix": "</w>"},
       "special_tokens": {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>",
                          "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"}})json",
     .surrounds_text = true,
     .maps_to_unknown = true,
     .finds_raw = false},
    {.name = "Qwen2Tokenizer",
     .description = R"json({
       "normalizer": {"type": "NFC"},
       "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
         {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
           "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
         {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]},
       "model": {},
       "special_tokens": {"eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
                          "pad_token": "<|endoftext|>"}})json",
     .surrounds_text = false,
     .maps_to_unknown = false,
     .finds_raw = true},
};

}  // namespace

const TokenizerClass* find_tokenizer_class(std::string_view name) {
  if (name.ends_with("Fast")) name.remove_suffix(4);
  for (const TokenizerClass& row : kClasses) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace tessera::text
