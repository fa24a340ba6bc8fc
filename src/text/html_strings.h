// The strings of an HTML document, joined as BeautifulSoup joins them for its property `text`.
#pragma once

#include <unicode/unistr.h>

#include <vector>

namespace tessera::text {

class HtmlStrings {
 public:
  // What a reader of the markup finds, in order. Names are in lower case.
  void start_tag(const icu::UnicodeString& name);
  void empty_tag();  // <name/>
  void end_tag(const icu::UnicodeString& name);
  void data(const icu::UnicodeString& text);
  void cdata(const icu::UnicodeString& text);  // <![CDATA[text]]>
  void invisible();                            // a comment, declaration or instruction

  // Returns all strings but those of scripts, styles, templates and ruby annotations.
  icu::UnicodeString join();

 private:
  void end_string(bool may_hide = true);
  bool is_within(const std::vector<icu::UnicodeString>& names) const;

  std::vector<icu::UnicodeString> open_;  // from the outermost to the innermost
  std::vector<icu::UnicodeString>
      closed_void_;            // void elements whose end tag, if there is one, means nothing
  icu::UnicodeString string_;  // the string that goes on
  bool has_string_ = false;    // also if it is empty
  icu::UnicodeString result_;
};

}  // namespace tessera::text
