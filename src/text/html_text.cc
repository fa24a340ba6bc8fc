#include "text/html_text.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "text/regex.h"

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

// Collects the strings of an HTML document and joins them as BeautifulSoup does for its property `text`.
class HtmlStrings {
 public:
  // A reader of the markup calls these, in order, for what it finds. Names are in lower case.
  void start_tag(const icu::UnicodeString& name);
  void empty_tag();  // <name/>
  void end_tag(const icu::UnicodeString& name);
  void data(const icu::UnicodeString& text);
  void cdata(const icu::UnicodeString& text);  // <![CDATA[text]]>
  void invisible();                            // a comment, declaration or instruction

  // Returns all strings except those of scripts, styles, templates and ruby annotations.
  icu::UnicodeString join();

 private:
  void end_string(bool may_hide = true);
  bool is_within(const Names& names) const;

  Names open_;                 // from the outermost to the innermost
  Names closed_void_;          // void elements, whose end tags, if any, have no meaning
  icu::UnicodeString string_;  // the string in progress
  bool has_string_ = false;    // true even if it is empty
  icu::UnicodeString result_;
};

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

bool HtmlStrings::is_within(const Names& names) const {
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

constexpr int32_t kUnfinished = -1;

// The loops of tags are possessive: the form of a tag leaves no alternatives to try, and ICU would otherwise
// keep a state for each character.
struct Patterns {
  PythonRegex start_tag{R"(<[a-zA-Z][^\t\n\r\f />\u0000]*+)"
                        R"((?:[\s/]*+(?:(?<=['"\s/])[^\s/>][^\s/=>]*+)"
                        R"((?:\s*=+\s*(?:'[^']*'|"[^"]*"|(?!['"])[^>\s]*)\s*)?+(?:\s|/(?!>))*+)*+)?+\s*+)"};
  PythonRegex tag_name{R"(([a-zA-Z][^\t\n\r\f />\u0000]*+)(?:\s|/(?!>))*+)"};
  PythonRegex attribute{R"((?<=['"\s/])[^\s/>][^\s/=>]*+)"
                        R"((?:\s*=+\s*(?:'[^']*'|"[^"]*"|(?!['"])[^>\s]*))?+(?:\s|/(?!>))*+)"};
  PythonRegex tag_end{R"(\s*(/?)>\s*\z)"};
  PythonRegex end_tag{R"(</\s*([a-zA-Z][-.a-zA-Z0-9:_]*)\s*>)"};
  PythonRegex script_end{R"(</\s*script\s*>)"};
  PythonRegex style_end{R"(</\s*style\s*>)"};
  PythonRegex comment_end{R"(--\s*>)"};
  PythonRegex section_name{R"(([a-zA-Z][-_.a-zA-Z0-9]*)\s*)"};
  PythonRegex section_end{R"(\]\s*\]\s*>)"};
  PythonRegex office_section_end{R"(\]\s*>)"};
  PythonRegex number{R"(\&#([0-9]+|[xX][0-9a-fA-F]+)(?=[^0-9a-fA-F]))"};
  PythonRegex name{R"(\&([a-zA-Z][-.a-zA-Z0-9]*)(?=[^a-zA-Z0-9]))"};
};

const Patterns& patterns() {
  static const Patterns& patterns = *new Patterns;
  return patterns;
}

bool is_ascii_letter(char16_t unit) {
  return (unit >= u'a' && unit <= u'z') || (unit >= u'A' && unit <= u'Z');
}

// Reads the markup in two passes; the second starts where the first stopped, and treats unfinished markup as
// text.
class Reader {
 public:
  explicit Reader(const icu::UnicodeString& markup) : markup_(markup) {}

  icu::UnicodeString read() {
    go(false);
    go(true);
    return strings_.join();
  }

 private:
  void go(bool to_end);
  bool take_data();
  bool take_markup(bool to_end);
  bool take_number();
  bool take_name(bool to_end);

  // These return where the construct at the position ends, or kUnfinished.
  int32_t take_tag();
  int32_t take_start_tag();
  int32_t take_end_tag();
  int32_t take_declaration();
  int32_t take_section();
  int32_t find_tag_end() const;

  icu::UnicodeString between(int32_t begin, int32_t end) const {
    return markup_.tempSubStringBetween(begin, end);
  }
  bool stands(const char16_t* text) const {
    return markup_.compare(position_, icu::UnicodeString(text).length(), text) == 0;
  }
  // Skips everything up to the next '>' as invisible.
  int32_t skip_to_angle(int32_t from) {
    const int32_t end = markup_.indexOf(u'>', from);
    if (end < 0) return kUnfinished;
    strings_.invisible();
    return end + 1;
  }

  const icu::UnicodeString& markup_;
  int32_t position_ = 0;
  const PythonRegex* raw_end_ = nullptr;  // the end of the script or style that the position is in
  HtmlStrings strings_;
};

void Reader::go(bool to_end) {
  while (position_ < markup_.length()) {
    if (!take_data()) break;
    if (position_ == markup_.length()) break;
    const bool goes_on = markup_[position_] == u'<'                  ? take_markup(to_end)
                         : markup_.compare(position_, 2, u"&#") == 0 ? take_number()
                                                                     : take_name(to_end);
    if (!goes_on) break;
  }
  if (to_end && position_ < markup_.length() && raw_end_ == nullptr)
    strings_.data(between(position_, markup_.length()));
}

// Takes the text before the next markup. Returns false in a script or style without an end.
bool Reader::take_data() {
  int32_t end = position_;
  if (raw_end_ != nullptr) {
    const auto match = raw_end_->search(markup_, position_);
    if (!match) return false;
    end = match->begin;
  } else {
    while (end < markup_.length() && markup_[end] != u'<' && markup_[end] != u'&') ++end;
  }
  if (position_ < end) strings_.data(between(position_, end));
  position_ = end;
  return true;
}

bool Reader::take_markup(bool to_end) {
  int32_t end = take_tag();
  if (end == position_) return false;
  if (end == kUnfinished) {
    if (!to_end) return false;
    end = markup_.indexOf(u'>', position_ + 1) + 1;
    if (end == 0) end = markup_.indexOf(u'<', position_ + 1);
    if (end < 0) end = position_ + 1;
    strings_.data(between(position_, end));
  }
  position_ = end;
  return true;
}

// Returns the position itself for a '<' that ends the text.
int32_t Reader::take_tag() {
  if (position_ + 1 < markup_.length() && is_ascii_letter(markup_[position_ + 1])) return take_start_tag();
  if (stands(u"</")) return take_end_tag();
  if (stands(u"<?")) return skip_to_angle(position_ + 2);
  if (stands(u"<!")) return take_declaration();
  if (position_ + 1 == markup_.length()) return position_;
  strings_.data(u"<");
  return position_ + 1;
}

// Returns where the start tag at the position seems to end, which need not be at a '>'.
int32_t Reader::find_tag_end() const {
  const int32_t end = patterns().start_tag.match(markup_, position_)->end;
  if (end == markup_.length()) return kUnfinished;
  const char16_t next = markup_[end];
  if (next == u'>') return end + 1;
  if (next == u'/') return markup_.compare(end, 2, u"/>") == 0 ? end + 2 : kUnfinished;
  return next == u'=' || is_ascii_letter(next) ? kUnfinished : end;
}

int32_t Reader::take_start_tag() {
  const int32_t end = find_tag_end();
  if (end == kUnfinished) return kUnfinished;
  const auto name = patterns().tag_name.match(markup_, position_ + 1);
  int32_t attributes_end = name->end;
  while (attributes_end < end) {
    const auto attribute = patterns().attribute.match(markup_, attributes_end);
    if (!attribute) break;
    attributes_end = attribute->end;
  }
  const auto rest =
      patterns().tag_end.match(attributes_end < end ? between(attributes_end, end) : icu::UnicodeString(), 0);
  if (!rest) {
    strings_.data(between(position_, end));
  } else if (!rest->group.isEmpty()) {
    strings_.empty_tag();
  } else {
    strings_.start_tag(name->group);
    if (name->group == u"script") raw_end_ = &patterns().script_end;
    if (name->group == u"style") raw_end_ = &patterns().style_end;
  }
  return end;
}

int32_t Reader::take_end_tag() {
  const int32_t angle = markup_.indexOf(u'>', position_ + 1);
  if (angle < 0) return kUnfinished;
  if (const auto match = patterns().end_tag.match(markup_, position_)) {
    strings_.end_tag(match->group);
    raw_end_ = nullptr;
    return match->end;
  }
  const auto name = patterns().tag_name.match(markup_, position_ + 2);
  if (name) {
    strings_.end_tag(name->group);
    return markup_.indexOf(u'>', name->end) + 1;
  }
  return stands(u"</>") ? position_ + 3 : skip_to_angle(position_ + 2);
}

int32_t Reader::take_declaration() {
  if (stands(u"<![")) return take_section();
  if (!stands(u"<!--")) return skip_to_angle(position_ + (stands(u"<!doctype") ? 9 : 2));
  const auto end = patterns().comment_end.search(markup_, position_ + 4);
  if (!end) return kUnfinished;
  strings_.invisible();
  return end->end;
}

int32_t Reader::take_section() {
  const int32_t begin = position_ + 3;
  if (begin == markup_.length()) return kUnfinished;
  const auto name = patterns().section_name.match(markup_, begin);
  if (name && name->end == markup_.length()) return kUnfinished;
  static constexpr const char16_t* kStandard[] = {u"temp", u"cdata", u"ignore", u"include", u"rcdata"};
  static constexpr const char16_t* kOffice[] = {u"if", u"else", u"endif"};
  const auto is_one_of = [&](const auto& names) {
    return name && std::any_of(std::begin(names), std::end(names),
                               [&](const char16_t* other) { return name->group == other; });
  };
  const bool is_office = is_one_of(kOffice);
  if (!is_office && !is_one_of(kStandard)) {
    usage_error(field("prompt"),
                "after '<![' the name of a section of HTML must follow, such as CDATA, or use {}",
                field("clean_caption", false));
  }
  const auto end =
      (is_office ? patterns().office_section_end : patterns().section_end).search(markup_, begin);
  if (!end) return kUnfinished;
  const icu::UnicodeString content = between(begin, end->begin);
  if (content.startsWith(u"cdata[")) {
    strings_.cdata(content.tempSubString(6));
  } else {
    strings_.invisible();
  }
  return end->end;
}

// Takes the reference at a "&#". Like html.parser, it stops at one that is not well-formed.
bool Reader::take_number() {
  const auto match = patterns().number.match(markup_, position_);
  if (!match) {
    if (markup_.indexOf(u';', position_) < 0) return false;
    strings_.data(u"&#");
    position_ += 2;
    return false;
  }
  std::string digits;
  match->group.toUTF8String(digits);
  const bool hexadecimal = digits[0] == 'x' || digits[0] == 'X';
  strings_.data(icu::UnicodeString(
      referenced_character(std::string_view(digits).substr(hexadecimal ? 1 : 0), hexadecimal ? 16 : 10)));
  position_ = match->end;
  if (markup_[position_] == u';') ++position_;
  return true;
}

bool Reader::take_name(bool to_end) {
  if (const auto match = patterns().name.match(markup_, position_)) {
    std::string name;
    match->group.toUTF8String(name);
    if (const HtmlEntity* entity = find_html_entity(name)) {
      strings_.data(text_of(*entity));
    } else {
      strings_.data(u"&" + match->group);
    }
    position_ = match->end;
    if (markup_[position_] == u';') ++position_;
    return true;
  }
  const int32_t left = markup_.length() - position_;
  if (left >= 2 && is_ascii_letter(markup_[position_ + 1])) {
    if (to_end && left == 2) ++position_;  // html.parser loses this '&'
    return false;
  }
  if (left < 2) return false;
  strings_.data(u"&");
  ++position_;
  return true;
}

}  // namespace

icu::UnicodeString html_text(const icu::UnicodeString& markup) {
  return Reader(markup).read();
}

}  // namespace tessera::text
