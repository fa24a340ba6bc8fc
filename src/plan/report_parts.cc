#include "plan/report_parts.h"

#include <vector>

#include "plan/svg.h"

namespace tessera::plan {
namespace {

std::string row_html(const std::vector<std::string>& cells, const char* tag) {
  std::string html = "<tr>";
  for (const std::string& cell : cells) html += fmt::format("<{0}>{1}</{0}>", tag, html_escaped(cell));
  return html + "</tr>\n";
}

}  // namespace

std::string seconds_of(double seconds) {
  if (seconds >= 1) return fmt::format("{:.2f} s", seconds);
  return seconds >= 1e-3 ? fmt::format("{:.2f} ms", seconds * 1e3) : fmt::format("{:.1f} us", seconds * 1e6);
}

std::string table_html(const Table& table) {
  std::string html = "<table>\n";
  const char* tag = "th";
  for (const std::vector<std::string>& cells : table.cells()) {
    html += row_html(cells, tag);
    tag = "td";
  }
  return html + "</table>\n";
}

}  // namespace tessera::plan
