// Unicode as Hugging Face's tokenizers knows it. Its parts follow versions of their own, of which each gives
// other ids to some text: Unicode 9 in NFC (the crate unicode-normalization-alignments), 16 in patterns
// (Oniguruma 6.9.10), 17 in lower case (Rust 1.92). Here they are made of ICU's version, which may be older
// or newer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

// Normalization form C of well-formed UTF-8. What Unicode 9 had not assigned is left as it is.
std::string to_nfc(std::string_view text);

// Well-formed UTF-8 in lower case, character by character: a capital sigma is never final.
std::string to_lower_case(std::string_view text);

// The characters of a general category, L, M or N, as a set of ICU's regular expressions; nothing for others.
std::optional<std::string> category_set(std::string_view category);

}  // namespace tessera::text
