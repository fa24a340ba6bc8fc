// The caption cleaning of DeepFloyd IF, which the pipelines of PixArt and Open-Sora apply to prompts.
#pragma once

#include <string>
#include <string_view>

namespace tessera::text {

// Which implementation to follow: the two differ only in texts that begin or end in spaces after references
// are decoded.
enum class CaptionStyle { kDiffusers, kOpenSora };

// Returns what diffusers' `_clean_caption`, run twice, makes of a prompt (`clean_caption=True` of the PixArt
// pipelines), or `text_preprocessing` of Open-Sora: lower case without links, markup, Chinese characters,
// article numbers, file names and much punctuation. Throws Error(kUsage) if `caption` is not UTF-8, has more
// than 16384 bytes or makes a rule backtrack for seconds, or makes Python raise: at "<![" without the name of
// a section.
//
// Not ported:
// - The repair of text that was decoded with the wrong encoding (text_fixer.h). A warning says where ftfy may
//   do it.
// - Damaged markup as Python later than 3.11.7 reads it (html_text.h).
// - The error of Python at references with numbers of more than 4300 digits, which give U+FFFD.
// - Python's version of Unicode. Categories, cases and compositions of characters are ICU's.
std::string clean_caption(std::string_view caption, CaptionStyle style = CaptionStyle::kDiffusers);

// Throws if a caption has too many bytes to be cleaned, which is known without cleaning it. `name` is the
// field that contains it.
void require_cleanable_size(std::string_view caption, const char* name);

}  // namespace tessera::text
