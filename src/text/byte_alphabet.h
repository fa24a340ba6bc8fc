// The alphabet of byte-level vocabularies: a printable character for each byte, so that any text consists of
// 256 characters. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; the table is
// bytes_to_unicode() of https://github.com/openai/gpt-2/blob/master/src/encoder.py.
#pragma once

#include <string>
#include <string_view>

namespace tessera::text {

// Returns the characters of `bytes` as UTF-8.
std::string to_byte_alphabet(std::string_view bytes);

}  // namespace tessera::text
