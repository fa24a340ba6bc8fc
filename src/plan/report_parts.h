// How a page writes numbers and tables.
#pragma once

#include <string>

#include "core/table.h"

namespace tessera::plan {

std::string seconds_of(double seconds);  // "1.25 ms"
std::string table_html(const Table& table);

}  // namespace tessera::plan
