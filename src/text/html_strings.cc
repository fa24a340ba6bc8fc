#include "text/html_strings.h"

#include <algorithm>
#include <string_view>

namespace tessera::text {
namespace {

using Names = std::vector<icu::UnicodeString>;

bool contains(const Names& names, const icu::UnicodeString& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Names& void_elements() {
  static const Names& names =
      *new Names{u"area",  u"base",     u"basefont", u"bgsound", u"br",     u"col",     u"command", u"embed",
                 u"frame", u"hr",       u"image",    u"img",     u"input",  u"isindex", u"keygen",  u"link",
                 u"meta",  u"menuitem", u"nextid",   u"param",   u"source", u"spacer",  u"track",   u"wbr"};
  return names;
}

const Names& hidden_elements() {
  static const Names& names = *new Names{u"rp", u"rt", u"script", u"style", u"template"};
  return names;
}

const Names& elements_that_keep_spaces() {
  static const Names& names = *new Names{u"pre", u"textarea"};
  return names;
}

bool is_ascii_space(const icu::UnicodeString& text) {
  for (int32_t i = 0; i < text.length(); ++i)
    if (std::u16string_view(u" \n\t\f\r").find(text[i]) == std::u16string_view::npos) return false;
  return true;
}

}  // namespace

void HtmlStrings::start_tag(const icu::UnicodeString& name) {
  end_string();
  (contains(void_elements(), name) ? closed_void_ : open_).push_back(name);
}

void HtmlStrings::empty_tag() {
  end_string();
}

void HtmlStrings::end_tag(const icu::UnicodeString& name) {
  const auto closed = std::find(closed_void_.begin(), closed_void_.end(), name);
  if (closed != closed_void_.end()) {
    closed_void_.erase(closed);
    return;
  }
  end_string();
  const auto innermost = std::find(open_.rbegin(), open_.rend(), name);
  if (innermost != open_.rend()) open_.erase(innermost.base() - 1, open_.end());
}

void HtmlStrings::data(const icu::UnicodeString& text) {
  string_ += text;
  has_string_ = true;
}

void HtmlStrings::cdata(const icu::UnicodeString& text) {
  end_string();
  data(text);
  end_string(false);
}

void HtmlStrings::invisible() {
  end_string();
}

icu::UnicodeString HtmlStrings::join() {
  end_string();
  return result_;
}

bool HtmlStrings::is_within(const std::vector<icu::UnicodeString>& names) const {
  return std::any_of(open_.begin(), open_.end(), [&](const auto& name) { return contains(names, name); });
}

void HtmlStrings::end_string(bool may_hide) {
  if (!has_string_) return;
  if (is_ascii_space(string_) && !is_within(elements_that_keep_spaces()))
    string_ = string_.indexOf(u'\n') >= 0 ? u'\n' : u' ';
  if (!may_hide || !is_within(hidden_elements())) result_ += string_;
  string_.remove();
  has_string_ = false;
}

}  // namespace tessera::text
