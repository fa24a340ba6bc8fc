// The Unicode versions of Hugging Face's tokenizers, whose parts use different ones, each of which gives
// other ids to some text: Unicode 9 in NFC (the crate unicode-normalization-alignments), 16 in patterns
// (Oniguruma 6.9.10), 17 in lower case (Rust 1.92). They are derived here from ICU's version, which may be
// older or newer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera::text {

// Normalization form C of well-formed UTF-8. Characters that Unicode 9 had not assigned are left unchanged.
std::string to_nfc(std::string_view text);

// Lower-cases well-formed UTF-8 character by character: a capital sigma never becomes a final one.
std::string to_lower_case(std::string_view text);

// The characters of a general category, L, M or N, as a set of ICU's regular expressions; nullopt for others.
std::optional<std::string> category_set(std::string_view category);

}  // namespace tessera::text
